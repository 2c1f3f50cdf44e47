import pytest
import torch

from tests.distributions.family_case import assert_mean, finite_differences


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(name="assert_mean")
def _assert_mean():
    return assert_mean


@pytest.fixture(name="finite_differences")
def _finite_differences():
    return finite_differences


@pytest.fixture
def random_standard():
    """Standard parameters (m, s, a, b) of a batch of Normal-Gammas over D dimensions."""

    def make(*batch, dim=3):
        m, b = torch.randn(*batch, dim), 0.5 + 2 * torch.rand(*batch, dim)
        return m, 0.5 + 3 * torch.rand(batch), 1 + 4 * torch.rand(batch), b

    return make
