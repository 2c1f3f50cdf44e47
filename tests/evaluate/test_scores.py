"""Scores of single points, against the library's bounds, integrals over z, and what they are to tell."""

import copy
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae import GaussianObservation
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate import bound, dominating, outlier_scores, threshold, tighter_bounds
from pyro_fmvae.models import VAE
from tests.models.small import binary_data, small_model

MODELS = {
    "one factor": lambda: small_model((3,)),
    "groups of factors": lambda: small_model((2, 3, 2), labelled=(0,)),
    "VAE": lambda: small_model((1, 1)).pretraining(),
}


@pytest.mark.parametrize("kind", MODELS)
def test_means_are_the_bounds_of_the_same_draws(kind):
    model, x = MODELS[kind](), binary_data(9)
    batches = [(x[:5], torch.ones(5, 1)), (x[5:], torch.ones(4, 1))]  # labels are not looked at
    scores = outlier_scores(model, batches, num_samples=4, seed=3)
    parts = bound(model, batches, seed=3, num_samples=4)
    parts |= tighter_bounds(model, batches, num_samples=4, seed=3)
    assert list(scores) == ["kl", "reconstruction", "elbo", "iwae"]
    assert all(values.shape == (9,) and values.dtype == np.float64 for values in scores.values())
    assert scores["kl"].mean() == pytest.approx(parts["kl_z"] + parts["kl_r"], rel=1e-12)
    assert scores["reconstruction"].mean() == pytest.approx(-parts["reconstruction"], rel=1e-12)
    assert scores["elbo"].mean() == pytest.approx(-parts["elbo"], rel=1e-12)
    assert scores["iwae"].mean() == pytest.approx(-parts["importance_weighted"], rel=1e-12)
    assert scores["elbo"] == pytest.approx(scores["kl"] + scores["reconstruction"], rel=1e-12)


def test_points_keep_their_order():
    model, x = small_model((2, 3)), binary_data(9)
    there = outlier_scores(model, [(x[:4],), (x[4:],)])["kl"]
    back = outlier_scores(model, [(x.flip(0),)])["kl"]
    assert back[::-1] == pytest.approx(there, rel=1e-12)
    assert np.ptp(there) > 0.1


def test_some_scores_are_those_of_all():
    model, batches = small_model((2, 3)), [(binary_data(5),), (binary_data(4),)]
    every = outlier_scores(model, batches, 3)
    for kinds in (("iwae",), ("elbo", "kl"), ("iwae", "reconstruction")):
        some = outlier_scores(model, batches, 3, kinds=kinds)
        assert tuple(some) == kinds
        assert all((some[kind] == every[kind]).all() for kind in kinds)


def test_batches_are_gone_through_once(single_precision):
    """So all scores are of the same points, even where a loader shuffles."""
    model, x = small_model((2, 3)), binary_data(12)
    every = outlier_scores(model, [(x[:5],), (x[5:],)], 3)
    once = outlier_scores(model, iter([(x[:5],), (x[5:],)]), 3)
    assert all((once[kind] == values).all() for kind, values in every.items())
    batches = Batches(Split(x.bool()), 12, seed=1)
    ((seen,),) = copy.deepcopy(batches)
    shuffled, plain = (outlier_scores(model, given, 3) for given in (batches, [(seen,)]))
    assert all((shuffled[kind] == values).all() for kind, values in plain.items())


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_a_loader_draws_depends_on_the_seed_too(shuffle):
    model, x = small_model((2, 3)), binary_data(12)
    state, runs = torch.get_rng_state(), []
    for _ in range(2):
        torch.rand(3)
        before = torch.get_rng_state()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 5, shuffle=shuffle)
        runs.append(outlier_scores(model, loader, 3))
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(torch.get_rng_state(), state)
    assert all((runs[0][kind] == values).all() for kind, values in runs[1].items())


def test_draws_depend_on_the_seed_alone():
    model, batches = small_model(), [(binary_data(5),)]
    state = torch.get_rng_state()
    first = outlier_scores(model, batches, 2, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = (outlier_scores(model, batches, 2, seed=seed) for seed in (1, 2))
    for kind, values in first.items():
        assert (again[kind] == values).all()
        assert (other[kind] != values).all() == (kind != "kl")  # which is exact


class Plain(torch.nn.Module):
    """A user's own program: z ~ N(0, 1), x ~ N(z, 0.5), with a q(z | x) that is a little off."""

    num_data = 50

    def model(self, x, labels=None):
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x)), dim=-1):
            z = pyro.sample("z", dist.Normal(torch.zeros(()), 1.0))
            pyro.sample("x", dist.Normal(z, 0.5), obs=x)

    def q(self, x):
        return dist.Normal(0.7 * x, 0.6)

    def guide(self, x, labels=None):
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x)), dim=-1):
            pyro.sample("z", self.q(x))

    def log_weights(self, x, num_samples):
        z = self.q(x).sample((num_samples,))
        return dist.Normal(z, 0.5).log_prob(x) + dist.Normal(0.0, 1.0).log_prob(z) - self.q(x).log_prob(z)


def test_scores_are_the_integrals_that_they_stand_for():
    """By the moments of Gaussians: E[(x - z)²] under q, log N(x; 0, 1.25), log N(0.7x, 0.6) from N(0, 1)."""
    x, draws, many = torch.tensor([-3.0, -0.5, 0.1, 2.0]), 300, 4000
    batches = [(x[:3],), (x[3:],)]
    scores = outlier_scores(Plain(), batches, draws)
    scores |= outlier_scores(Plain(), batches, many, kinds=["iwae"])
    kl = 0.5 * (0.49 * x**2 + 0.36 - 1 - math.log(0.36))
    assert scores["kl"] == pytest.approx(kl.numpy(), rel=1e-12)
    square = 0.09 * x**2 + 0.36
    expected = 0.5 * math.log(2 * math.pi * 0.25) + 2 * square
    variance = 4 * (2 * 0.36**2 + 4 * 0.36 * 0.09 * x**2)  # of 2 (x - z)²
    error = 4 * (variance / draws).sqrt().numpy()
    assert (abs(scores["reconstruction"] - expected.numpy()) < error).all()
    evidence = dist.Normal(0.0, 1.25**0.5).log_prob(x).numpy()
    spread = Plain().log_weights(x, many).exp().std(0).numpy() / np.exp(evidence) / many**0.5
    assert (abs(scores["iwae"] + evidence) < 4 * spread).all()
    assert (scores["elbo"] > scores["iwae"] + 0.05).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", MODELS)
def test_a_gpu_gives_the_same_scores(kind):
    model, x, runs = MODELS[kind](), binary_data(9), 30
    here = [outlier_scores(model, [(x,)], 50, seed) for seed in range(runs)]
    model.cuda()
    there = [outlier_scores(model, [(x.cuda(),)], 50, runs + seed) for seed in range(runs)]
    assert there[0]["kl"] == pytest.approx(here[0]["kl"], rel=1e-9)
    for name in ("reconstruction", "elbo", "iwae"):  # whose draws are others
        ours, theirs = (np.stack([scores[name] for scores in side]) for side in (here, there))
        error = np.sqrt((ours.var(0, ddof=1) + theirs.var(0, ddof=1)) / runs)
        assert (abs(ours.mean(0) - theirs.mean(0)) < 5 * error).all(), name


def test_a_model_that_is_no_bound_has_one_score():
    model, batches = Plain(), [(torch.tensor([0.3, -1.0]),)]
    every = outlier_scores(model, batches)
    model.bounded = False
    scores = outlier_scores(model, batches)
    assert list(scores) == ["reconstruction"]
    assert (scores["reconstruction"] == every["reconstruction"]).all()
    with pytest.raises(ValueError, match=r"^kinds: expected some of reconstruction, got elbo"):
        outlier_scores(model, batches, kinds=["elbo"])


class Overflowing(torch.nn.Module):
    def forward(self, x):
        return 3 * x[:, :1], (x[:, :1] ** 2).exp()


@pytest.mark.usefixtures("single_precision")
def test_points_far_out_are_outliers_and_leave_the_others_alone():
    """There, the scale of q(z | x) overflows, and KL(q || p) is inf - inf."""
    decoder = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Unflatten(-1, (2, 2)))
    vae = VAE(Overflowing(), decoder, GaussianObservation(1), 1, 10)
    x = torch.tensor([[0.5, 0.1], [1e3, 0.0], [0.1, -1.0], [-1e5, 0.0]])
    scores = outlier_scores(vae, [(x,)])
    usual = outlier_scores(vae, [(x[[0, 2]],)], kinds=["kl"])
    for values in scores.values():
        assert np.isfinite(values).tolist() == [True, False, True, False]
        assert (values[[1, 3]] == math.inf).all()
    assert scores["kl"][[0, 2]] == pytest.approx(usual["kl"], rel=1e-6)


def test_no_data():
    for kinds in (["kl"], ["iwae"]):
        with pytest.raises(ValueError, match=r"^batches: expected at least one data point"):
            outlier_scores(small_model(), [], kinds=kinds)


@pytest.mark.parametrize("kinds", [["kl", "rec"], []])
def test_unknown_scores(kinds):
    got = ", ".join(kinds) or "none"
    with pytest.raises(
        ValueError, match=rf"^kinds: expected some of kl, reconstruction, elbo, iwae, got {got}"
    ):
        outlier_scores(small_model(), [(binary_data(5),)], kinds=kinds)


def test_no_samples():
    with pytest.raises(ValueError, match=r"^num_samples: expected a number >= 1, got 0"):
        outlier_scores(small_model(), [(binary_data(5),)], 0)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("values", [np.arange(40.0), np.repeat([1.0, 2.0, 5.0], 7), np.array([3.0])])
def test_threshold_is_the_least_score_that_so_many_do_not_exceed(values, quantile):
    found = threshold(np.random.default_rng(0).permutation(values), quantile)
    assert found in values
    assert (values <= found).mean() >= quantile
    assert (values < found).mean() < quantile or found == values.min()


def test_threshold_complains():
    for quantile in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"^quantile: expected a number in \[0, 1\], got"):
            threshold(np.ones(3), quantile)
    with pytest.raises(ValueError, match=r"^scores: expected at least one, got none"):
        threshold(np.ones(0), 0.5)
    with pytest.raises(ValueError, match=r"^scores: expected finite ones up to the quantile 0.9, got inf"):
        threshold(np.array([1.0, math.inf]), 0.9)
    assert threshold(np.array([1.0, math.inf]), 0.5) == 1.0


def test_a_few_points_dominate_a_mean_if_they_have_half_of_it():
    losses = np.full(400, 12.3)
    assert not len(dominating(losses))
    losses[[17, 203, 311]] = 1e5, 1e6, 3e4
    assert dominating(losses).tolist() == [203, 17, 311]
    losses[:300:7] = 1e6  # a tenth of all is no handful
    assert not len(dominating(losses)) and not len(dominating(np.array([1.0, 1e6])))
