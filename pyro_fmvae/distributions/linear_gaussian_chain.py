"""Sequences of observations of states with linear dynamics, and the states behind them.

Ghahramani and Hinton (1996), Parameter estimation for linear dynamical systems; Johnson et al. (2016),
Composing graphical models with neural networks for structured representations and fast inference.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property

from pyro_fmvae.distributions.chunks import cut
from pyro_fmvae.distributions.gaussian_chain import GaussianChain, GaussianChunks, GaussianPath
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics
from pyro_fmvae.distributions.observation import (
    Density,
    GaussianNoise,
    Number,
    batch_of,
    by_step,
    check_gaussian,
    itself,
    log_density,
)


class LinearGaussianChain(TorchDistribution):
    """Sequences of observations x_t = C z_t + noise of states with linear dynamics, which are integrated out.

    In a plain program, all matrices and both noises may have conjugate posteriors: ``TraceConjugate_ELBO``
    takes the expectation of each quadratic function, and integrates over the states by Kalman smoothing. ::

        with pyro.plate("rows", D):
            a = pyro.sample("a", dist.MultivariateNormal(torch.zeros(D), torch.eye(D)))
            moves = pyro.sample("moves", dist.Gamma(2.0, 1.0))
        ...
        states = LinearDynamics(first, a, dist.Normal(0.0, moves.rsqrt()).to_event(1), x.shape[1])
        with pyro.plate("sequences", len(x)):
            pyro.sample("x", LinearGaussianChain(states, c, dist.Normal(0.0, scale).to_event(1)), obs=x)

    Args:
        dynamics: of the states, [T, D].
        matrix: C, [..., X, D].
        noise: with an event [X], of the kinds that :class:`LinearDynamics` takes. Its last batch dimension,
            if any, is 1 or T. Mask it, or the normal distributions in it, where observations are missing.

    Shapes: the event is [T, X].

    Raises:
        ValueError: shapes do not fit, or the noise is of another kind.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.independent(constraints.real, 2)

    def __init__(
        self,
        dynamics: LinearDynamics,
        matrix: Tensor,
        noise: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        duration, dim = dynamics.event_shape
        event = noise.event_shape
        if len(event) != 1 or matrix.shape[-2:] != (*event, dim):
            raise ValueError(
                f"matrix, noise: expected a matrix [..., X, {dim}] and an event [X], got "
                f"{list(matrix.shape)} and {list(event)}"
            )
        check_gaussian("noise", noise)
        batch = broadcast_shape(dynamics.batch_shape, matrix.shape[:-2], batch_of(noise, duration))
        self.dynamics, self.matrix, self.noise = dynamics, matrix, noise
        super().__init__(batch, (duration, *event), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the parameters stay the tensors that were given."""
        new: Any = self._get_checked_instance(LinearGaussianChain, _instance)
        new.dynamics, new.matrix, new.noise = self.dynamics, self.matrix, self.noise
        super(LinearGaussianChain, new).__init__(
            torch.Size(batch_shape), self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    chunks = staticmethod(cut)

    def of_chunks(self, spans: Tensor) -> "LinearGaussianChain":
        """Observations of states in chunks: see :meth:`LinearDynamics.of_chunks`."""
        new = LinearGaussianChain(
            self.dynamics.of_chunks(spans), self.matrix, self.noise, self._validate_args
        )
        chunks: LinearGaussianChain = new.expand(broadcast_shape(self.batch_shape, new.batch_shape))
        return chunks

    def chain(self, value: Tensor, number: Number = itself, density: Density = log_density) -> GaussianChain:
        """The weights of the states' paths, given observations [..., T, X]: see :class:`LinearDynamics`."""
        noise, matrix = GaussianNoise.of(self.noise), by_step(self.matrix)
        scaled = noise.times(matrix)
        tables = (
            number(matrix.mT @ scaled).double(),
            number((value - noise.loc).unsqueeze(-2) @ scaled).double(),
            density(self.noise, value)[..., None, None].double(),
        )
        _, there, counts = self.dynamics.masks or (1.0, 1.0, 1.0)
        whole = self.dynamics.chain(number, density).times(*_observation_weights(tables, there))
        if isinstance(whole, GaussianChunks):
            return replace(whole, part=whole.part.times(*_observation_weights(tables, counts)))
        return whole

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of sequences [..., T, X]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        evidence = self.chain(value).log_evidence().to(torch.promote_types(value.dtype, self.matrix.dtype))
        return evidence.expand(broadcast_shape(evidence.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw sequences, of the full duration: [*sample_shape, ..., T, X]."""
        states = self.dynamics.expand(self.batch_shape).sample(sample_shape)
        mean = (by_step(self.matrix) @ states.unsqueeze(-1)).squeeze(-1)
        return mean + self.noise.expand(mean.shape[:-1]).sample()

    def states(self, value: Tensor) -> "SmoothedStates":
        """The distribution of the states, given observations [..., T, X] that need not be a site's.

        Raises:
            ValueError: observations of another shape.
        """
        return SmoothedStates(self, value)


def _observation_weights(tables: tuple[Tensor, ...], there: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of states by observations at some steps, as :meth:`GaussianChain.times` takes them."""
    precision, linear, constant = (there * table for table in tables)
    return precision, linear.squeeze(-2), constant.sum((-3, -2, -1))


class SmoothedStates(GaussianPath):
    """The states behind observations, as :meth:`LinearGaussianChain.states` gives them.

    In the guide of a program whose dynamics have conjugate posteriors, they are the states under expected
    log-densities (Johnson et al., 2016, Composing graphical models with neural networks, Section 4)::

        def guide(x):
            values = conjugate(x)  # AutoConjugate(model, fallback=None)
            loc, scale = encoder(x)
            seen = LinearGaussianChain(dynamics(values), torch.eye(D), dist.Normal(0.0, scale).to_event(1))
            with pyro.plate("sequences", N, subsample=x):
                pyro.sample("z", seen.states(loc))

    Args:
        observed: distribution of the observations.
        value: observations, [..., T, X].

    Shapes: the event is [T, D].

    Raises:
        ValueError: observations of another shape.
    """

    def __init__(self, observed: LinearGaussianChain, value: Tensor) -> None:
        if value.shape[-2:] != observed.event_shape:
            raise ValueError(
                f"value: expected shape [..., {', '.join(map(str, observed.event_shape))}], got "
                f"{list(value.shape)}"
            )
        self.observed, self.value, self.dtype = observed, value, value.dtype
        batch = broadcast_shape(observed.batch_shape, value.shape[:-2])
        TorchDistribution.__init__(self, batch, observed.dynamics.event_shape, validate_args=False)

    @lazy_property
    def chain(self) -> GaussianChain:
        """The weights of the states' paths."""
        return self.observed.chain(self.value)

    def expected(self, number: Number, density: Density) -> GaussianPath:
        """The states under expectations: see :meth:`LinearDynamics.chain`."""
        return GaussianPath(self.observed.chain(self.value, number, density), self.dtype).expand(
            self.batch_shape
        )

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the observations stay the tensor that was given."""
        new: Any = self._get_checked_instance(SmoothedStates, _instance)
        new.observed, new.value, new.dtype = self.observed, self.value, self.dtype
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new
