import math

import pytest
import torch
from torch.distributions import Normal
from torch.special import log_ndtr
from torch.testing import assert_close

from pyro_fmvae.models.em.piecewise_normal import (
    Column,
    PiecewiseNormal,
    inverse_log_ndtr,
    log_normal_mass,
    truncated_normal,
)
from tests.models.em.two_causes import panels

PIXELS, PROBLEMS = 7, 30


def problems(seed=0):
    """Conditionals with weights of both signs, zero weights, tied thresholds and others below 0."""
    generator = torch.Generator().manual_seed(seed)
    y, w, m = (torch.randn(PROBLEMS, PIXELS, generator=generator) for _ in range(3))
    w[:, 2] = 0.0
    m[:, 4], w[:, 4] = 2 * m[:, 3], 2 * w[:, 3]
    loc, log_variance, log_noise = (torch.randn(PROBLEMS, generator=generator) for _ in range(3))
    return 2 * y, w, m, loc, (0.5 * log_variance).exp(), (0.5 * log_noise).exp()


def conditional(y, w, m, loc, variance, noise_variance, temperature=1.0):
    column = Column(y, w, (noise_variance * temperature).unsqueeze(-1))
    return column.conditional(m, loc, variance)


def ratio(s, y, w, m, loc, variance, noise_variance, temperature=1.0):
    """p(y | s) / p(y | 0) p(s | on) at s [n], from nothing but the definition."""
    mean = torch.maximum(m, w * s[:, None])
    error = (y - mean).square() - (y - m.clamp(min=0)).square()
    slab = Normal(loc, variance.sqrt()).log_prob(s)
    return (slab - 0.5 * error.nansum(-1) / (noise_variance * temperature)).exp()


def integrals(problem, low, high, power=0, temperature=1.0):
    """∫ s^power ratio(s) ds over an interval, within 12 deviations of the prior."""
    loc, deviation = problem[3], problem[4].sqrt()
    low, high = (t.clamp(loc - 12 * deviation, loc + 12 * deviation) for t in (low, high))
    s, weight = panels(low, high)
    return (weight * s**power * ratio(s, *problem, temperature)).sum()


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_segments_are_those_of_quadrature(temperature):
    given = problems()
    found = conditional(*given, temperature)
    compared = 0
    for row in range(PROBLEMS):
        problem = [t[row] for t in given]
        edges = found.edges[row]
        masses = [integrals(problem, *edges[j : j + 2], temperature=temperature) for j in range(PIXELS + 1)]
        exact = torch.stack(masses)
        relevant = exact > 1e-16 * exact.sum()
        assert_close(found.log_masses[row][relevant], exact[relevant].log(), atol=1e-7, rtol=0)
        assert (found.log_masses[row][exact == 0] == -math.inf).all()
        logits = torch.tensor(-0.7)
        assert_close(found.log_odds(logits)[row], exact.sum().log() - 0.7, atol=1e-9, rtol=0)
        compared += int(relevant.sum())
    assert compared > 3 * PROBLEMS


def test_edges_are_where_pixels_change_sides():
    y, w, m, *rest = problems()
    edges = conditional(y, w, m, *rest).edges
    thresholds = torch.where(w == 0, math.inf, m / w).sort(-1).values
    assert_close(edges[:, 1:-1], thresholds)
    assert (edges[:, 0] == -math.inf).all()
    assert (edges[:, -1] == math.inf).all()


def test_draws_have_the_moments_of_quadrature():
    count, line = 20000, torch.tensor(math.inf)
    given, logits = problems(1), torch.tensor(0.3)
    for row in range(6):
        problem = [t[row] for t in given]
        found = conditional(*(t.expand(count, *t.shape) for t in problem))
        s = found.sample(logits)
        cuts = found.edges[0]
        pieces = [[integrals(problem, *cuts[j : j + 2], k) for j in range(PIXELS + 1)] for k in range(5)]
        power = torch.tensor([sum(p) for p in pieces])
        on = (logits.exp() * power[0]) / (1 + logits.exp() * power[0])
        moments = power / power[0]
        drawn = s[s != 0]
        assert abs(len(drawn) / count - on) < 4 * (on * (1 - on) / count).sqrt()
        for k in (1, 2):
            error = ((moments[2 * k] - moments[k] ** 2) / len(drawn)).sqrt()
            assert abs(drawn.pow(k).mean() - moments[k]) < 4 * error
    assert found.sample(-line).eq(0).all()
    assert found.sample(line.new_tensor(800.0)).ne(0).all()


def test_draws_fall_on_segments_as_often_as_their_masses_say():
    count = 20000
    given = [t[3].expand(count, *t[3].shape) for t in problems(2)]
    found = conditional(*given)
    s = found.sample(torch.tensor(50.0))
    share = found.log_masses[0].softmax(-1)
    seen = torch.histc(torch.searchsorted(found.edges[0], s) - 1.0, PIXELS + 1, 0, PIXELS + 1) / count
    assert ((share - seen).abs() <= 4 * (share * (1 - share) / count).sqrt() + 1e-9).all()
    assert (share > 0.05).sum() > 1


def test_missing_pixels_are_pixels_left_out():
    y, w, m, *rest = problems()
    y[:, [1, 5]] = math.nan
    kept = [0, 2, 3, 4, 6]
    logits = torch.tensor(0.2)
    actual = conditional(y, w, m, *rest).log_odds(logits)
    assert_close(actual, conditional(y[:, kept], w[:, kept], m[:, kept], *rest).log_odds(logits))
    assert (actual - conditional(y.nan_to_num(), w, m, *rest).log_odds(logits)).abs().max() > 0.1


def test_batches_are_single_ones():
    y, w, m, loc, variance, noise = problems()
    noise = noise[:2]
    many = Column(y.expand(2, PROBLEMS, PIXELS), w, noise[:, None, None]).conditional(m, loc, variance)
    for start in range(2):
        for row in (0, 7, 29):
            column = Column(y[row], w[row], noise[start])
            one = column.conditional(m[row], loc[row], variance[row])
            assert_close(many.log_masses[start, row], one.log_masses)


def test_single_precision_is_taken_to_double():
    given = [t.float() for t in problems()]
    found = conditional(*given)
    assert found.log_masses.dtype == torch.float64
    assert_close(found.log_masses, conditional(*(t.double() for t in given)).log_masses, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("far", [1e3, -1e3, 1e5])
def test_far_out_data_are_finite(far):
    """Thousands of deviations out, the cause goes where the data are: w s = y, within the noise."""
    y = torch.full((200, 4), far)
    w = torch.tensor([1.0, 2.0, 0.5, -1.0])
    column = Column(y, w, torch.tensor(1.0))
    found = column.conditional(torch.full_like(y, 0.1), torch.tensor(1.0), torch.tensor(1.0))
    s = found.sample(torch.tensor(0.0))
    assert found.log_odds(torch.tensor(0.0)).isfinite().all()
    assert s.isfinite().all()
    if far > 0:  # pixels 0-2 are the cause's; precision 1 + 5.25, pull 3.5 far + 1
        assert_close(s.mean(), torch.tensor((3.5 * far + 1) / 6.25), atol=4 / math.sqrt(200 * 6.25), rtol=0)


def test_tiny_weights_and_sharp_noise_are_finite():
    y, w, m = torch.tensor([[1.0, -1.0, 3.0]]), torch.tensor([[1e-310, -1e-200, 1e-9]]), torch.zeros(1, 3)
    for noise in (1e-12, 1e12):
        found = Column(y, w, torch.tensor(noise)).conditional(m, torch.zeros(1), torch.ones(1))
        assert found.log_odds(torch.tensor(0.0)).isfinite().all()
        assert found.sample(torch.tensor(5.0)).isfinite().all()


@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.0, 2.0), (-math.inf, 0.3), (1.5, math.inf), (-9.0, -8.0), (30.0, 30.1), (38.0, 40.0)],
)
def test_truncated_normal_is_that_of_quadrature(low, high):
    """Relative to the density at the end nearest to 0, so that the oracle does not underflow."""
    peak = max(low, -high, 0.0)
    x, weight = panels(torch.tensor(max(low, -peak - 10)), torch.tensor(min(high, peak + 10)))
    density = weight * (0.5 * (peak**2 - x.square())).exp() / math.sqrt(2 * math.pi)
    mass = density.sum()
    ends = torch.tensor([low]), torch.tensor([high])
    assert_close(log_normal_mass(*ends)[0], mass.log() - 0.5 * peak**2, atol=1e-9, rtol=1e-12)
    z = truncated_normal(ends[0].expand(20000), ends[1].expand(20000))
    mean = (density * x).sum() / mass
    deviation = ((density * (x - mean).square()).sum() / mass).sqrt()
    assert abs(z.mean() - mean) < 4 * deviation / math.sqrt(len(z))
    assert abs(z.std() / deviation - 1) < 0.06
    assert ((z >= low - 1e-9) & (z <= high + 1e-9)).all()


def test_inverse_undoes_the_logarithm_of_the_distribution_function():
    z = torch.tensor([-1e4, -200.0, -40.0, -37.4, -37.0, -5.0, -0.1, 0.0, 3.0])
    assert_close(inverse_log_ndtr(log_ndtr(z)), z, atol=0, rtol=1e-13)


def test_two_modes_far_apart_both_count():
    """At s = -1 and s = 1, thirty deviations apart, the second one where two segments meet."""
    y, w, m = torch.ones(3), torch.tensor([1.0, -1.0, 1.0]), torch.tensor([0.0, 0.0, 1.0])
    problem = [y, w, m, torch.tensor(0.1), torch.tensor(1.0), torch.tensor(4e-3)]
    found = conditional(*problem)
    pieces = [(-2.0, 0.0), (0.0, 1.0), (1.0, 2.0)]
    exact = torch.stack([integrals(problem, *torch.tensor(piece)) for piece in pieces])
    actual = torch.stack([found.log_masses[0], found.log_masses[2:].exp().cumsum(0)[-1].log()])
    assert_close(actual, torch.stack([exact[0], exact[1:].sum()]).log(), atol=1e-9, rtol=0)
    assert 0.2 < exact[0] / exact.sum() < 0.8


def test_draws_stay_inside_their_segment():
    """One that is no wider than the digits of a draw that far out."""
    edges = torch.tensor([1e8, 1e8 + 2e-8]).expand(1000, 2)
    one, none = torch.ones(1000, 1), torch.zeros(1000, 1)
    s = PiecewiseNormal(edges, one, none, none).sample(torch.tensor(800.0))
    assert ((s >= edges[:, 0]) & (s <= edges[:, 1])).all()
