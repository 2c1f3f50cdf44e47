"""The bridge to ``TraceEnum_ELBO``: assignments as sites of the guide, at their optimal probabilities."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine.runtime import _ENUM_ALLOCATOR
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.infer.elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.structure import frames_of, subsamples
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import responsibilities


def with_assignments(model: Callable[..., Any], guide: Callable[..., Any]) -> Callable[..., Any]:
    """Add the assignments that a guide leaves to the ELBO, at their optimal probabilities (equation 5).

    Under ``TraceEnum_ELBO`` the model together with the result has the same bound, in expectation, as model
    and guide under ``TraceConjugate_ELBO``. (With the assignment enumerated in the model alone, that bound is
    a tighter one.) Where the guide uses its own draws it is a looser one, with the probabilities of other
    draws.

    Discrete sites of plain programs get their own probabilities each. Where they depend on each other, as the
    states of a hidden Markov model do, that makes the bound a looser one.

    Args:
        model: a recognised model.
        guide: a guide without assignment sites.

    Returns:
        A guide with the same arguments, whose assignment sites are marked for parallel enumeration.
    """
    elbo = TraceConjugate_ELBO()

    def guide_with_assignments(*args: Any, **kwargs: Any) -> Any:
        with poutine.block(), torch.no_grad(), _enumeration_apart():
            program, trace = elbo.trace(model, guide, *args, **kwargs)
            if isinstance(program, PlainProgram):
                found = responsibilities(program, trace)
                tiny = torch.finfo(torch.get_default_dtype()).tiny
                added = [
                    (program.model.nodes[name], probabilities.clamp(min=tiny).log())
                    for name, probabilities in found.items()
                    if name not in trace.nodes
                ]
            else:
                mixtures = elbo.tabulate(program, trace)
                added = [
                    (tables.site, tables.responsibilities()[1])
                    for tables in mixtures
                    if tables.site["type"] == "sample"
                ]
        with poutine.replay(trace=subsamples(trace)):
            result = guide(*args, **kwargs)
        for site, logits in added:
            mask = True if site["mask"] is None else site["mask"]
            with frames_of(site), poutine.scale(scale=site["scale"]), poutine.mask(mask=mask):
                pyro.sample(site["name"], _like(site["fn"], logits), infer={"enumerate": "parallel"})
        return result

    return guide_with_assignments


def _like(prior: Distribution, logits: Tensor) -> Distribution:
    """A distribution with the values of a discrete prior, by log-probabilities of each: [..., K]."""
    kind = unwrap(prior)
    if isinstance(kind, dist.Bernoulli):
        return dist.Bernoulli(logits=logits[..., 1] - logits[..., 0])
    if isinstance(kind, dist.OneHotCategorical):
        return dist.OneHotCategorical(logits=logits)
    return dist.Categorical(logits=logits)


@contextmanager
def _enumeration_apart() -> Iterator[None]:
    """Let a program enumerate inside of another one's enumeration: Pyro counts the dimensions globally."""
    state = dict(vars(_ENUM_ALLOCATOR))
    try:
        yield
    finally:
        vars(_ENUM_ALLOCATOR).clear()
        vars(_ENUM_ALLOCATOR).update(state)
