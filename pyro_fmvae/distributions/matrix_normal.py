"""Normal distributions of matrices, whose rows share one precision matrix.

Gupta and Nagar (2000), Matrix variate distributions, Chapter 2.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.restated import restate


class MatrixNormal(TorchDistribution):
    """Matrices W = M + L Z, where each row of Z is N(0, Λ⁻¹) by itself.

    A row of W by itself is N(m_k, (LLᵀ)_kk Λ⁻¹).

    Args:
        loc: M, [..., K, D].
        scale_tril: lower triangular L with a positive diagonal, [..., K, K].
        precision_matrix: Λ, [..., D, D].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.independent(constraints.real, 2),
        "scale_tril": constraints.lower_cholesky,
        "precision_matrix": constraints.positive_definite,
    }
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        precision_matrix: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        rows, dim = loc.shape[-2:] if loc.dim() > 1 else (0, 0)
        if scale_tril.shape[-2:] != (rows, rows) or precision_matrix.shape[-2:] != (dim, dim):
            raise ValueError(
                "expected loc [..., K, D], scale_tril [..., K, K] and precision_matrix [..., D, D], got "
                + ", ".join(str(list(t.shape)) for t in (loc, scale_tril, precision_matrix))
            )
        batch = broadcast_shape(loc.shape[:-2], scale_tril.shape[:-2], precision_matrix.shape[:-2])
        self.loc, self.scale_tril, self.precision_matrix = loc, scale_tril, precision_matrix
        super().__init__(batch, (rows, dim), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the parameters stay the tensors that were given."""
        new: Any = self._get_checked_instance(MatrixNormal, _instance)
        new.loc, new.scale_tril, new.precision_matrix = self.loc, self.scale_tril, self.precision_matrix
        super(MatrixNormal, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """M, [..., K, D]."""
        return self.loc.expand(*self.batch_shape, *self.event_shape)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., K, D]."""
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        factor = torch.linalg.cholesky(self.precision_matrix)
        return self.loc + packed.divide(self.scale_tril @ noise, factor)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of matrices [..., K, D]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        density = _log_density(self, value)
        return density.expand(broadcast_shape(density.shape, self.batch_shape))


@restate(MatrixNormal)
def _log_density(fn: MatrixNormal, value: Tensor) -> Tensor:
    """In the elements of W and Λ, which may be values that are not there."""
    (rows, dim), gap = fn.event_shape, value - fn.loc
    square = (torch.cholesky_inverse(fn.scale_tril) * (gap @ fn.precision_matrix @ gap.mT)).sum((-2, -1))
    determinants = rows * fn.precision_matrix.logdet() - dim * packed.log_determinant(fn.scale_tril)
    return 0.5 * (determinants - square) - 0.5 * rows * dim * math.log(2 * math.pi)
