"""Small models for the tests of models and the outer shell, and a brute-force evaluation of their bound."""

import math

import torch

from pyro_fmvae import BernoulliObservation, FactorialMixtureVAE, Hyperprior, Role, TraceConjugate_ELBO
from pyro_fmvae.nn import MLPDecoder, MLPEncoder
from tests.infer.programs import natural_components, natural_weights, seeded, standard

SHAPE = (2, 3)


def small_model(sizes=(3,), dim=2, num_data=20, labelled=(), hyperprior=None, spread=True, **more):
    """A model of binary x [B, 2, 3] with hidden layers of 5 units; ``spread`` gives λ some variety."""
    latent = len(sizes) * dim
    model = FactorialMixtureVAE(
        MLPEncoder(SHAPE, latent, (5,)),
        MLPDecoder(latent, SHAPE, 1, (5,)),
        BernoulliObservation(2),
        sizes,
        dim,
        num_data,
        labelled,
        hyperprior,
        **more,
    )
    for group in model.factor_groups() if spread else ():
        count, components = len(group.factors), group.num_components
        group.set_natural(natural_weights(count, components), natural_components(count, components, dim))
    return model.to(torch.get_default_dtype())


class Linear(torch.nn.Module):
    """Features of x ~ N(W z, σ² I) for an observation whose deviations are centred on σ."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = torch.nn.Parameter(matrix)

    def forward(self, z):
        mean = z @ self.matrix.T
        return torch.stack([mean, torch.zeros_like(mean)], -2)


def binary_data(size=20):
    return torch.bernoulli(torch.full((size, *SHAPE), 0.5))


def posterior_of(model, factor):
    """c [K] and m, s, a, b (m and b [K, D], s and a [K]) of one factor."""
    (group,) = (g for g in model.factor_groups() if factor in g.factors)
    place = group.factors.index(factor)
    c = group.weights.natural_value()[place, 0]
    return c, *(t[place] for t in standard(group.loc_precision.natural_value()))


def drawn_z(model, x, *args):
    """The z [B, I·D] that a seeded evaluation of the bound draws."""
    with torch.no_grad():
        _, trace = seeded(TraceConjugate_ELBO().trace, model.model, model.guide, x, *args)
    z = {}
    for group in model.factor_groups():
        z |= dict(zip(group.factors, trace.nodes[f"z{group.suffix}"]["value"].unbind(-3), strict=True))
    return torch.cat([z[factor] for factor in range(len(z))], -1)


def losses(model, x, *args):
    """The library's loss by role, at the same seed."""
    with torch.no_grad():
        return seeded(TraceConjugate_ELBO().loss_per_role, model.model, model.guide, x, *args)


def factor_tables(model, factor, x):
    """E[log p(z | k)] and KL(q(z) || p(z | k)) of one factor, [B, K] each, and E[log π] [K]."""
    loc, scale = (t[:, factor * model.dim : (factor + 1) * model.dim] for t in model.encoder(x))
    c, m, s, a, b = posterior_of(model, factor)
    expected, divergence = [], []
    for k in range(len(c)):
        log_precision = a[k].digamma() - b[k].log()
        square = a[k] / b[k] * ((loc - m[k]) ** 2 + scale**2)
        expected.append(0.5 * (log_precision - math.log(2 * math.pi) - 1 / s[k] - square).sum(-1))
        divergence.append(-0.5 * (2 * scale.log() + log_precision - square - 1 / s[k] + 1).sum(-1))
    return torch.stack(expected, -1), torch.stack(divergence, -1), c.digamma() - c.sum().digamma()


def factor_losses(model, factor, x, labels=None):
    """KL[z] and KL[r] of one factor, [B] each, in nats per point."""
    expected, divergence, log_weights = factor_tables(model, factor, x)
    gamma = (expected + log_weights).softmax(-1)
    if labels is not None and factor in model.labelled:
        y = labels[:, model.labelled.index(factor)]
        gamma = torch.where(
            (y >= 0).unsqueeze(-1), torch.nn.functional.one_hot(y.clamp(min=0), len(log_weights)), gamma
        )
    kl_r = (torch.special.xlogy(gamma, gamma) - gamma * log_weights).sum(-1)
    return (gamma * divergence).sum(-1), kl_r


def global_loss(model, factor, prior):
    """KL of a factor's λ from the hyperprior, by torch's own divergences."""
    c, m, s, a, b = posterior_of(model, factor)
    kl, gamma, dirichlet = (
        torch.distributions.kl_divergence,
        torch.distributions.Gamma,
        torch.distributions.Dirichlet,
    )
    a, s = a.unsqueeze(-1).expand_as(b), s.unsqueeze(-1)
    precision = kl(gamma(a, b), gamma(torch.full_like(b, prior.a0), torch.full_like(b, prior.b0))).sum()
    mean = 0.5 * (prior.s0 * a / b * (m - prior.m0) ** 2 + prior.s0 / s - (prior.s0 / s).log() - 1).sum()
    return kl(dirichlet(c), dirichlet(torch.full_like(c, prior.c0))) + precision + mean


@torch.no_grad()
def brute_force(model, x, labels=None, prior=None):
    """Every line of equation 4 as a loss in nats for N points, at the z of a seeded evaluation."""
    arguments = () if labels is None else (labels,)
    logits = model.decoder(drawn_z(model, x, *arguments)).squeeze(1)
    log_likelihood = -torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    factors = range(len(model.num_components))
    kl_z, kl_r = zip(*(factor_losses(model, factor, x, labels) for factor in factors), strict=True)
    per_point = model.num_data / len(x)
    return {
        Role.RECONSTRUCTION: -per_point * log_likelihood,
        Role.KL_Z: per_point * sum(kl_z).sum(),
        Role.KL_R: per_point * sum(kl_r).sum(),
        Role.KL_GLOBAL: sum(global_loss(model, factor, prior or Hyperprior()) for factor in factors),
        **dict.fromkeys((Role.LABEL, Role.DEPENDENCE, Role.FACTOR), torch.zeros(())),
    }
