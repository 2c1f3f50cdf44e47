"""The joint posterior of a matrix of weights and the precision matrix of its rows, at two sites of a program.

It is matrix-Normal-Wishart: see :mod:`pyro_fmvae.distributions.joint_parts`.
"""

import torch
from torch import Tensor

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.joint_parts import JointPart
from pyro_fmvae.distributions.matrix_normal import MatrixNormal
from pyro_fmvae.distributions.matrix_normal_wishart import MATRIX_NORMAL_WISHART
from pyro_fmvae.distributions.wishart import RateWishart


class JointMatrix(JointPart, MatrixNormal):  # type: ignore[misc, override]
    """The weights of D numbers [K, D], matrix-normal given the precision matrix Λ of the noise."""

    family = MATRIX_NORMAL_WISHART

    def _event(self, size: int) -> torch.Size:
        return torch.Size(packed.rows_and_columns(size))

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """The mean M."""
        return self.standard[0].to(self.dtype)

    @property
    def scale_tril(self) -> Tensor:  # type: ignore[override]
        """L: the covariance of rows is LLᵀ."""
        return self.standard[1].to(self.dtype)

    @property
    def precision_matrix(self) -> Tensor:  # type: ignore[override]
        """The value of the other site."""
        assert self.given is not None
        return self.given


class JointMatrixNoise(JointPart, RateWishart):  # type: ignore[misc, override]
    """The precision matrix of the noise of D numbers, with a Wishart distribution."""

    family = MATRIX_NORMAL_WISHART

    def _event(self, size: int) -> torch.Size:
        _, dim = packed.rows_and_columns(size)
        return torch.Size((dim, dim))

    @property
    def concentration(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[2].to(self.dtype)

    @property
    def rate_tril(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[3].to(self.dtype)
