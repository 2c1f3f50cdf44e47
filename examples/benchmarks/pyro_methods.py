"""Training steps of the library: ``SVI`` with ``TraceConjugate_ELBO``, and the captured step."""

from typing import Any

import torch
from pyro.infer import SVI
from start import Learner, Rates, Step, fused_adam

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.models import FactorialMixtureVAE


def optimiser(model: FactorialMixtureVAE, rates: Rates) -> NaturalGradient:
    """Natural gradients for λ, one fused Adam for the networks."""
    return NaturalGradient(rates.natural, fused_adam(rates.networks), model.parameters())


def svi(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """The library as a user of Pyro calls it."""
    return Learner(SVI(model.model, model.guide, optimiser(model, rates), TraceConjugate_ELBO()).step)


def captured(
    model: FactorialMixtureVAE, rates: Rates, compiled: bool = False, autocast: torch.dtype | None = None
) -> Learner:
    """The program captured at the first call, compiled or not, with networks in float32 or another type.

    Its losses are tensors, as those of steps by hand are: a training does not wait for them either.
    """
    optim, elbo = optimiser(model, rates), TraceConjugate_ELBO()
    how: dict[str, Any] = {"compile": compiled, "autocast": autocast}
    return Learner(CapturedSVI(model.model, model.guide, optim, elbo, **how).step_async)


def captured_prior(model: FactorialMixtureVAE, compiled: bool = False) -> Step:
    """The captured step on the mixture alone, given encodings, without networks."""
    optim = NaturalGradient(0.01)
    elbo = TraceConjugate_ELBO()
    return CapturedSVI(model.prior_model, model.prior_guide, optim, elbo, compile=compiled).step_async
