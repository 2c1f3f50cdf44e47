import pytest
import torch
from torch.distributions import Dirichlet, Multinomial, OneHotCategorical, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import DIRICHLET, NaturalDirichlet
from tests.distributions.family_case import FamilyCase, tensors


class TestDirichlet(FamilyCase):
    kind = NaturalDirichlet
    moderate = {  # noqa: RUF012
        "2": (tensors([0.4, 3.0]), tensors([1.0, 1.0])),
        "5": (tensors([1.0, 0.2, 30.0, 4.0, 7.0]), tensors([0.5, 1.0, 2.0, 3.0, 4.0])),
    }
    extreme = {  # noqa: RUF012
        "many": tensors([1e5, 2e5, 0.1]),
        "wide": tensors([1.0 + k for k in range(20)]),
    }
    outside = {"0": torch.tensor([1.0, 0.0]).double(), "negative": torch.tensor([-1.0, 3.0]).double()}  # noqa: RUF012
    misshapen = {"scalar": torch.tensor(1.0).double(), "empty": torch.ones(2, 0).double()}  # noqa: RUF012

    def log_density(self, standard, value):
        return Dirichlet(*standard, validate_args=False).log_prob(value)

    def draw(self, standard, count):
        return Dirichlet(*standard).sample((count,)).clamp(min=1e-12)

    def observe(self, value, count):
        return OneHotCategorical(value).sample((count,))

    def log_likelihood(self, value, x):
        return (x * value.log()).sum(-1)

    def as_event(self, x):
        return x.argmax(-1)


def test_predictive_of_counts_is_that_of_bayes_theorem():
    (c,), (value,) = TestDirichlet.moderate["5"]
    p, x = Dirichlet(value).sample(), torch.tensor([2.0, 0.0, 1.0, 3.0, 0.0])
    predictive = DIRICHLET.predictive_multinomial((c,), torch.float64, total_count=6)
    expected = Multinomial(6, p).log_prob(x) + Dirichlet(c).log_prob(p) - Dirichlet(c + x).log_prob(p)
    assert_close(predictive.log_prob(x), expected)


@pytest.mark.parametrize("name", TestDirichlet.moderate)
def test_kl_is_torchs(name):
    (q,), (p,) = TestDirichlet.moderate[name]
    assert_close(DIRICHLET.kl(q, p), kl_divergence(Dirichlet(q), Dirichlet(p)))


def test_one_component_has_no_gradient():
    natural = torch.tensor([3.0], requires_grad=True)
    NaturalDirichlet(natural).rsample().sum().backward()
    assert natural.grad.tolist() == [0.0]


def test_priors_may_be_torchs_own():
    kl = kl_divergence(NaturalDirichlet(torch.tensor([0.5, 2.0])), Dirichlet(torch.ones(2)))
    assert_close(kl, kl_divergence(Dirichlet(torch.tensor([0.5, 2.0])), Dirichlet(torch.ones(2))))
