"""The bridge to ``TraceEnum_ELBO``: assignments as sites of the guide, at their optimal probabilities."""

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine

from pyro_fmvae.infer.frames import frames_of
from pyro_fmvae.infer.trace_conjugate_elbo import TraceConjugate_ELBO


def with_assignments(model: Callable[..., Any], guide: Callable[..., Any]) -> Callable[..., Any]:
    """Add the assignments that a guide leaves to the ELBO, at their optimal probabilities (equation 5).

    Under ``TraceEnum_ELBO`` the model together with the result has the same bound, in expectation, as model and guide
    under ``TraceConjugate_ELBO``. (With the assignment enumerated in the model alone, that bound is a tighter one.)

    Args:
        model: a recognised model.
        guide: a guide without assignment sites.

    Returns:
        A guide with the same arguments, whose assignment sites are marked for parallel enumeration.
    """
    elbo = TraceConjugate_ELBO()

    def guide_with_assignments(*args: Any, **kwargs: Any) -> Any:
        with poutine.block():
            responsibilities = elbo.responsibilities(model, guide, *args, **kwargs)
            program, _ = elbo.trace(model, guide, *args, **kwargs)
        result = guide(*args, **kwargs)
        for name, gamma in responsibilities.items():
            site = program.model.nodes[name]
            with frames_of(site), poutine.scale(scale=site["scale"]):
                pyro.sample(name, dist.Categorical(gamma), infer={"enumerate": "parallel"})
        return result

    return guide_with_assignments
