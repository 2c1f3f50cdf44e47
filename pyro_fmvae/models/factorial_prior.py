"""The prior of a factorial mixture VAE: draws, densities and starting points. Paquet et al. (2018)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from pyro_fmvae.infer.seeding import LEAST_GAIN, Clustering, kmeans
from pyro_fmvae.models.factor_group import FactorGroup, Hyperprior, make_groups
from pyro_fmvae.models.labelled_start import separated
from pyro_fmvae.models.shapes import check_codes, check_dims, check_shape
from pyro_fmvae.nn.sizes import check_size, check_sizes

# The order of factors in a latent vector, and in the groups that are vectorised together.

T = TypeVar("T")


class FactorLayout:
    """Conversions between latent vectors z [..., I·D] and the blocks of factors.

    Args:
        groups: indices of the factors in each group; together 0..I-1.
        dim: D, dimensions of each factor.
    """

    def __init__(self, groups: Sequence[Sequence[int]], dim: int) -> None:
        order = [factor for group in groups for factor in group]
        self.num_groups, self.num_factors, self.dim = len(groups), len(order), dim
        self.places = [order.index(factor) for factor in range(len(order))]

    def in_order(self, of_groups: Sequence[T]) -> list[T]:
        """Sort one entry per factor from the order of groups into that of factors."""
        return [of_groups[place] for place in self.places]

    def split(self, name: str, z: Tensor) -> Tensor:
        """Split z [..., B, I·D] into blocks [I, ..., B, D].

        Raises:
            ValueError: another last dimension; the message starts with ``name``.
        """
        check_dims(name, z, self.num_factors * self.dim)
        return z.unflatten(-1, (self.num_factors, self.dim)).movedim(-2, 0)

    def take(self, blocks: Tensor, group: Sequence[int]) -> Tensor:
        """Select the factors of a group from blocks [I, ...]."""
        return blocks if self.num_groups == 1 else blocks[list(group)]

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """Join the blocks of groups, each [..., I_g, B, D], to z [..., B, I·D]."""
        z = torch.cat(list(groups), -3)[..., self.places, :, :] if len(groups) > 1 else groups[0]
        z = z.transpose(-3, -2).flatten(-2)
        return z if z.dim() == 2 else z.unsqueeze(-3)  # plates left of the factors keep their place


_IN_CACHE: Final = 2**17
"""Numbers in a table of points, components and dimensions that a core can keep at hand."""


class FactorialPrior(nn.Module):
    """The prior of z of :class:`FactorialMixtureVAE`, and the posterior λ of its parameters.

    Arguments and errors are those of the model.
    """

    def __init__(
        self,
        num_components: Sequence[int],
        dim: int,
        num_data: int,
        labelled: Sequence[int] = (),
        hyperprior: Hyperprior | None = None,
        per_view: Sequence[int] = (),
        per_value: int = 1,
    ) -> None:
        super().__init__()
        sizes = check_sizes("num_components", num_components)
        if len(set(labelled)) != len(labelled) or not set(labelled) <= set(range(len(sizes))):
            known = f"different factors out of 0..{len(sizes) - 1}"
            raise ValueError(f"labelled: expected {known}, got {tuple(labelled)}")
        if not set(per_view) <= set(range(len(sizes))) - set(labelled):
            raise ValueError(f"per_view: expected factors without labels, got {tuple(per_view)}")
        self.per_value = check_size("per_value", per_value)
        if any(sizes[factor] % per_value for factor in labelled):
            expected = "a divisor of the numbers of components of labelled factors"
            raise ValueError(f"per_value: expected {expected}, got {per_value}")
        self.num_components, self.labelled = sizes, tuple(labelled)
        self.dim, self.num_data = check_size("dim", dim), check_size("num_data", num_data)
        self.latent_dim = len(sizes) * self.dim
        groups = make_groups(sizes, dim, self.labelled, hyperprior, per_view, per_value)
        self.groups = nn.ModuleList(groups)
        self.layout = FactorLayout([group.factors for group in groups], self.dim)

    @property
    def label_sizes(self) -> list[int]:
        """Number of values that each labelled factor has components for."""
        return [self.num_components[factor] // self.per_value for factor in self.labelled]

    def factor_groups(self) -> list[FactorGroup]:
        """Groups of factors that are vectorised together."""
        return [group for group in self.groups if isinstance(group, FactorGroup)]

    def _moments(self, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | x), each [I, M, D], from its location and scale [M, I·D]."""
        mean, variance = self.layout.split("loc", loc), self.layout.split("scale", scale).square()
        check_shape("scale", scale, "loc", loc)
        return mean, variance

    @torch.no_grad()
    def sample_codes(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw the component of each factor, equation 9: int64 [num_samples, I].

        Args:
            num_samples: number of draws.
            codes: int64 [num_samples, I], fixed components, or -1 to draw one; None draws all.

        Raises:
            ValueError: ``codes`` of another shape, or with values outside -1 to K_i - 1.
        """
        codes = check_codes("codes", codes, num_samples, self.num_components)
        weights = [group.predictive().weights for group in self.factor_groups()]
        drawn = [Categorical(w, validate_args=False).sample((num_samples or 1,)) for w in weights]
        all_drawn = torch.cat(drawn, -1)[:num_samples, self.layout.places]
        given = all_drawn if codes is None else codes.to(all_drawn.device)
        return torch.where(given >= 0, given, all_drawn)

    @torch.no_grad()
    def sample_latent(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw z from the posterior predictive, equations 9 and 10: [num_samples, I·D].

        Arguments and errors are those of :meth:`sample_codes`.
        """
        codes = self.sample_codes(num_samples, codes)
        of_groups = [(group.predictive(), codes[:, list(group.factors)]) for group in self.factor_groups()]
        return self.layout.join([prior.sample_given(given).movedim(-2, 0) for prior, given in of_groups])

    def log_prior(self, z: Tensor) -> Tensor:
        """Log of the posterior predictive density of z [B, I·D], equation 10 with π and r summed out: [B].

        The computation is in float64: the normaliser of a Student-t with thousands of degrees of freedom is a
        difference of log Γ, which float32 gets wrong in the third decimal in every dimension.
        """
        return self._log_density()(z)

    def log_density(self) -> Callable[[Tensor], Tensor]:
        """:meth:`log_prior` of the present λ, for many calls: what depends on λ alone is computed once.

        The results have no gradients.
        """
        return torch.no_grad()(self._log_density())

    def _log_density(self) -> Callable[[Tensor], Tensor]:
        groups = [(group.factors, group.predictive(torch.float64)) for group in self.factor_groups()]
        rows = max(_IN_CACHE // max(prior.weights.numel() * self.dim for _, prior in groups), 1)

        def of_points(z: Tensor) -> Tensor:
            blocks = self.layout.split("z", z.double())
            parts = [(prior, self.layout.take(blocks, factors).movedim(0, -2)) for factors, prior in groups]
            return torch.stack([prior.log_prob(part) for prior, part in parts]).sum(0).to(z.dtype)

        def density(z: Tensor) -> Tensor:
            parts = z.split(rows) if z.device.type == "cpu" else (z,)
            return torch.cat([of_points(part) for part in parts])

        return density

    def used_components(self) -> list[int]:
        """Number of components per factor with more than a twentieth of an equal share of the data."""
        used = [number for group in self.factor_groups() for number in group.used(self.num_data)]
        return self.layout.in_order(used)

    @torch.no_grad()
    def seed(
        self,
        loc: Tensor,
        scale: Tensor,
        labels: Tensor | None,
        generator: torch.Generator,
        restarts: int = 1,
        clusters: Clustering = kmeans,
        starts: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Initialise λ from encoded data: by k-means, and by the labels of labelled factors.

        Components of a labelled factor start from its labelled points or, where most labels are unknown, from
        clusters of all points if these tell more of the known labels
        (:func:`~pyro_fmvae.models.labelled_start.labelled_start`).

        Args:
            loc, scale: location and scale of q(z | x) for M points of the training set, [M, I·D].
            labels: integers [M, number of labelled factors], -1 = unknown, or None.
            generator: random generator on the CPU.
            restarts: number of k-means starts of each factor. With more than one, each start
                is improved by coordinate ascent (:mod:`pyro_fmvae.infer.seeding`), and the best bound is
                kept.
            clusters: takes the place of k-means.
            starts: factor → responsibilities of the points [M, K], for factors without labels that they are
                known for.

        Raises:
            ValueError: ``restarts`` < 1, or encodings or labels of another shape, type or range.
        """
        mean, variance = self._moments(loc, scale)
        labels = check_codes("labels", labels, len(loc), self.label_sizes, "column")
        for group in self.factor_groups():
            group.seed(mean, variance, labels, self.num_data, generator, restarts, clusters, starts or {})

    @torch.no_grad()
    def separate_labelled(self, distance: float, generator: torch.Generator) -> None:
        """Put the components of labelled factors far apart, regardless of the encodings.

        Untrained networks encode all points much alike, and components that start there may stay neighbours.
        Factors of more than 2D components are left as they are, since D dimensions have no room for them
        (:func:`~pyro_fmvae.models.labelled_start.separated`).

        Args:
            distance: least distance between the means of two components, in their standard deviations.
            generator: random generator on the CPU, for the directions of the components.
        """
        for group in self.factor_groups():
            if group.columns and group.num_components <= 2 * self.dim:
                components = separated(group.loc_precision.natural_value(), distance, generator)
                group.set_natural(group.weights.natural_value(), components)

    @torch.no_grad()
    def restart(
        self,
        loc: Tensor,
        scale: Tensor,
        generator: torch.Generator,
        restarts: int = 1,
        least: float = LEAST_GAIN,
    ) -> dict[int, float]:
        """Reinitialise λ of each factor without labels, in place, if a new start reaches a greater bound.

        Arguments are those of :meth:`seed`, and ``least``, the nats per point that a start has to gain. Both
        the present λ and the new starts are improved by coordinate ascent before they are compared.

        Returns:
            Reinitialised factor → gain over the improved present λ in nats per point.

        Raises:
            ValueError: as for :meth:`seed`.
            TypeError: λ of a factor without labels is in standard parameters.
        """
        data = *self._moments(loc, scale), self.num_data
        unlabelled = [group for group in self.factor_groups() if not group.columns]
        gains = [group.restart(*data, generator, restarts, least) for group in unlabelled]
        return {factor: gain for of_group in gains for factor, gain in of_group.items()}

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Give every posterior the parameterisation that it has in a state dictionary, before loading it."""
        for number, group in enumerate(self.factor_groups()):
            if f"groups.{number}.weights.natural" in state_dict:
                group.use_natural()
            else:
                group.use_standard()
