"""Patches of greys, centred, scaled and whitened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

FLOOR: Final = 0.01
"""Lower bound on eigenvalues, as a part of their mean."""
_TOLERANCE: Final = 1e-4  # of equality: other machines decode and decompose with other roundings


@dataclass(frozen=True, eq=False)
class PatchTransform:
    """Map from patches of greys to the model's observations, fitted to training patches.

    The mean of each patch is subtracted, and all patches are divided by one standard deviation. With
    `whitening` they are multiplied by the symmetric matrix E diag(max(λ, f))^(-1/2) Eᵀ (ZCA), where λ and E
    are eigenvalues and eigenvectors of the second moments of training patches, and the floor f is 0.01 times
    the mean of λ. With `on_off` a patch becomes two, side by side: its positive part, and the absolute value
    of its negative part.

    Two transforms are equal if their options agree, and their fitted numbers do to 4 digits.
    """

    size: int
    """P."""
    count: int
    """Patches that are cut from a new file or folder."""
    on_off: bool
    scale: float
    """Standard deviation of the greys of centred training patches."""
    whitening: tuple[float, ...] | None
    """The matrix, row by row: D² numbers, D = P². None: no whitening."""

    def __post_init__(self) -> None:
        if self.whitening is not None and len(self.whitening) != self.size**4:
            raise ValueError(f"whitening: expected {self.size**4} numbers, got {len(self.whitening)}")

    @classmethod
    def fit(cls, training: Tensor, count: int, whiten: bool, on_off: bool) -> PatchTransform:
        """Fit scale and matrix to training patches.

        Args:
            training: greys without missing ones, [n, P, P].
            count: see the field.
            whiten: fit a matrix.
            on_off: see the field.

        Raises:
            ValueError: all patches are flat, or `whiten` with fewer patches than pixels in one.
        """
        n, size = training.shape[:2]
        flat = _centred(training.double()).flatten(1)
        scale = flat.square().mean().sqrt().item()
        if not scale > 0:
            raise ValueError("training: expected patches that are not flat, all of them are")
        if not whiten:
            return cls(size, count, on_off, scale, None)
        if n < size**2:
            raise ValueError(f"whiten: expected at least {size**2} training patches, got {n}")
        flat = flat / scale
        values, vectors = torch.linalg.eigh(flat.T @ flat / n)
        gain = values.clamp(min=FLOOR * values.mean().item()).rsqrt()
        matrix = (vectors * gain) @ vectors.T
        return cls(size, count, on_off, scale, tuple(matrix.flatten().tolist()))

    @property
    def event_shape(self) -> tuple[int, int]:
        """Shape of what the model sees: (P, P), with `on_off` (P, 2P)."""
        return (self.size, 2 * self.size if self.on_off else self.size)

    def apply(self, greys: Tensor) -> Tensor:
        """Transform patches [..., P, P] to observations [..., *event_shape].

        Args:
            greys: NaN is a missing grey, which stays missing and does not count in the mean.

        Raises:
            ValueError: missing greys, where patches are whitened.
        """
        x = _centred(greys) / self.scale
        matrix = self._matrix(x)
        if matrix is not None:
            if x.isnan().any():
                raise ValueError("greys: expected none that is missing (NaN) in patches to be whitened")
            x = (x.flatten(-2) @ matrix).reshape(x.shape)
        return self.split(x)

    def split(self, x: Tensor) -> Tensor:
        """Split centred patches [..., P, P] in two if `on_off`, else return them; NaN stays NaN in both."""
        return torch.cat([x.clamp(min=0), (-x).clamp(min=0)], dim=-1) if self.on_off else x

    def join(self, x: Tensor) -> Tensor:
        """Invert `split`."""
        return x[..., : self.size] - x[..., self.size :] if self.on_off else x

    def invert(self, x: Tensor) -> Tensor:
        """Map observations [..., *event_shape] to greys less the mean of their patch, [..., P, P]."""
        x = self.join(x)
        matrix = self._matrix(x.double())
        if matrix is not None:
            x = (x.flatten(-2) @ torch.linalg.inv(matrix).to(x)).reshape(x.shape)
        return x * self.scale

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object; `from_dict` makes an equal transform of it, floats to the bit."""
        return {
            "size": self.size,
            "count": self.count,
            "on_off": self.on_off,
            "scale": self.scale,
            "whitening": None if self.whitening is None else list(self.whitening),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> PatchTransform:
        """Invert `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: `state` is not what `to_dict` writes.
        """
        whitening = state["whitening"]
        return cls(
            size=int(state["size"]),
            count=int(state["count"]),
            on_off=bool(state["on_off"]),
            scale=float(state["scale"]),
            whitening=None if whitening is None else tuple(map(float, whitening)),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PatchTransform):
            return NotImplemented
        if self._asked() != other._asked():
            return False
        pairs = [((self.scale,), (other.scale,)), (self.whitening or (0.0,), other.whitening or (0.0,))]
        return all(
            np.allclose(ours, theirs, rtol=0, atol=_TOLERANCE * np.abs(ours).max()) for ours, theirs in pairs
        )

    def __hash__(self) -> int:
        return hash(self._asked())

    def _asked(self) -> tuple[int, int, bool, bool]:
        return self.size, self.count, self.on_off, self.whitening is not None

    def _matrix(self, like: Tensor) -> Tensor | None:
        """Return the matrix [D, D], or None."""
        if self.whitening is None:
            return None
        return like.new_tensor(self.whitening).reshape(self.size**2, self.size**2)


def _centred(greys: Tensor) -> Tensor:
    return greys - greys.nanmean(dim=(-2, -1), keepdim=True)
