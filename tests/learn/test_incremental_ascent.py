"""Parts of weighted rows: every sweep raises the bound, which is the evidence of a single component."""

import math

import pytest
import torch

from pyro_fmvae.distributions import NormalWishart
from pyro_fmvae.learn.coordinate_ascent import (
    Anderson,
    IncrementalAscent,
    Rows,
    ascend,
    bound_of,
    sufficient_statistics,
)
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.learnt_prior import LEAST_VARIANCE
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING

N = 90


@pytest.fixture
def rows():
    """Three clusters of two numbers, a category and a count [N, 4], some entries missing."""
    torch.manual_seed(0)
    kinds = torch.randint(3, (N,))
    x = torch.randn(N, 3, dtype=torch.float64) + 4 * torch.eye(3, dtype=torch.float64)[kinds]
    x[:, 2] = (kinds == 0).double()
    x = x.masked_fill(torch.rand(N, 3) < 0.15, torch.nan)
    return torch.cat([x, torch.poisson(1.0 + kinds.double()).unsqueeze(-1)], -1)


def mixture(components=3, full=True, seed=1, prior=None):
    torch.manual_seed(seed)
    return ObservedMixture([0, 0, 2, -1], components, N, prior=prior, full=full)


def naturals(model):
    return {name: model.natural(name).natural.clone() for name in model.natural_priors()}


def parts_of(x, size, weights=None):
    weights = torch.ones(len(x), dtype=torch.float64) if weights is None else weights
    return Rows(x, weights).split(size)


@pytest.mark.parametrize("full", [True, False])
def test_one_part_is_coordinate_ascent(rows, full):
    model, other = mixture(full=full), mixture(full=full)
    IncrementalAscent(model, parts_of(rows, N)).sweep()
    seen = other.observations(rows)
    ascend(other, seen, other.table(seen).softmax(-1))
    for name, value in naturals(other).items():
        torch.testing.assert_close(model.natural(name).natural, value, rtol=1e-10, atol=1e-10)


def test_sweeps_take_no_further_memory(rows):
    """Statistics that each visit allocates anew split the heap."""
    ascent = IncrementalAscent(mixture(), parts_of(rows, 20))
    places = {name: value.data_ptr() for name, value in ascent._statistics.items()}
    for _ in range(3):
        ascent.sweep()
    assert {name: value.data_ptr() for name, value in ascent._statistics.items()} == places


@pytest.mark.parametrize("weights", [DIRICHLET_WEIGHTS, STICK_BREAKING])
@pytest.mark.parametrize(("full", "size"), [(True, 30), (True, N), (False, 30)])
def test_every_sweep_raises_the_bound_to_that_of_the_model(rows, full, size, weights):
    model = mixture(full=full, prior=TablePrior(weights=weights))
    ascent = IncrementalAscent(model, parts_of(rows, size))
    bounds = torch.tensor([ascent.sweep() for _ in range(60)], dtype=torch.float64)
    assert bounds.diff().min() > -1e-9 and bounds[-1] > bounds[0] + 1
    # at the end, responsibilities are those of λ, so that both forms of the bound are equal
    assert bounds[-1].item() == pytest.approx(
        bound_of(model, model.table(model.observations(rows))), abs=1e-6
    )


def test_a_weight_is_a_number_of_copies(rows):
    weights = torch.randint(0, 3, (N,)).double()
    sums, beside, _ = sufficient_statistics(mixture(), Rows(rows, weights))
    copied, beside_copies, _ = sufficient_statistics(
        mixture(), parts_of(rows.repeat_interleave(weights.long(), 0), 3 * N)[0]
    )
    assert beside == pytest.approx(beside_copies, rel=1e-12)
    for name, value in sums.items():
        torch.testing.assert_close(value, copied[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("full", [True, False])
def test_streamed_evidence_of_one_component_is_that_of_all_rows(rows, full):
    """With one component and no missing number every posterior is exact: p(x) = p(x_1) p(x_2 | x_1)."""
    complete = rows.nan_to_num(0.0)
    whole, streamed = mixture(1, full), mixture(1, full)
    bound = IncrementalAscent(whole, parts_of(complete[:30], N)).sweep()
    streamed.forget()
    chain, predicted = 0.0, 0.0
    for part in parts_of(complete[:30], 1):
        predicted += streamed.log_predictive(part.x).item()
        chain += IncrementalAscent(streamed, [part], naturals(streamed)).sweep()
    assert chain == pytest.approx(bound, rel=1e-9)
    assert predicted == pytest.approx(bound, rel=1e-5)


def test_a_start_stands_for_all_rows(rows):
    """Statistics of a sample are scaled to the parts' rows, and gone after a sweep."""
    model = mixture()
    begun = naturals(model)
    ascent = IncrementalAscent(model, parts_of(rows, 30), stand_for=10.0)
    prior = model.natural_priors()
    for name, total in ascent._totals().items():
        torch.testing.assert_close(total, N / 10 * (begun[name] - prior[name].natural))
    assert ascent.bound() == -math.inf
    ascent.sweep()
    assert model.natural("weights").natural.sum().item() == pytest.approx(N + 3)


def test_anderson_solves_a_linear_iteration():
    """x → M x + c of three numbers settles at (I - M)⁻¹ c, found by a step for each of them and two more."""
    torch.manual_seed(0)
    axes = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    matrix = axes @ torch.tensor([0.99, 0.9, -0.5], dtype=torch.float64).diag() @ axes.mT
    shift, x, anderson = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), Anderson()
    for _ in range(5):
        after = matrix @ x + shift
        anderson.add(x, after)
        ahead = anderson.ahead()
        x = after if ahead is None else ahead
    settled = torch.linalg.solve(torch.eye(3, dtype=torch.float64) - matrix, shift)
    torch.testing.assert_close(x, settled, rtol=1e-6, atol=1e-6)
    assert (after - settled).norm() < 0.1 * settled.norm() and (shift - settled).norm() > 0.5 * settled.norm()


def ascended(x, sweeps, plain):
    torch.manual_seed(1)
    numbers = NormalWishart(torch.zeros(6, dtype=torch.float64), 0.1, 3.0, 3.0)
    model = ObservedMixture(
        [0] * 6, 2, len(x), prior=TablePrior(numbers=numbers), full=True, learn_prior=True
    )
    ascent, bounds = IncrementalAscent(model, parts_of(x, len(x))), []
    for _ in range(sweeps):
        bounds.append(ascent.sweep(plain=plain))
    return model, torch.tensor(bounds, dtype=torch.float64)


@pytest.mark.parametrize("means", [False, True])
def test_leaps_past_the_limits_of_a_learnt_prior_never_lower_the_bound(means):
    """A column is nearly another one, half of the numbers are missing: the prior is at its least variance."""
    torch.manual_seed(2)
    x = torch.randn(60, 3, dtype=torch.float64)
    x = torch.cat([x, x[:, :1] + 0.01 * torch.randn(60, 1)], -1)
    x = x.masked_fill(torch.rand(60, 4) < 0.5, torch.nan)
    x = (x - x.nanmean(0)) / (x.square().nanmean(0) - x.nanmean(0).square()).sqrt()
    numbers = NormalWishart(torch.zeros(4, dtype=torch.float64), 0.1, 2.0, 2.0)
    prior = TablePrior(numbers=numbers, learn_s0=means)
    model = ObservedMixture([0] * 4, 1, 60, prior=prior, full=True, learn_prior=True)
    ascent = IncrementalAscent(model, parts_of(x, 60))
    bounds = torch.tensor([ascent.sweep() for _ in range(60)], dtype=torch.float64)
    assert bounds.diff().min() > -1e-9 and bounds[-1] > bounds[0] + 40
    least = torch.linalg.eigvalsh(model.learnt.rate)[0].item()
    assert least == pytest.approx(LEAST_VARIANCE * 2.0**2)  # as a share of what the given prior expects


def test_sweeps_that_leap_end_higher_and_never_lower_the_bound():
    """Half of the numbers are missing, and the prior is learnt: both take hundreds of plain sweeps."""
    torch.manual_seed(0)
    x = torch.randn(80, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    x[:40] += 4.0
    x = x.masked_fill(torch.rand(80, 6) < 0.5, torch.nan)
    _, bounds = ascended(x, 60, False)
    _, slow = ascended(x, 60, True)
    _, settled = ascended(x, 600, True)
    assert bounds.diff().min() > -1e-8 * bounds[-1].abs()
    assert settled[-1] - bounds[-1] < 0.2 * (settled[-1] - slow[-1])


def test_components_that_do_not_take_part_have_no_share(rows):
    """Statistics are those of the components that may have a row, and the bound is no higher."""
    model, part = mixture(), parts_of(rows, N)[0]
    every, gone, likely = sufficient_statistics(model, part)
    among = torch.ones(N, 3, dtype=torch.bool)
    among[:30, 1:] = False
    sums, beside, left = sufficient_statistics(model, part, among)
    bound, fewer = (
        h + sum((t * model.natural(name).expected_stats()).sum() for name, t in found.items())
        for found, h in ((every, gone), (sums, beside))
    )
    assert fewer < bound and likely.all() and torch.equal(left, among)
    counts = model.table(model.packed(rows)).softmax(-1)[30:].sum(0)
    expected = torch.tensor([30.0, 0.0, 0.0]) + counts
    torch.testing.assert_close(sums["weights"], expected.double(), rtol=1e-9, atol=1e-9)
