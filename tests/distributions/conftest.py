import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def assert_mean():
    """Check that draws (first dimension) have the expected mean, within five standard errors."""

    def check(draws, expected):
        error = draws.std(0) / len(draws) ** 0.5
        gap = (draws.mean(0) - expected).abs()
        assert (gap <= 5 * error + 1e-12).all(), f"off by {(gap / error).max():.1f} standard errors"

    return check


@pytest.fixture
def finite_differences():
    """Gradient of a scalar function by central differences, in steps relative to each entry."""

    def gradient(f, x, step=1e-6):
        x = x.detach()
        result = torch.zeros_like(x)
        for i in range(x.numel()):
            h = torch.zeros_like(x)
            h.view(-1)[i] = step * max(1.0, float(x.reshape(-1)[i].abs()))
            result.view(-1)[i] = (f(x + h) - f(x - h)) / (2 * h.sum())
        return result

    return gradient


@pytest.fixture
def random_standard():
    """Standard parameters (m, s, a, b) of a batch of Normal-Gammas over D dimensions."""

    def make(*batch, dim=3):
        m, b = torch.randn(*batch, dim), 0.5 + 2 * torch.rand(*batch, dim)
        return m, 0.5 + 3 * torch.rand(batch), 1 + 4 * torch.rand(batch), b

    return make
