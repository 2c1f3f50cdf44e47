import pytest
import torch

from pyro_fmvae.distributions.exponential_family import scale_gradient


@pytest.mark.parametrize("factor", [0.25, torch.tensor([1.0, 2.0, -3.0])])
def test_scale_gradient(factor):
    x = torch.randn(2, 3, requires_grad=True)
    scaled = scale_gradient(x, factor)
    torch.testing.assert_close(scaled, x, rtol=0, atol=0)
    scaled.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * factor)


def test_scale_gradient_by_a_factor_of_more_dimensions():
    """Each part of the gradient is multiplied by its own factor, and only then are they added up."""
    x, weight, factor = torch.randn(3, requires_grad=True), torch.randn(4, 2, 3), torch.randn(2, 1)
    scaled = scale_gradient(x, factor)
    torch.testing.assert_close(scaled, x.expand(2, 3), rtol=0, atol=0)
    (weight * scaled).sum().backward()
    torch.testing.assert_close(x.grad, (factor * weight).sum((0, 1)))
