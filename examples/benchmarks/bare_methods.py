"""Training steps in bare PyTorch: the plain VAE, and the mixture prior in closed form, written out by hand.

Both come as eager steps with a fused Adam, with the whole step as one compiled function, and on a GPU as one
CUDA graph. A compiled step contains Adam in plain tensor operations, because torch's own cannot be compiled
with the rest on a CPU.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from start import Learner, Rates, fused_adam
from torch import Tensor
from torch.func import functional_call, grad_and_value
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_fmvae.distributions import DIRICHLET, NORMAL_GAMMA
from pyro_fmvae.infer import natural_prior
from pyro_fmvae.models import FactorialMixtureVAE

Encoded = tuple[Tensor, Tensor, Tensor]  # location and scale of q(z), reconstruction loss
Body = Callable[[Tensor], Tensor]  # a step: a batch to its loss, for all N points
BETAS, EPSILON = (0.9, 0.999), 1e-8


class Networks(torch.nn.Module):
    """Encoder and decoder as one module, called as one function of their parameters."""

    def __init__(self, model: FactorialMixtureVAE) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, x: Tensor) -> Encoded:
        loc, scale = self.encoder(x)
        z = torch.addcmul(loc, scale, torch.randn_like(scale))
        logits = self.decoder(z).squeeze(-3)
        return loc, scale, binary_cross_entropy_with_logits(logits, x, reduction="sum")


class HandAdam:
    """Adam (Kingma and Ba, 2015) in plain tensor operations, with a tensor for its count of steps."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        self.parameters, self.rate = parameters, rate
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.count = parameters[0].new_zeros(())

    def step(self, gradients: list[Tensor]) -> None:
        self.count.add_(1)
        size = self.rate / (1 - BETAS[0] ** self.count)
        correction = (1 - BETAS[1] ** self.count).rsqrt()
        for p, grad, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            first.lerp_(grad, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            p.sub_(size * first / (second.sqrt() * correction + EPSILON))


Loss = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]  # a loss, and further outputs


def whole_step(networks: Networks, loss: Loss, rate: float) -> Callable[..., Any]:
    """Loss, gradients and Adam as a function of x and the other arguments of ``loss``, with its outputs."""
    named = {name: p.detach() for name, p in networks.named_parameters()}  # the same storage
    adam = HandAdam(list(named.values()), rate)

    def step(x: Tensor, *more: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        def of_parameters(parameters: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return loss(functional_call(networks, parameters, (x,)), *more)

        gradients, result = grad_and_value(of_parameters, has_aux=True)(named)
        adam.step(list(gradients.values()))
        return result

    return step


def plain_loss(encoded: Encoded, num_data: int) -> Tensor:
    """Loss under a N(0, I) prior, for all N points."""
    loc, scale, reconstruction = encoded
    kl = 0.5 * (loc.square() + scale.square() - 1).sum() - scale.log().sum()
    return (reconstruction + kl) * (num_data / len(loc))


def vae(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """N(0, I) prior, hand-written loss, one fused Adam."""
    return Learner(_vae(model, rates))


def vae_compiled(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """N(0, I) prior, hand-written loss; loss and gradients compiled, with a fused Adam outside."""
    return Learner(_vae(model, rates, compiled=True))


def vae_graph(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """N(0, I) prior, hand-written loss; the whole step with a fused Adam as one CUDA graph, not compiled."""
    return Learner(graphed(_vae(model, rates, capturable=True)))


def _vae(model: FactorialMixtureVAE, rates: Rates, compiled: bool = False, capturable: bool = False) -> Body:
    networks = Networks(model)
    optimiser = fused_adam(rates.networks, capturable)(list(networks.parameters()))

    def loss(x: Tensor) -> Tensor:
        return plain_loss(networks(x), model.num_data)

    evaluate = torch.compile(loss, dynamic=False) if compiled else loss

    def step(x: Tensor) -> Tensor:
        value = evaluate(x)
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return value.detach()

    return step


def graphed(body: Body) -> Body:
    """A step on batches of one shape as one CUDA graph. The first call takes four steps.

    Args:
        body: changes nothing but tensors in place, and reads nothing from the host.
    """
    inputs: list[Tensor] = []
    results: list[Tensor] = []
    graph = torch.cuda.CUDAGraph()

    def step(x: Tensor) -> Tensor:
        if not inputs:
            inputs.append(x.clone())
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    body(inputs[0])
            torch.cuda.current_stream().wait_stream(aside)
            with torch.cuda.graph(graph):
                results.append(body(inputs[0]))
        inputs[0].copy_(x)
        graph.replay()
        return results[0]

    return step


def vae_compiled_step(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """N(0, I) prior, hand-written loss; the whole step compiled, including Adam."""

    def loss(encoded: Encoded) -> tuple[Tensor, tuple[Tensor, ...]]:
        return plain_loss(encoded, model.num_data), ()

    step = torch.compile(whole_step(Networks(model), loss, rates.networks), dynamic=False)
    return Learner(lambda x: step(x)[0])


class ClosedForm:
    """The mixture prior by equations 4 to 6 and 13, without Pyro, and without autograd for λ.

    λ is that of the model's only group of factors, updated in place.
    """

    def __init__(self, model: FactorialMixtureVAE, rates: Rates) -> None:
        (group,) = model.factor_groups()
        priors = group.priors(group.device)
        self.counts_prior, self.natural_prior = (natural_prior(prior).natural for prior in priors)
        self.counts = group.weights.natural_value()  # c [I, 1, K]
        self.natural = group.loc_precision.natural_value()  # λ [I, K, 2D+2]
        self.dim, self.num_factors, self.num_data = model.dim, len(model.num_components), model.num_data
        if callable(rates.natural):
            raise ValueError("natural: expected a number, the hand-written step has no schedule")
        self.rate = rates.natural

    def tables(self) -> tuple[Tensor, ...]:
        """Equation 6: constant + E[log π] [I, 1, K], factors [I, 2D, K], centre [I, 1, D]; global KLs."""
        dim = self.dim
        stats = NORMAL_GAMMA.mean_stats(self.natural)
        log_precision, square, precision, scaled_loc = stats.split([1, 1, dim, dim], -1)
        centre = scaled_loc.sum(-2, keepdim=True) / precision.sum(-2, keepdim=True)
        moved = scaled_loc - centre * precision
        square = square - (scaled_loc + moved) @ centre.mT
        constant = 0.5 * (log_precision - square) - 0.5 * dim * math.log(2 * math.pi)
        factors = torch.cat([-0.5 * precision, moved], -1).mT
        kl = NORMAL_GAMMA.relative_entropy(self.natural, self.natural_prior).sum()
        kl = kl + DIRICHLET.relative_entropy(self.counts, self.counts_prior).sum()
        return (constant.mT + DIRICHLET.mean_stats(self.counts)).float(), factors.float(), centre.float(), kl

    def loss(
        self, encoded: Encoded, constant: Tensor, factors: Tensor, centre: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Loss for all N points without the global KLs; γ, and the data that the step of λ needs."""
        loc, scale, reconstruction = encoded
        mean, std = (t.unflatten(-1, (self.num_factors, self.dim)).movedim(-2, 0) for t in (loc, scale))
        centred = mean - centre
        data = torch.cat([centred.square() + std.square(), centred], -1)
        logits = torch.baddbmm(constant, data, factors)
        entropy = scale.log().sum() + 0.5 * loc.numel() * (1 + math.log(2 * math.pi))
        # γ is a constant: the bound is stationary in it. Not logsumexp: exp is slow where it underflows.
        gamma, log_gamma = logits.detach().softmax(-1), logits.detach().log_softmax(-1)
        loss = reconstruction - (gamma * (logits - log_gamma)).sum() - entropy
        return loss * (self.num_data / len(loc)), (gamma, data.detach())

    def step_lambda(self, gamma: Tensor, data: Tensor, centre: Tensor) -> None:
        """Equations 13 and 14, from centred statistics, uncentred in float64."""
        scale = self.num_data / gamma.shape[-2]
        n = scale * gamma.sum(-2).double()
        squares, sums = (scale * (gamma.mT @ data)).double().split([self.dim, self.dim], -1)
        shift, n_d = centre.double(), n.unsqueeze(-1)
        squares = squares + (2 * sums + n_d * shift) * shift
        new = torch.cat([0.5 * n_d, -0.5 * n_d, -0.5 * squares, sums + n_d * shift], -1)
        self.natural.lerp_(self.natural_prior + new, self.rate)
        self.counts.lerp_(self.counts_prior + n.unsqueeze(-2), self.rate)


def closed_form(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """The closed form with one fused Adam, eager."""
    return Learner(_closed_form(model, rates))


def closed_form_graph(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """The closed form with one fused Adam; the whole step as one CUDA graph, not compiled."""
    return Learner(graphed(_closed_form(model, rates, capturable=True)))


def _closed_form(model: FactorialMixtureVAE, rates: Rates, capturable: bool = False) -> Body:
    networks, prior = Networks(model), ClosedForm(model, rates)
    optimiser = fused_adam(rates.networks, capturable)(list(networks.parameters()))

    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            *tables, kl = prior.tables()
        loss, (gamma, data) = prior.loss(networks(x), *tables)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            prior.step_lambda(gamma, data, tables[-1])
            return loss.detach() + kl

    return step


def closed_form_compiled(model: FactorialMixtureVAE, rates: Rates) -> Learner:
    """The closed form with the whole step compiled, including Adam and λ.

    The step is compiled in two parts: if the tables were fused with their use, their digammas would be
    computed again for every point of the batch.
    """
    prior = ClosedForm(model, rates)
    networks_step = whole_step(Networks(model), prior.loss, rates.networks)

    def with_tables(x: Tensor, constant: Tensor, factors: Tensor, centre: Tensor, kl: Tensor) -> Tensor:
        value, (gamma, data) = networks_step(x, constant, factors, centre)
        prior.step_lambda(gamma, data, centre)
        return value + kl

    make_tables = torch.compile(prior.tables, dynamic=False)
    rest = torch.compile(with_tables, dynamic=False)
    return Learner(lambda x: rest(x, *make_tables()))
