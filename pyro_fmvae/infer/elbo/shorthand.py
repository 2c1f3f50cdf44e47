"""Running a program that is written with this library's shorthands."""

from typing import Any

import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.util import check_site_shape

from pyro_fmvae.infer.elbo.masks import check_masks, take_masks, watch_missing
from pyro_fmvae.infer.elbo.own_values import OwnValues
from pyro_fmvae.infer.elbo.placeholder import PlaceholderMessenger
from pyro_fmvae.infer.elbo.shorthand_structure import recognise
from pyro_fmvae.infer.elbo.structure import Structure, sample_sites
from pyro_fmvae.infer.elbo.used_draws import take_at_draws, trace_guide


def run_shorthand(
    model: Any, guide: Any, args: Any, kwargs: Any, max_plate_nesting: float
) -> tuple[Structure, Trace]:
    """Run the guide, and the model against it, with placeholders for whatever is integrated out.

    Returns:
        The structure of the program (with the model's trace in it), and the guide's trace.

    Raises:
        ValueError: a program that is not of a recognised shape; the message names the site.
    """
    with PlaceholderMessenger():
        guide_trace, used = trace_guide(guide, args, kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        with OwnValues():
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
    take_masks(model_trace, guide_trace)
    check_masks(model_trace, guide_trace)
    program = recognise(model_trace, guide_trace)
    take_at_draws(program, guide_trace, used)
    if is_validation_enabled():
        watch_missing(model_trace)
        for site in (*sample_sites(guide_trace).values(), *sample_sites(model_trace).values()):
            shape = torch.zeros(()).expand(site["fn"].batch_shape)
            check_site_shape({**site, "log_prob": shape}, max_plate_nesting)
    return program, guide_trace
