"""Training steps of the plain Pyro programs under Pyro's own ELBOs, with their networks compiled or not."""

import torch
from plain_programs import PlainProgram
from pyro.infer import SVI
from start import Learner, Rates
from torch import Tensor

from pyro_fmvae.infer import NaturalGradient
from pyro_fmvae.models import FactorialMixtureVAE


def plain(
    program: type[PlainProgram], model: FactorialMixtureVAE, rates: Rates, compiled: bool = False
) -> Learner:
    """``SVI`` with one fused Adam for everything; Pyro's own wrapper makes one for each parameter."""
    contender = program(model, compiled)
    posterior = list(contender.posterior.parameters())
    networks = [*model.encoder.parameters(), *model.decoder.parameters()]
    groups = [{"params": networks, "lr": rates.networks}, {"params": posterior, "lr": rates.globals}]
    # There is nothing natural among them: of this optimiser only the one torch Adam is used.
    optim = NaturalGradient(1.0, lambda _: torch.optim.Adam(groups, fused=True), [*networks, *posterior])
    svi = SVI(contender.model, contender.guide, optim, contender.elbo())

    def step(x: Tensor) -> float:
        # TraceEnum_ELBO goes backward with retain_graph=True, whatever it is told; compiled networks then
        # may not give their buffers away.
        with torch._functorch.config.patch(donated_buffer=False):
            return svi.step(x)

    return Learner(step if compiled else svi.step, lambda: contender.posterior.write_to(model))
