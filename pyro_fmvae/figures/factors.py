"""The interface of figures to a model with latent factors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fmvae.figures.tiles import in_parts


@dataclass(frozen=True, eq=False)
class Factors:
    """A generator whose latent vector z has I blocks of D numbers, each with its own components.

    Raises:
        ValueError: arguments of inconsistent sizes.
    """

    decode: Callable[[Tensor], Tensor]
    """Maps z [n, I·D] to E[x | z]: images [n, H, W] or [n, H, W, 3] in [0, 1], or table rows [n, columns]."""
    sample_latent: Callable[[int, Tensor], Tensor]
    """Maps n and codes, int64 [n, I], to draws z [n, I·D], block i from component ``codes[:, i]``."""
    means: Sequence[Tensor]
    """Locations of components, I tensors [K_i, D] of the type and on the device that `decode` takes."""
    shares: Sequence[Tensor]
    """Shares of the data of each component, I tensors [K_i] >= 0; normalised to sum to 1."""
    names: Sequence[str] = ()
    """Names of the I factors; 'factor 0', 'factor 1', … if left out."""
    std: Callable[[Tensor], Tensor] | None = None
    """Maps z [n, I·D] to the standard deviation of x given z, in the shape and unit of `decode`."""
    draw: Callable[[Tensor], Tensor] | None = None
    """Maps z [n, I·D] to one draw of x given z, in the shape and unit of `decode`."""
    labelled: int = 0
    """Number of leading factors that were trained on labels."""
    value_names: Sequence[Sequence[str]] = ()
    """Names of the components of leading factors; components without a name go by their number."""

    def __post_init__(self) -> None:
        if not self.means or any(mean.dim() != 2 or 0 in mean.shape for mean in self.means):
            raise ValueError(
                f"means: expected tensors [K_i, D], got {[list(mean.shape) for mean in self.means]}"
            )
        if len({mean.shape[1] for mean in self.means}) > 1:
            raise ValueError(f"means: expected one D, got {[mean.shape[1] for mean in self.means]}")
        if [list(share.shape) for share in self.shares] != [[size] for size in self.sizes]:
            found = [list(share.shape) for share in self.shares]
            raise ValueError(f"shares: expected sizes {self.sizes}, got shapes {found}")
        shares = tuple(share.detach().double().cpu() for share in self.shares)
        if not all(bool((share >= 0).all()) and 0 < float(share.sum()) < float("inf") for share in shares):
            raise ValueError("shares: expected numbers >= 0 with a sum > 0 in every factor")
        names = tuple(self.names) or tuple(f"factor {factor}" for factor in range(len(self.means)))
        if len(names) != len(self.means):
            raise ValueError(f"names: expected {len(self.means)}, got {len(names)}")
        if not 0 <= self.labelled <= len(names):
            raise ValueError(f"labelled: expected a number in 0..{len(names)}, got {self.labelled}")
        if len(self.value_names) > len(names):
            raise ValueError(f"value_names: expected at most {len(names)}, got {len(self.value_names)}")
        object.__setattr__(self, "shares", tuple(share / share.sum() for share in shares))
        object.__setattr__(self, "names", names)

    @property
    def sizes(self) -> list[int]:
        """K_i of every factor."""
        return [len(mean) for mean in self.means]

    def used(self, factor: int) -> Tensor:
        """Mask of components with more than a twentieth of an equal share of the data: bool [K_i]."""
        return self.shares[factor] > 1 / (20 * self.sizes[factor])

    def order(self, factor: int) -> Tensor:
        """The components of a factor from the most to the least used: int64 [K_i]."""
        return self.shares[factor].argsort(descending=True, stable=True)

    def component_name(self, factor: int, component: int) -> str:
        """Name of a component under its factor's heading: that of its value, or its number."""
        names = self.value_names[factor] if factor < len(self.value_names) else ()
        return str(names[component] if component < len(names) else component)

    def value(self, factor: int, component: int) -> str:
        """Name of a component on its own: that of its value, or, for example, 'hair 3'."""
        name = self.component_name(factor, component)
        return f"{self.names[factor]} {name}" if name == str(component) else name

    def check_factor(self, name: str, factor: int) -> None:
        """Raise ValueError, naming the argument, if a factor is out of range."""
        if not 0 <= factor < len(self.sizes):
            raise ValueError(f"{name}: expected a factor in 0..{len(self.sizes) - 1}, got {factor}")

    def typical(self) -> Tensor:
        """Concatenate the locations of each factor's most used component: z [I·D]."""
        return torch.cat(
            [mean[self.order(i)[0].to(mean.device)] for i, mean in enumerate(self.means)]
        ).detach()

    def at_components(self, factor: int, components: Tensor, base: Tensor | None = None) -> Tensor:
        """E[x | z] with one factor's block at the locations of components, and all others at a base.

        Args:
            factor: index of the factor.
            components: int64 [n].
            base: z [I·D]; `typical` if left out.

        Returns:
            Images or rows [n, ...].
        """
        means = self.means[factor].detach()
        z = (self.typical() if base is None else base).expand(len(components), -1)
        return self.decode_all(with_block(z, means[components.to(means.device)], factor))

    def decode_all(self, z: Tensor) -> Tensor:
        """E[x | z] for z [n, I·D], in chunks to save memory."""
        return in_parts(self.decode, z)

    def std_all(self, z: Tensor) -> Tensor:
        """Standard deviations of x given z [n, I·D], in chunks to save memory.

        Raises:
            ValueError: `std` was left out.
        """
        if self.std is None:
            raise ValueError("factors: this picture needs 'std', which was left out")
        return in_parts(self.std, z)

    def draw_all(self, z: Tensor) -> Tensor:
        """A draw of x given each z [n, I·D], in chunks to save memory.

        Raises:
            ValueError: `draw` was left out.
        """
        if self.draw is None:
            raise ValueError("factors: this picture needs 'draw', which was left out")
        return in_parts(self.draw, z)


def with_block(z: Tensor, block: Tensor, factor: int) -> Tensor:
    """Copy z [n, I·D] with the block of one factor replaced by another [n, D]."""
    dim = block.shape[-1]
    z = z.clone()
    z[:, factor * dim : (factor + 1) * dim] = block
    return z
