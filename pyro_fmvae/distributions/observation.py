"""Observation models: distributions of data given a decoder's output."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints


class Observation(ABC):
    """A family of densities p(x | features) over data points of ``event_dim`` dimensions.

    Args:
        event_dim: number of dimensions of one data point, for example 2 for an image of shape (H, W).

    Attributes:
        outputs: numbers that the decoder gives per element of a data point.
    """

    outputs: int

    def __init__(self, event_dim: int) -> None:
        if event_dim < 1:
            raise ValueError(f"event_dim: expected a number of dimensions >= 1, got {event_dim}")
        self.event_dim = event_dim

    @abstractmethod
    def __call__(self, features: Tensor) -> Distribution:
        """The density of x for a decoder's ``features``, shape [..., outputs, *event_shape]."""

    def explained(self, x: Tensor) -> Tensor:
        """The part of data points ``[..., *event_shape]`` that has a density: all, unless some is given."""
        return x

    def density(self, decoder: Callable[..., Tensor], z: Tensor, x: Tensor) -> Distribution:
        """p(x | z), the density of what is :meth:`explained`.

        Args:
            decoder: gives the features.
            z: [..., latent_dim].
            x: the data points themselves, of which an observation model may take a part as given.
        """
        return self(decoder(z))

    @abstractmethod
    def mean(self, features: Tensor) -> Tensor:
        """E[x], shape [..., *event_shape]."""

    @abstractmethod
    def std(self, features: Tensor) -> Tensor:
        """Standard deviation of each element of x, shape [..., *event_shape]."""

    @abstractmethod
    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Features ``[..., outputs, *event_shape]`` of about this mean and standard deviation."""

    def _split(self, features: Tensor) -> tuple[Tensor, ...]:
        """The decoder's numbers, each [..., *event_shape].

        Raises:
            ValueError: ``features`` of another number of them.
        """
        if features.dim() <= self.event_dim or features.shape[-self.event_dim - 1] != self.outputs:
            event = ", ".join(["...", str(self.outputs), *"?" * self.event_dim])
            raise ValueError(f"features: expected shape [{event}], got {list(features.shape)}")
        return features.unbind(-self.event_dim - 1)


class BernoulliObservation(Observation):
    """Binary data with independent elements; the decoder gives logits."""

    outputs = 1

    def __call__(self, features: Tensor) -> Distribution:
        """Bernoulli(logits), elements independent."""
        (logits,) = self._split(features)
        return _Bernoulli(logits=logits).to_event(self.event_dim)

    def mean(self, features: Tensor) -> Tensor:
        """The probabilities."""
        (logits,) = self._split(features)
        return logits.sigmoid()

    def std(self, features: Tensor) -> Tensor:
        """Square root of p(1 - p)."""
        mean = self.mean(features)
        return (mean * (1 - mean)).sqrt()

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Logits of the mean, clipped to 0.01 and 0.99; the standard deviation follows from it."""
        return mean.clamp(0.01, 0.99).logit().unsqueeze(-self.event_dim - 1)


COLUMN_SCALES: Final = (0.05, 2.0)
"""Bounds of the standard deviation of standardised columns."""


class GaussianObservation(Observation):
    """Real data with independent elements; the decoder gives means and logits of bounded standard deviations.

    Args:
        event_dim: number of dimensions of one data point.
        min_scale, max_scale: bounds of the standard deviation, a scaled sigmoid (Paquet et al., 2018,
            Section 4.2, use 0.001 and 0.4 for pixels in [-1, 1]).

    Raises:
        ValueError: the bounds are not 0 < min_scale < max_scale.
    """

    outputs = 2

    def __init__(self, event_dim: int, min_scale: float = 0.001, max_scale: float = 0.4) -> None:
        super().__init__(event_dim)
        if not 0 < min_scale < max_scale:
            raise ValueError(
                f"min_scale, max_scale: expected 0 < min_scale < max_scale, got {min_scale} and {max_scale}"
            )
        self.min_scale, self.max_scale = min_scale, max_scale

    def __call__(self, features: Tensor) -> Distribution:
        """Normal(mean, scale), elements independent."""
        mean, logits = self._split(features)
        return _Normal(mean, self._scale(logits)).to_event(self.event_dim)

    def mean(self, features: Tensor) -> Tensor:
        """The first of the decoder's two numbers."""
        return self._split(features)[0]

    def std(self, features: Tensor) -> Tensor:
        """The second one, squashed between the bounds."""
        return self._scale(self._split(features)[1])

    def _scale(self, logits: Tensor) -> Tensor:
        return self.min_scale + (self.max_scale - self.min_scale) * torch.sigmoid(logits)

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """The mean, and a standard deviation that keeps away from the bounds by a tenth of their distance."""
        share = (std - self.min_scale) / (self.max_scale - self.min_scale)
        return torch.stack([mean, share.clamp(0.1, 0.9).logit()], -self.event_dim - 1)


class _Normal(dist.Normal):
    """A normal distribution whose log-density goes through memory half as often: images have many pixels."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        log_prob: Tensor = _NormalLogProb.apply(value, self.loc, self.scale)
        return log_prob


class _Bernoulli(dist.Bernoulli):
    """A Bernoulli distribution of logits whose log-density takes a third of the time of torch's on a CPU."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        log_prob: Tensor = _BernoulliLogProb.apply(value, self.logits)
        return log_prob


class _BernoulliLogProb(torch.autograd.Function):
    """One node: x l - log(1 + exp(l)), with gradients l and x - σ(l).

    torch takes ``log1p``, eight times slower than ``log``. Rounding 1 + exp(-|l|), as ``log`` needs, is an
    absolute error of 6e-8 in float32.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, logits: Tensor) -> Tensor:
        ctx.save_for_backward(value, logits)
        beyond = logits.abs().neg_().exp_().add_(1).log_()
        return logits * (value - (logits > 0).to(logits)) - beyond

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, logits = ctx.saved_tensors
        to_value = (grad * logits).sum_to_size(value.shape) if ctx.needs_input_grad[0] else None
        return to_value, (grad * (value - logits.sigmoid())).sum_to_size(logits.shape)


class _NormalLogProb(torch.autograd.Function):
    """One node, differentiated by hand.

    With r = (value - loc) / scale, the gradients are -r / scale, r / scale and (r² - 1) / scale.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        inverse = scale.reciprocal()
        residual = (value - loc) * inverse
        ctx.save_for_backward(residual, inverse)
        ctx.shapes = value.shape, loc.shape, scale.shape
        return torch.addcmul(inverse.log() - 0.5 * math.log(2 * math.pi), residual, residual, value=-0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, inverse = ctx.saved_tensors
        weight = grad * inverse
        to_loc = residual * weight
        grads = -to_loc if ctx.needs_input_grad[0] else None, to_loc, to_loc * residual - weight
        return tuple(
            None if each is None else each.sum_to_size(shape)
            for each, shape in zip(grads, ctx.shapes, strict=True)
        )


class TableObservation(GaussianObservation):
    """Rows of numbers and categories, independent given the features, of which any may be missing (NaN).

    The decoder gives one list of numbers: the means of the columns of numbers, logits of their standard
    deviations, and logits of the categories of each other column.

    Args:
        levels: number of categories of each column [D]; 0 for a column of numbers.
        min_scale, max_scale: as for :class:`GaussianObservation`.
    """

    outputs = 1

    def __init__(self, levels: Sequence[int], min_scale: float, max_scale: float) -> None:
        super().__init__(1, min_scale, max_scale)
        self.levels = tuple(levels)
        self.numbers = [column for column, size in enumerate(levels) if not size]
        self.words = [column for column, size in enumerate(levels) if size]
        self.most = max(levels)

    @property
    def width(self) -> int:
        """How many numbers the decoder gives."""
        return 2 * len(self.numbers) + sum(self.levels)

    def explained(self, x: Tensor) -> Tensor:
        """Rows [..., D], with 0 where an entry is missing."""
        return x.nan_to_num(0.0)

    def density(self, decoder: Callable[..., Tensor], z: Tensor, x: Tensor) -> Distribution:
        """p(x | z) of the entries that are there."""
        return _Row(self, decoder(z), ~x.isnan())

    def __call__(self, features: Tensor) -> Distribution:
        """The density of whole rows [..., D]."""
        return _Row(self, features, torch.ones((), dtype=torch.bool, device=features.device))

    def mean(self, features: Tensor) -> Tensor:
        """Means of numbers, and the most probable categories, [..., D]."""
        mean, _, logits = self.parts(features)
        found = mean.new_zeros(*mean.shape[:-1], len(self.levels))
        found[..., self.numbers] = mean
        if self.words:
            found[..., self.words] = logits.argmax(-1).to(found)
        return found

    def std(self, features: Tensor) -> Tensor:
        """Standard deviations of numbers, [..., D]; 0 for categories."""
        _, std, _ = self.parts(features)
        found = std.new_zeros(*std.shape[:-1], len(self.levels))
        found[..., self.numbers] = std
        return found

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Features of numbers of about this mean and deviation, and of equally probable categories."""
        of_numbers = super().features(mean[..., self.numbers], std[..., self.numbers])
        logits = mean.new_zeros(*mean.shape[:-1], sum(self.levels))
        return torch.cat([of_numbers.flatten(-2), logits], -1).unsqueeze(-2)

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means and deviations of numbers; log-probabilities of categories, [..., words, most]."""
        (flat,) = self._split(features)
        count = len(self.numbers)
        mean, scale = flat[..., :count], self._scale(flat[..., count : 2 * count])
        places = torch.arange(self.most, device=flat.device)
        sizes = torch.tensor([self.levels[column] for column in self.words], device=flat.device)
        there = places < sizes.unsqueeze(-1)  # [words, most]
        starts = 2 * count + sizes.cumsum(0) - sizes
        index = (starts.unsqueeze(-1) + places).clamp(max=flat.shape[-1] - 1)
        logits = flat[..., index.flatten()].unflatten(-1, index.shape) if self.words else flat[..., :0, None]
        return mean, scale, logits.masked_fill(~there, -math.inf).log_softmax(-1) if self.words else logits


class _Row(dist.TorchDistribution):
    """The density of rows given features, of the entries that are there, bool [..., D] or []."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(self, observation: TableObservation, features: Tensor, there: Tensor) -> None:
        self.observation, self.there, self.given = observation, there, features
        self.loc, self.scale, self.logits = observation.parts(features)
        columns = torch.Size([len(observation.levels)])
        super().__init__(features.shape[:-2], columns, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.observation.mean(self.given)

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum over the entries that are there: [...]."""
        there = self.there.expand(value.shape)
        numbers, words = self.observation.numbers, self.observation.words
        known = _NormalLogProb.apply(value[..., numbers], self.loc, self.scale)
        total: Tensor = known.where(there[..., numbers], 0.0).sum(-1)
        if words:
            codes = value[..., words].long().unsqueeze(-1)
            shares = self.logits.expand(*codes.shape[:-1], -1).gather(-1, codes).squeeze(-1)
            total = total + shares.where(there[..., words], 0.0).sum(-1)
        return total

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Rows, none of whose entries are missing."""
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        found = self.loc.new_zeros(shape)
        size = torch.Size(sample_shape)
        drawn = dist.Normal(self.loc, self.scale).sample(size)
        found[..., self.observation.numbers] = drawn
        if self.observation.words:
            words = dist.Categorical(logits=self.logits).sample(size)
            found[..., self.observation.words] = words.to(found)
        return found


# Observation models of counts, such as the molecules of each gene in a cell. Lopez et al. (2018).


LEAST_MEAN = 1e-4  # that a decoder starts with
CONCENTRATIONS = 0.1, 100.0  # range of those that it starts with


class CountObservation(Observation):
    """Counts of D columns, independent given their means. The first of the decoder's numbers is log E[x].

    A data point holds the D counts and then, if there are batches, the number of its own. Only the counts are
    explained. Their total and the batch are given: :meth:`density` hands both to the decoder.

    Args:
        columns: D.
    """

    def __init__(self, columns: int) -> None:
        super().__init__(1)
        self.columns = columns

    def explained(self, x: Tensor) -> Tensor:
        """The counts [..., D]."""
        return x[..., : self.columns]

    def density(self, decoder: Callable[..., Tensor], z: Tensor, x: Tensor) -> Distribution:
        """p(counts | z, total, batch); the decoder is a :class:`~pyro_fmvae.nn.CountDecoder`."""
        total = self.explained(x).sum(-1, keepdim=True)
        return self(decoder(z, total, x[..., self.columns :]))

    def mean(self, features: Tensor) -> Tensor:
        """E[x]."""
        return self._split(features)[0].exp()

    @abstractmethod
    def __call__(self, features: Tensor) -> Distribution:
        """The density of counts [..., D]."""


class PoissonObservation(CountObservation):
    """Counts whose variance is their mean."""

    outputs = 1

    def __call__(self, features: Tensor) -> Distribution:
        """Poisson(mean), columns independent."""
        return dist.Poisson(self.mean(features)).to_event(1)

    def std(self, features: Tensor) -> Tensor:
        """Square root of the mean."""
        return self.mean(features).sqrt()

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Log of the mean; the standard deviation follows from it."""
        return mean.clamp(min=LEAST_MEAN).log().unsqueeze(-2)


class NegativeBinomialObservation(CountObservation):
    """Counts of variance m + m² / θ, for a mean m. The second of the decoder's numbers is log θ."""

    outputs = 2

    def __call__(self, features: Tensor) -> Distribution:
        """NegativeBinomial of θ failures and mean m, columns independent."""
        log_mean, log_concentration = self._split(features)
        negative = dist.NegativeBinomial(log_concentration.exp(), logits=log_mean - log_concentration)
        return negative.to_event(1)

    def std(self, features: Tensor) -> Tensor:
        """Square root of m + m² / θ."""
        log_mean, log_concentration = self._split(features)
        return (log_mean.exp() + (2 * log_mean - log_concentration).exp()).sqrt()

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Logs of the mean and of θ, by moments; θ is clipped to 0.1 and 100."""
        beyond = (std.square() - mean).clamp(min=LEAST_MEAN)
        concentration = (mean.square() / beyond).clamp(*CONCENTRATIONS)
        return torch.stack([mean.clamp(min=LEAST_MEAN).log(), concentration.log()], -2)


# Normal distributions of the noise in a linear system, by mean and precision.

Number = Callable[[Tensor], Tensor]
Density = Callable[[Distribution, Tensor], Tensor]


def itself(tensor: Tensor) -> Tensor:
    """A tensor that has numbers."""
    return tensor


def log_density(fn: Distribution, value: Tensor) -> Tensor:
    """The log-density of a value under a distribution that has numbers."""
    return fn.log_prob(value)


def by_step(matrix: Tensor) -> Tensor:
    """A matrix with a dimension of steps, if it has dimensions of sequences before it."""
    return matrix.unsqueeze(-3) if matrix.dim() > 2 else matrix


class GaussianNoise(NamedTuple):
    """A normal distribution by its mean and its precision, which may be values that are not there.

    Args:
        loc: [..., N].
        precision: a matrix [..., N, N], or its diagonal [..., N].
        is_full: whether it is a matrix.
    """

    loc: Tensor
    precision: Tensor
    is_full: bool

    @classmethod
    def of(cls, fn: Any) -> "GaussianNoise":
        """Noise of a distribution, with a precision of 0 where it is masked."""
        if isinstance(fn, Independent):
            return cls.of(fn.base_dist)
        if isinstance(fn, MaskedDistribution):
            loc, precision, is_full = cls.of(fn.base_dist)
            mask = torch.as_tensor(fn._mask, dtype=precision.dtype, device=precision.device)
            return cls(loc, precision * mask[(..., *(None,) * (fn.event_dim + is_full))], is_full)
        if isinstance(fn, Normal):
            return cls(fn.loc, fn.scale**-2, False)
        if isinstance(fn, MultivariateNormal):
            known = "precision_matrix" in vars(fn)
            tril = fn._unbroadcasted_scale_tril
            return cls(fn.loc, fn.precision_matrix if known else torch.cholesky_inverse(tril), True)
        raise TypeError(type(fn).__name__)

    def times(self, matrix: Tensor) -> Tensor:
        """The precision times a matrix [..., N, M]."""
        return self.precision @ matrix if self.is_full else self.precision.unsqueeze(-1) * matrix

    def matrix(self, number: Number) -> Tensor:
        """The expected precision, [..., N, N]."""
        return number(self.precision) if self.is_full else torch.diag_embed(number(self.precision))


def check_gaussian(name: str, fn: Distribution) -> None:
    """Refuse a distribution of another kind, under the name of its argument."""
    try:
        GaussianNoise.of(fn)
    except TypeError as error:
        raise ValueError(
            f"{name}: expected a MultivariateNormal or Normal(...).to_event(1), masked or not, got {error}"
        ) from None


def batch_of(noise: Distribution, steps: int) -> torch.Size:
    """The batch shape of a noise without its dimension of steps."""
    if noise.batch_shape[-1:].numel() not in (1, steps):
        raise ValueError(
            f"noise: expected a batch shape that ends with 1 or the {steps} steps, if it has one, got "
            f"{list(noise.batch_shape)}"
        )
    return noise.batch_shape[:-1]
