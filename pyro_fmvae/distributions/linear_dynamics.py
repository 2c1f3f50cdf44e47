"""Linear dynamical systems as distributions of whole sequences, of states and of what is observed of them.

Ghahramani and Hinton (1996), Parameter estimation for linear dynamical systems; Beal (2003), Variational
algorithms for approximate Bayesian inference, Chapter 5, where parameters have posteriors; Johnson et al.
(2016), Composing graphical models with neural networks for structured representations and fast inference.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.utils import lazy_property
from torch.nn.functional import pad

from pyro_fmvae.distributions.chain import check_duration, check_lengths
from pyro_fmvae.distributions.chunks import Sequences, cut, masks_of
from pyro_fmvae.distributions.columns import is_masked
from pyro_fmvae.distributions.gaussian_chain import GaussianChain, GaussianChunks, GaussianPath
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

_VAGUE = 1e-3  # of the precision of the initial state, where a chunk begins in the middle of its sequence


class LinearDynamics(Sequences):
    """Sequences of states z_1 … z_T, with z_t+1 = A z_t + noise.

    In a plain program, A and the noise may have conjugate posteriors. The states may be those behind a
    network, or be integrated out in closed form: see
    :class:`~pyro_fmvae.distributions.LinearGaussianChain`.

    Args:
        initial: distribution of the first state, with an event [D].
        matrix: A, [..., D, D].
        noise: with an event [D]. Its last batch dimension, if any, is 1 or T - 1: means may depend on known
            inputs.
        duration: T, the length of the longest sequence.
        lengths: of each sequence, int64 [...], if they differ. States after the end are standard normal;
            under ``TraceConjugate_ELBO``, they do not count.

    Both distributions are a ``MultivariateNormal`` or ``Normal(...).to_event(1)``.

    Shapes: the event is [T, D].

    Raises:
        ValueError: shapes do not fit, a distribution is of another kind or masked, or (with validation on) a
            length is not in 1 … T.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.independent(constraints.real, 2)

    def __init__(
        self,
        initial: Distribution,
        matrix: Tensor,
        noise: Distribution,
        duration: int,
        lengths: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        event = initial.event_shape
        if len(event) != 1 or matrix.shape[-2:] != (*event, *event) or noise.event_shape != event:
            raise ValueError(
                "initial, matrix, noise: expected an event [D], a matrix [..., D, D] and an event [D], got "
                f"{list(event)}, {list(matrix.shape)} and {list(noise.event_shape)}"
            )
        check_duration(duration)
        for name, fn in (("initial", initial), ("noise", noise)):
            check_gaussian(name, fn)
            if is_masked(fn):
                raise ValueError(
                    f"{name}: expected a density of every state, got a masked distribution; mask what is "
                    "observed of the states"
                )
        batch = broadcast_shape(
            initial.batch_shape,
            matrix.shape[:-2],
            batch_of(noise, duration - 1),
            () if lengths is None else lengths.shape,
        )
        self.initial, self.matrix, self.noise = initial, matrix, noise
        self.lengths, self.spans = lengths, None
        super().__init__(batch, (duration, *event), validate_args=validate_args)
        if self._validate_args and lengths is not None:
            check_lengths(lengths, duration)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the parameters stay the tensors that were given."""
        new: Any = self._get_checked_instance(LinearDynamics, _instance)
        new.initial, new.matrix, new.noise = self.initial, self.matrix, self.noise
        new.lengths, new.spans = self.lengths, self.spans
        super(LinearDynamics, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def chain(self, number: Number = itself, density: Density = log_density) -> GaussianChain:
        """The weights of the states' paths, which are :class:`GaussianChunks` for chunks.

        Where a chunk does not begin its sequence, little is known of its first state: its distribution is the
        initial one, with a covariance that is a thousand times as large.

        Args:
            number: gives the expectation of what is computed of values that are not there.
            density: gives the log-density of a value under a distribution, or its expectation.
        """
        tables, masks = self._tables(number, density), self.masks
        if masks is None:
            return self._weights(tables)
        begins, there, counts = masks
        start = begins + _VAGUE * (1 - begins)
        whole = _with_end(self._weights(tables, start, there[..., 1:, :, :]), there)
        if self.spans is None:
            return whole
        part = self._weights(tables, begins * counts[..., :1, :, :], counts[..., 1:, :, :])
        return GaussianChunks(**vars(whole), counts=counts[..., 0, 0], part=part)

    @property
    def masks(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Masks of the steps of chunks, or of sequences with lengths: see :func:`masks_of`."""
        spans = self.all_spans
        return None if spans is None else masks_of(spans, self.event_shape[0])

    def without_ends(self) -> "LinearDynamics":
        """Sequences of the same lengths, each of which is a chunk: states after the end have no density."""
        new: LinearDynamics = self.expand(self.batch_shape)
        new.lengths, new.spans = None, self.all_spans
        return new

    def _tables(self, number: Number, density: Density) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weights of the first state and of moves, float64 [..., 1, M, N] and [..., T - 1, M, N]."""
        (duration, dim), matrix = self.event_shape, by_step(self.matrix)
        start, noise = GaussianNoise.of(self.initial), GaussianNoise.of(self.noise)
        scaled, nothing = noise.times(matrix), self.matrix.new_zeros(1, dim)
        moves = (
            noise.matrix(number),
            number(matrix.mT @ scaled),
            number(scaled),
            number(noise.times(noise.loc.unsqueeze(-1))),
            number(scaled.mT @ noise.loc.unsqueeze(-1)),
            density(self.noise, nothing)[..., None, None],
        )
        first = (
            start.matrix(number),
            number(start.times(start.loc.unsqueeze(-1))),
            density(self.initial, nothing[0])[..., None, None],
        )
        return tuple(table.double().unsqueeze(-3) for table in first), tuple(
            table.double().expand(*table.shape[:-3], duration - 1, *table.shape[-2:]) for table in moves
        )

    def _weights(
        self,
        tables: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
        start: Tensor | float = 1.0,
        goes_on: Tensor | float = 1.0,
    ) -> GaussianChain:
        """The weights that tables stand for, multiplied by numbers [..., 1, 1, 1] and [..., T - 1, 1, 1]."""
        later = self.event_shape[0] - 1
        own_first, linear_first, constant_first = (start * table for table in tables[0])
        own, before, link, ahead, behind, constant = (goes_on * table for table in tables[1])
        precision = _sum(_padded(own_first, 0, later), _padded(own, 1, 0), _padded(before, 0, 1))
        linear = _sum(_padded(linear_first, 0, later), _padded(ahead, 1, 0), -_padded(behind, 0, 1))
        total = constant_first.sum((-3, -2, -1)) + constant.sum((-3, -2, -1))
        return GaussianChain(precision, link, linear.squeeze(-1), total)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of states [..., T, D]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        density = self.chain().log_weight(value).to(torch.promote_types(value.dtype, self.matrix.dtype))
        return density.expand(broadcast_shape(density.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw states, of the full duration: [*sample_shape, ..., T, D]."""
        shape, duration = torch.Size((*sample_shape, *self.batch_shape)), self.event_shape[0]
        path = [self.initial.expand(shape).sample()]
        for noise in self.noise.expand((*shape, duration - 1)).sample().unbind(-2):
            path.append((self.matrix @ path[-1].unsqueeze(-1)).squeeze(-1) + noise)
        return torch.stack(path, -2)


@register_kl(GaussianPath, LinearDynamics)
def _kl(path: GaussianPath, dynamics: LinearDynamics) -> Tensor:
    return -path.entropy() - dynamics.chain().mean_log_weight(path.chain).to(path.dtype)


def _with_end(chain: GaussianChain, there: Tensor) -> GaussianChain:
    """Weights by which states after the end are standard normal; there are steps [..., T, 1, 1]."""
    over, dim = 1 - there, chain.linear.shape[-1]
    total = -0.5 * dim * math.log(2 * math.pi) * over.sum((-3, -2, -1))
    return chain.times(
        over * torch.eye(dim, dtype=over.dtype, device=over.device), torch.zeros_like(chain.linear), total
    )


def _padded(table: Tensor, before: int, after: int) -> Tensor:
    """A table [..., S, M, N] with rows of 0 for further steps."""
    return pad(table, (0, 0, 0, 0, before, after))


def _sum(*tables: Tensor) -> Tensor:
    return sum(tables[1:], tables[0])


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
