"""The factorial mixture prior VAE in Pyro's own distributions, for Pyro's own ELBOs, in three ways.

All three are vectorised, with plates for factors, components and data. They draw the mixture's parameters
from a guide in standard parameters, which one Adam learns together with the networks:

    π_i ~ Dirichlet(c),  α_ikd ~ Gamma(a_ik, b_ikd),  μ_ikd | α_ikd ~ Normal(m_ikd, 1 / (s_ik α_ikd))

This is the library's family, so that bounds can be compared to the last digit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from start import Setting
from torch import Tensor, nn

from pyro_fmvae.distributions import DIRICHLET, NORMAL_GAMMA
from pyro_fmvae.infer import param_statements
from pyro_fmvae.models import FactorialMixtureVAE


class StandardPosterior(nn.Module):
    """q of the mixture's parameters, initialised from a model's λ.

    Args:
        model: model with one group of factors.
    """

    def __init__(self, model: FactorialMixtureVAE) -> None:
        super().__init__()
        (group,) = model.factor_groups()
        dtype = torch.get_default_dtype()
        m, s, a, b = (t.to(dtype) for t in NORMAL_GAMMA.unpack(group.loc_precision.natural_value()))
        self.log_counts = nn.Parameter(group.weights.natural_value().to(dtype).log())  # [I, 1, K]
        self.loc = nn.Parameter(m.clone())  # [I, K, D], as log_rate
        self.log_mean_count = nn.Parameter(s.log().unsqueeze(-1))  # [I, K, 1], as log_shape
        self.log_shape = nn.Parameter(a.log().unsqueeze(-1))
        self.log_rate = nn.Parameter(b.log())

    def weights(self) -> dist.Dirichlet:
        """q(π)."""
        return dist.Dirichlet(self.log_counts.exp())

    def precision(self) -> dist.Distribution:
        """q(α)."""
        return dist.Gamma(self.log_shape.exp(), self.log_rate.exp()).to_event(1)

    def location(self, precision: Tensor) -> dist.Distribution:
        """q(μ | α)."""
        return dist.Normal(self.loc, (self.log_mean_count.exp() * precision).rsqrt()).to_event(1)

    def standard(self) -> tuple[Tensor, ...]:
        """(c, m, s, a, b)."""
        s, a = self.log_mean_count.exp(), self.log_shape.exp()
        return self.log_counts.exp(), self.loc, s, a, self.log_rate.exp()

    @torch.no_grad()
    def write_to(self, model: FactorialMixtureVAE) -> None:
        """Give the model this posterior, in natural parameters."""
        c, m, s, a, b = (t.double() for t in self.standard())
        (group,) = model.factor_groups()
        group.set_natural(c, NORMAL_GAMMA.natural(m, s.squeeze(-1), a.squeeze(-1), b))

    @torch.no_grad()
    def responsibilities(self, mean: Tensor, std: Tensor) -> Tensor:
        """Logits of the optimal q(r) from expected statistics, equation 5: [I, B, K]."""
        c, m, s, a, b = self.standard()
        precision = a / b
        log_precision = (torch.digamma(a) - b.log()).sum(-1)
        square = m.shape[-1] / s.squeeze(-1) + (precision * m.square()).sum(-1)
        constant = 0.5 * (log_precision - square - m.shape[-1] * math.log(2 * math.pi))
        pairs = mean @ (precision * m).mT - 0.5 * (mean.square() + std.square()) @ precision.mT
        return DIRICHLET.mean_stats(c) + constant.unsqueeze(-2) + pairs


class PlainProgram(ABC):
    """The common part of the three programs; they differ in how z depends on its mixture.

    Args:
        model: gives initial values, hyperprior and networks; the networks are shared, not copied.
        compiled: True to compile encoder and decoder.
        prior_only: True to learn the mixture alone, without x and the decoder and with a fixed encoder.
    """

    name: str

    def __init__(self, model: FactorialMixtureVAE, compiled: bool = False, prior_only: bool = False) -> None:
        (self.group,) = model.factor_groups()
        self.source, self.prior_only = model, prior_only
        self.posterior = StandardPosterior(model).to(self.group.device)
        self.encode: Callable = torch.compile(model.encoder, dynamic=False) if compiled else model.encoder
        self.decode: Callable = torch.compile(model.decoder, dynamic=False) if compiled else model.decoder
        h = self.group.hyperprior
        self.hyper = {name: torch.tensor(getattr(h, name), device=self.group.device) for name in vars(h)}
        self.factors = pyro.plate("factors", len(self.group.factors), dim=-2)
        self.components = pyro.plate("components", self.group.num_components, dim=-1)
        self.factor = torch.arange(len(self.group.factors), device=self.group.device).unsqueeze(-1)

    @staticmethod
    @abstractmethod
    def elbo() -> ELBO:
        """The loss for this program."""

    @staticmethod
    def numbers(setting: Setting) -> int:
        """Approximate peak number of values in memory during a step: nine tensors of B·I·K·D."""
        return 9 * setting.B * setting.I * setting.K * setting.D

    @abstractmethod
    def latent(self, weights: Tensor, loc: Tensor, precision: Tensor) -> Tensor:
        """Sample z [I, B, D] in the model, given π [I, 1, K], μ and α [I, K, D]."""

    def assign(self, mean: Tensor, std: Tensor) -> None:  # noqa: B027 - most guides have no assignment
        """Sample the assignment in the guide, if it has one; mean and std of q(z) are [I, B, D]."""

    def _data(self, x: Tensor) -> pyro.plate:
        size = self.source.num_data
        return pyro.plate("data", size, subsample=torch.arange(len(x), device=x.device), dim=-1)

    def model(self, x: Tensor) -> None:
        """The generative model, equations 1 and 2."""
        data, h = self._data(x), self.hyper
        with self.factors:
            counts = h["c0"].expand(self.group.num_components)
            weights = pyro.sample("weights", dist.Dirichlet(counts))
            with self.components:
                shape, rate = (h[name].expand(self.group.dim) for name in ("a0", "b0"))
                precision = pyro.sample("precision", dist.Gamma(shape, rate).to_event(1))
                loc = pyro.sample("loc", dist.Normal(h["m0"], (h["s0"] * precision).rsqrt()).to_event(1))
        with data, self.factors:
            z = self.latent(weights, loc, precision)
        if self.prior_only:
            return
        param_statements("decoder", self.source.decoder)
        with data:
            logits = self.decode(z.transpose(-3, -2).flatten(-2)).squeeze(-3)
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(2), obs=x)

    def guide(self, x: Tensor) -> None:
        """The posterior approximation, equation 3."""
        param_statements("posterior", self.posterior)
        if self.prior_only:
            with torch.no_grad():
                encoded = self.encode(x)
        else:
            param_statements("encoder", self.source.encoder)
            encoded = self.encode(x)
        data = self._data(x)
        with self.factors:
            pyro.sample("weights", self.posterior.weights())
            with self.components:
                precision = pyro.sample("precision", self.posterior.precision())
                pyro.sample("loc", self.posterior.location(precision))
        mean, std = (t.unflatten(-1, (-1, self.group.dim)).transpose(0, 1) for t in encoded)
        with data, self.factors:
            pyro.sample("z", dist.Normal(mean, std).to_event(1))
            self.assign(mean, std)


class AssignmentInModel(PlainProgram):
    """r is enumerated in the model only: the bound has log Σ_k π_k N(z; μ_k, 1/α_k)."""

    name = "TraceEnum (assignment in the model)"

    @staticmethod
    def elbo() -> ELBO:
        return TraceEnum_ELBO(max_plate_nesting=2)

    def latent(self, weights: Tensor, loc: Tensor, precision: Tensor) -> Tensor:
        assignment = pyro.sample("assignment", dist.Categorical(weights), infer={"enumerate": "parallel"})
        mean, scale = Vindex(loc)[self.factor, assignment], Vindex(precision.rsqrt())[self.factor, assignment]
        return pyro.sample("z", dist.Normal(mean, scale).to_event(1))


class AssignmentInGuide(AssignmentInModel):
    """r is enumerated in the guide, at its optimal probabilities: the bound of ``TraceConjugate_ELBO``.

    Pyro looks up the model's log π at the guide's values by ``gather``, whose gradient has B·I·K·K numbers.
    (A site that enumerates its own values avoids this.)
    """

    name = "TraceEnum (assignment in the guide)"

    @staticmethod
    def numbers(setting: Setting) -> int:
        return PlainProgram.numbers(setting) + setting.B * setting.I * setting.K**2

    def assign(self, mean: Tensor, std: Tensor) -> None:
        logits = self.posterior.responsibilities(mean, std)
        pyro.sample("assignment", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})


class MixtureDensity(PlainProgram):
    """No r: z has the density of the mixture. The bound is that of :class:`AssignmentInModel`."""

    name = "Trace_ELBO MixtureSameFamily"

    @staticmethod
    def elbo() -> ELBO:
        return Trace_ELBO()

    def latent(self, weights: Tensor, loc: Tensor, precision: Tensor) -> Tensor:
        components = dist.Normal(loc.unsqueeze(-3), precision.rsqrt().unsqueeze(-3)).to_event(1)
        return pyro.sample("z", dist.MixtureSameFamily(dist.Categorical(weights), components))


PROGRAMS: tuple[type[PlainProgram], ...] = (AssignmentInModel, AssignmentInGuide, MixtureDensity)
