import pytest
import torch

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.recipes.registry import resolved
from pyro_fmvae.distributions import Concrete, ShiftedSigmoid, StraightThrough
from pyro_fmvae.models import FixedSparsePrior, MixtureSparsePrior, SelectionSparsePrior
from pyro_fmvae.nn import ExponentialLink
from tests.app.recipes.choices import build
from tests.datasets import dataset


def sparse(**options):
    """An untrained model of variational sparse coding."""
    return build(configure("vsc", "mine.npz", **options), dataset())


@pytest.mark.parametrize(
    ("name", "draws"),
    [("shifted", ShiftedSigmoid), ("concrete", Concrete), ("straight-through", StraightThrough)],
)
def test_draws_of_spikes(name, draws):
    assert type(sparse(spikes=name).draws) is draws


def test_slope_is_where_the_sigmoid_starts_and_ends():
    draws = sparse(slope=(20.0, 30.0)).draws
    assert draws.slope == 20
    draws.sharpen(1.0)
    assert draws.slope == 30


@pytest.mark.parametrize(
    ("name", "prior"),
    [("mixture", MixtureSparsePrior), ("select", SelectionSparsePrior), ("fixed", FixedSparsePrior)],
)
def test_sparse_priors(name, prior):
    assert type(sparse(sparse_prior=name).prior) is prior


@pytest.mark.parametrize("name", ["mixture", "select"])
def test_pseudo_inputs_are_sharpened(name):
    assert sparse(sparse_prior=name).prior.sharpness is None
    prior = sparse(sparse_prior=name, sharpness=10.0, pseudo_inputs=7).prior
    assert (prior.sharpness, len(prior.pseudo_inputs())) == (10, 7)


def test_link_of_spikes():
    x = torch.zeros(5, 4, 4)
    for link, greatest in (("logistic", 1.0), ("exponential", 1 - 1e-6)):
        torch.manual_seed(0)
        model = sparse(spike_link=link)
        assert isinstance(model.encoder.head.link, ExponentialLink) == (link == "exponential")
        assert model.posterior(x).probs.max() <= greatest


@pytest.mark.parametrize(
    ("options", "border"),
    [
        ({"pretrain_iterations": 1, "joint_iterations": 3}, 0.25),
        ({"pretrain_iterations": 0, "joint_iterations": 3}, 0.0),
        ({"pretrain_iterations": 2, "joint_iterations": 0}, 1.0),
        ({"max_minutes": 1.0}, 0.15 / (0.15 + 0.55)),
    ],
)
def test_phases_share_one_schedule(options, border):
    recipe = resolved(configure("vsc", "mine.npz", **options), dataset())
    spans = [phase.span for phase in recipe.phases(recipe.build())]
    assert spans == [(0.0, pytest.approx(border)), (pytest.approx(border), 1.0)]
