"""Student-t variables with equal degrees of freedom."""

import pytest
import torch
from scipy import stats
from torch.distributions import StudentT
from torch.testing import assert_close

from pyro_fmvae.distributions.normal_gamma import IndependentStudentT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 4, 7])
@pytest.mark.parametrize(("size", "unit"), [(1.0, 1.0), (1e9, 1.0), (1.0, 1e-25), (1e20, 1e22)])
def test_log_prob_is_that_of_scipy(dim, size, unit, dtype):
    """Also where squares of four distances together, or those of scales, are beyond float32."""
    df, loc, scale = 0.5 + 9 * torch.rand(3, 1), torch.randn(3, dim), unit * (0.1 + torch.rand(3, dim))
    loc = unit * loc
    value = size * min(unit, 1.0) * torch.randn(5, 1, dim)
    expected = torch.as_tensor(stats.t.logpdf(value, df, loc, scale).sum(-1))
    parts = (part.to(dtype) for part in torch.broadcast_tensors(df, loc, scale))
    found = IndependentStudentT(StudentT(*parts), 1)
    assert_close(found.log_prob(value.to(dtype)), expected.to(dtype))
    assert_close(found.expand((2, 5, 3)).log_prob(value.to(dtype)), expected.to(dtype).expand(2, 5, 3))


def test_values_that_are_no_numbers():
    fn = IndependentStudentT(StudentT(torch.ones(2), torch.zeros(2), torch.ones(2), validate_args=True), 1)
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(torch.tensor([0.0, torch.nan]))
