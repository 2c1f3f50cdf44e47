"""A small program for the tests of inference, and a brute-force evaluation of its bound."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import nn

from pyro_fmvae.distributions import (
    Assignment,
    Component,
    Label,
    NaturalDirichlet,
    NaturalNormalGamma,
    NormalGamma,
)
from pyro_fmvae.infer.posteriors import NaturalPosterior, param_statements, to_standard

C0, M0, S0, A0, B0 = 0.7, 0.3, 0.6, 1.2, 0.8


def natural_weights(factors, components):
    """λ of q(π): concentrations between 2 and 7."""
    return 2 + 5 * torch.rand(factors, 1, components)


def natural_components(factors, components, dim):
    """λ of q(μ, α) in the layout (λ1, λ4, λ2[D], λ3[D]), equation 12, a > 6 so that moments exist."""
    m = torch.randn(factors, components, dim)
    s, a = (low + 3 * torch.rand(factors, components, 1) for low in (1, 6))
    b = 2 + 3 * torch.rand(factors, components, dim)
    return torch.cat([a - 0.5, -s / 2, -(b + s * m**2 / 2), s * m], -1)


class Toy(nn.Module):
    """I factors of K components in D dimensions, a linear encoder and decoder, x binary of X dimensions."""

    def __init__(self, factors=2, components=3, dim=2, width=5, num_data=20, standard=False):
        super().__init__()
        self.factors, self.components, self.dim, self.num_data = factors, components, dim, num_data
        self.batch_size = None  # of minibatches that the data plate chooses
        self.assigned = None  # makes the guide's own distribution of the assignment
        self.encoder = nn.Linear(width, 2 * factors * dim)
        self.decoder = nn.Linear(factors * dim, width)
        self.weights = NaturalPosterior(NaturalDirichlet, natural_weights(factors, components))
        natural = natural_components(factors, components, dim)
        self.loc_precision = NaturalPosterior(NaturalNormalGamma, natural)
        if standard:
            self.weights, self.loc_precision = to_standard(self.weights), to_standard(self.loc_precision)

    def data(self, size=20):
        return torch.bernoulli(torch.full((size, self.encoder.in_features), 0.5))

    def plates(self, x):
        """The plates, and the batch: x itself, or a part of it that the data plate chooses."""
        if self.batch_size is None:
            data = pyro.plate("data", self.num_data, subsample=x, dim=-1)
        else:
            data = pyro.plate("data", self.num_data, subsample_size=self.batch_size, dim=-1)
            x = x[data.indices]
        factors = pyro.plate("factors", self.factors, dim=-2)
        return x, data, factors, pyro.plate("components", self.components, dim=-1)

    def prior(self):
        return NormalGamma(torch.full((self.dim,), M0), S0, A0, B0)

    def model(self, x, labels=None):
        param_statements("decoder", self.decoder)
        x, data, factors, components = self.plates(x)
        with factors:
            weights = pyro.sample("weights", dist.Dirichlet(torch.full((self.components,), C0)))
            with components:
                loc_precision = pyro.sample("loc_precision", self.prior())
        with data:
            with factors:
                assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
                if labels is not None:
                    pyro.sample("label", Label(assignment), obs=labels)
                z = pyro.sample("z", Component(loc_precision, assignment))
            pyro.sample("x", self.likelihood(z), obs=x)

    def likelihood(self, z):
        logits = self.decoder(z.transpose(-3, -2).flatten(-2))
        if z.dim() > 3:  # particles: [P, 1, B, X]
            logits = logits.unsqueeze(-3)
        return dist.Bernoulli(logits=logits).to_event(1)

    def encode(self, x):
        """Mean and standard deviation of q(z), each [I, B, D]."""
        loc, log_scale = self.encoder(x).unflatten(-1, (2 * self.factors, self.dim)).transpose(0, 1).chunk(2)
        return loc, (0.5 * log_scale).exp()

    def guide(self, x, labels=None):
        param_statements("guide", self.encoder)
        x, data, factors, components = self.plates(x)
        self.sample_globals(factors, components)
        loc, scale = self.encode(x)
        with data, factors:
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))
            if self.assigned is not None:
                pyro.sample("assignment", self.assigned())

    def sample_globals(self, factors, components):
        param_statements("posterior", nn.ModuleList([self.weights, self.loc_precision]))
        with factors:
            pyro.sample("weights", self.weights())
            with components:
                pyro.sample("loc_precision", self.loc_precision())


def globals_of(suffix="", components=3, dim=2):
    """The globals of one mixture without a plate of factors."""
    weights = pyro.sample(f"weights{suffix}", dist.Dirichlet(torch.ones(components)))
    with pyro.plate(f"components{suffix}", components, dim=-1):
        prior = NormalGamma(torch.zeros(dim), 1.0, 1.0, 1.0)
        return weights, pyro.sample(f"loc_precision{suffix}", prior)


class BruteForce:
    """Equations 4a-4e by naive broadcasting over [I, B, K, D]; every attribute is a loss in nats.

    Args:
        toy: the program.
        x: a batch of B points, which stand for N.
        z: the sample that the reconstruction is evaluated at.
        labels: [I, B], -1 where unknown.
    """

    def __init__(self, toy, x, z, labels=None, kl_weight=1.0, gamma=None):
        self.scale = toy.num_data / len(x)
        loc, scale = toy.encode(x)
        m, s, a, b = standard(toy.loc_precision.natural_value())
        c = toy.weights.natural_value().squeeze(-2)
        self.log_weights = (c.digamma() - c.sum(-1, keepdim=True).digamma()).unsqueeze(1)  # [I, 1, K]
        gap = (loc.unsqueeze(-2) - m.unsqueeze(1)).square()  # [I, B, K, D]
        variance = scale.square().unsqueeze(-2)
        s, a, b = s[:, None, :, None], a[:, None, :, None], b.unsqueeze(1)
        square = a / b * (gap + variance)
        self.expected = 0.5 * (a.digamma() - b.log() - math.log(2 * math.pi) - 1 / s - square).sum(-1)  # [6]
        divergence = -0.5 * (variance.log() + a.digamma() - b.log() - square - 1 / s + 1).sum(-1)
        self.entropy = (0.5 * math.log(2 * math.pi * math.e) + scale.log()).sum(-1)  # [I, B]
        self.logits = (kl_weight * self.expected + self.log_weights).detach()
        if gamma is None:
            gamma = self.logits.softmax(-1)
            if labels is not None:
                known = torch.nn.functional.one_hot(labels.clamp(min=0), toy.components).to(gamma)
                gamma = torch.where(labels.unsqueeze(-1) >= 0, known, gamma)
        self.gamma = gamma
        self.kl_z_of_points = (gamma * divergence).sum(-1)  # [I, B]
        self.kl_r_of_points = (gamma * (gamma.clamp(min=1e-300).log() - self.log_weights)).sum(-1)
        self.kl_z = self.scale * self.kl_z_of_points.sum()
        self.kl_r = self.scale * self.kl_r_of_points.sum()
        logits = toy.decoder(z.transpose(0, 1).flatten(1))
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        self.reconstruction = self.scale * bce(logits, x, reduction="sum")
        self.kl_weights, self.kl_components = self.global_divergences(toy)

    @staticmethod
    def global_divergences(toy):
        """By torch's own Dirichlet and Gamma divergences, and that of Normals given the precision."""
        c = toy.weights.natural_value()
        dirichlet = torch.distributions.Dirichlet
        kl_weights = torch.distributions.kl_divergence(dirichlet(c), dirichlet(torch.full_like(c, C0))).sum()
        m, s, a, b = standard(toy.loc_precision.natural_value())
        s, a = (t.unsqueeze(-1).expand_as(m) for t in (s, a))
        gamma = torch.distributions.Gamma
        prior = gamma(torch.full_like(a, A0), torch.full_like(b, B0))
        kl_precision = torch.distributions.kl_divergence(gamma(a, b), prior).sum()
        kl_mean = 0.5 * (S0 * a / b * (m - M0) ** 2 + S0 / s - (S0 / s).log() - 1).sum()
        return kl_weights, kl_precision + kl_mean

    @property
    def per_site(self):
        return {
            "x": self.reconstruction,
            "z": self.kl_z,
            "assignment": self.kl_r,
            "weights": self.kl_weights,
            "loc_precision": self.kl_components,
        }

    @property
    def total(self):
        return sum(self.per_site.values())

    def optimum(self, x, toy):
        """λ* of equation 13, for weights [I, 1, K] and loc_precision [I, K, 2D+2]."""
        loc, scale = (t.detach() for t in toy.encode(x))
        gamma = self.scale * self.gamma
        count = gamma.sum(1).unsqueeze(-1)  # [I, K, 1]
        moments = [(gamma.unsqueeze(-1) * t.unsqueeze(2)).sum(1) for t in (loc, loc**2 + scale**2)]
        parts = (
            A0 + count / 2 - 0.5,
            -(S0 + count) / 2,
            -(B0 + S0 * M0**2 / 2 + moments[1] / 2),
            S0 * M0 + moments[0],
        )
        return (C0 + count).mT, torch.cat(parts, -1)


def standard(natural):
    """(m, s, a, b) from λ, equation 12 read backwards."""
    dim = natural.shape[-1] // 2 - 1
    first, fourth, second, third = natural.split([1, 1, dim, dim], -1)
    s = -2 * fourth
    m = third / s
    return m, s.squeeze(-1), first.squeeze(-1) + 0.5, -second - s * m**2 / 2


def seeded(function, *args, seed=3, **kwargs):
    """Call a function with the random numbers of a seed."""
    pyro.set_rng_seed(seed)
    return function(*args, **kwargs)


def draw_z(elbo, model, guide, *args):
    """The z that a seeded evaluation of the loss draws."""
    with torch.no_grad():
        _, guide_trace = seeded(elbo.trace, model, guide, *args)
    return guide_trace.nodes["z"]["value"]


def bound(toy, elbo, x, **kwargs):
    """The brute-force bound at the z of a seeded evaluation."""
    return BruteForce(toy, x, draw_z(elbo, toy.model, toy.guide, x), **kwargs)


def gradients(loss, module):
    """Gradients by name; None where the loss does not depend on a parameter."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return dict(zip(names, grads, strict=True))


class Adjust(poutine.messenger.Messenger):
    """Multiplies the scale of some sites, or masks them."""

    def __init__(self, names, scale=1.0, mask=None):
        super().__init__()
        self.names, self.scale, self.mask = names, scale, mask

    def _pyro_sample(self, msg):
        if msg["name"] in self.names:
            msg["scale"] = msg["scale"] * self.scale
            msg["mask"] = self.mask


def nodes(program, *args, **kwargs):
    return poutine.trace(program).get_trace(*args, **kwargs).nodes


def estimate(evaluate, runs=40):
    """Mean and standard error of a random tensor."""
    values = torch.stack([torch.as_tensor(evaluate()) for _ in range(runs)])
    return values.mean(0), values.std(0) / runs**0.5


def assert_equal_in_expectation(one, other, sigmas=4.5):
    """Two estimates agree within their standard errors, in every entry."""
    (mean, error), (other_mean, other_error) = one, other
    gap = (mean - other_mean).abs()
    assert (gap <= sigmas * (error**2 + other_error**2).sqrt()).all(), f"{gap} against {error}, {other_error}"
