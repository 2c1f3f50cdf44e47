import pytest
import torch

from pyro_fmvae.distributions import GAMMA
from pyro_fmvae.distributions.exponential_family import check_natural, to_float64


def test_float64_is_asked_for():
    check_natural(torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="natural: expected float64"):
        check_natural(torch.ones(2, dtype=torch.float32))
    assert to_float64(torch.ones(2, dtype=torch.float32)).dtype == torch.float64


def test_a_family_that_has_no_components_says_so():
    one = torch.ones(1)
    for method, arguments in (("data_stats", (one, one)), ("predictive", ((), torch.float32))):
        message = f"GammaFamily is not a family of mixture components: it has no {method}"
        with pytest.raises(NotImplementedError, match=message):
            getattr(GAMMA, method)(*arguments)
    with pytest.raises(NotImplementedError, match="it has no data_stats"):
        GAMMA.conjugate_update(torch.ones(1, 2), torch.ones(1, 1), one, one)
