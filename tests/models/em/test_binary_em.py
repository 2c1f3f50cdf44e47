import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.models.em.binary_em import BinaryEM, BinaryParameters, enumerate_states
from pyro_fmvae.models.em.binary_mean_field import bound
from tests.models.binary import bars, cosines, fit

UNITS = 5


def data(missing=False, size=60, dtype=torch.float64):
    x = (torch.rand(size, UNITS) < 0.4).double() @ torch.randn(UNITS, 7) + 0.3 * torch.randn(size, 7)
    if missing:
        x[torch.rand(size, 7) < 0.25] = torch.nan
    return x.to(dtype)


def parameters(starts=3, dtype=torch.float64):
    weight = torch.randn(starts, 7, UNITS, dtype=dtype).abs()
    return BinaryParameters(
        weight, torch.randn(starts, UNITS, dtype=dtype), torch.rand(starts, dtype=dtype) + 1
    )


def first_step(em, x, p):
    return em.e_step(x, p, em.start_latents(p, len(x)))


def posterior_of(em, x, p, seed):
    """That of an E-step that starts from the prior."""
    torch.manual_seed(seed)
    return em.posterior(x, p, em.start_latents(p, len(x)), em.sweeps, 0.0, shuffle=True)


OPTIONS = [
    {},
    {"group_size": 2},
    {"nonnegative": True},
    {"exact": True},
    {"group_size": 3, "nonnegative": True},
]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_neither_half_of_a_step_lowers_the_bound(options, missing):
    em, x, p = BinaryEM(UNITS, **options), data(missing), parameters()
    latents, last = em.start_latents(p, len(x)), torch.full((3,), -torch.inf)
    for step in range(12):
        torch.manual_seed(step)
        found = em.e_step(x, p, latents)
        assert (found.objective - last >= -1e-9).all()
        torch.manual_seed(step)
        q = em.posterior(x, p, latents, em.sweeps, 0.0, shuffle=True)
        assert_close(bound(q, x, *p).mean(-1), found.objective)
        new = em.m_step(found.statistics, p, x, found).parameters
        last = bound(q, x, *new).mean(-1)
        assert (last - found.objective >= -1e-9).all()
        p, latents = new, found.latents
    assert not em.nonnegative or (p.weight >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", [1, 2])
def test_the_maximum_is_stationary(group_size, missing, dtype):
    em, x, p = BinaryEM(UNITS, group_size=group_size), data(missing, dtype=dtype), parameters(dtype=dtype)
    q = posterior_of(em, x, p, 1)
    torch.manual_seed(1)
    found = first_step(em, x, p).statistics
    new = BinaryParameters(*(t.requires_grad_() for t in em.m_step(found, p).parameters))
    assert all(t.dtype == dtype for t in new)
    gradients = torch.autograd.grad(bound(q, x, *new).sum(), new)
    for gradient in gradients:
        assert gradient.abs().max() < (2e-2 if dtype == torch.float32 else 1e-7)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", [1, 2])
def test_data_far_from_0_are_learnt_in_float32_as_in_float64(group_size, missing):
    """A unit that is always on stands for the mean, 3,000 times the noise."""
    weight = torch.cat([3 * torch.randn(7, UNITS - 1), torch.full((7, 1), 300.0)], -1)
    h = torch.cat([torch.rand(200, UNITS - 1) < 0.4, torch.ones(200, 1, dtype=torch.bool)], -1).double()
    x = h @ weight.T + 0.1 * torch.randn(200, 7)
    if missing:
        x[torch.rand(200, 7) < 0.25] = torch.nan
    logits = torch.tensor([[-0.4] * (UNITS - 1) + [8.0]])
    learnt = []
    for dtype in (torch.float32, torch.float64):
        em = BinaryEM(UNITS, group_size=group_size)
        p = BinaryParameters(*(t.to(dtype) for t in (weight[None], logits, torch.tensor([100.0]))))
        latents, bounds = h.to(dtype)[None], []
        for step in range(5):
            torch.manual_seed(step)
            found = em.e_step(x.to(dtype), p, latents)
            p, latents = em.m_step(found.statistics, p).parameters, found.latents
            bounds.append(found.objective.item())
        assert min(b - a for a, b in pairwise(bounds)) > -1e-3
        p = p._replace(logits=p.logits.sigmoid())  # of the unit that is always on: 1, as far as it goes
        learnt.append((*(t.double() for t in p), torch.tensor(bounds)))
    for single, double in zip(*learnt, strict=True):
        assert_close(single, double, rtol=5e-3, atol=1e-3)
    assert learnt[1][2].rsqrt().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_of_the_data_do_not_matter(dtype, scale):
    em, x = BinaryEM(UNITS), data(dtype=dtype)
    learnt = []
    for unit in (1.0, scale):
        torch.manual_seed(1)
        p = em.start(x * unit, 2)
        latents = em.start_latents(p, len(x))
        for step in range(3):
            torch.manual_seed(step)
            found = em.e_step(x * unit, p, latents)
            p, latents = em.m_step(found.statistics, p).parameters, found.latents
        log_noise = em.noise(p).log() - math.log(unit)
        learnt.append((p.weight / unit, p.logits, log_noise, latents))
    for here, there in zip(*learnt, strict=True):
        assert_close(there, here, rtol=1e-3, atol=1e-3)


def test_data_without_noise_leave_what_rounding_leaves():
    for dtype, least in ((torch.float32, 1.2e-6), (torch.float64, 4.7e-8)):
        em, p = BinaryEM(UNITS), parameters(1, dtype)
        h = (torch.rand(60, UNITS) < 0.4).to(dtype)
        x = h @ p.weight[0].T
        found = em.e_step(x, p._replace(noise_precision=p.noise_precision * 1e6), h[None])
        assert found.latents[0].equal(h)
        noise = em.noise(em.m_step(found.statistics, p).parameters)
        assert noise.item() == pytest.approx(least * x.square().mean().sqrt().item(), rel=0.02)


def test_the_objective_of_the_enumerated_e_step_is_the_likelihood():
    em, x, p = BinaryEM(UNITS, exact=True), data(missing=True), parameters()
    evidence, posterior = enumerate_states(x, *p)
    found = first_step(em, x, p)
    assert_close(found.objective, evidence.mean(-1))
    assert_close(found.latents, posterior.mean)
    hot = em.e_step(x, p, found.latents, temperature=2.0)
    cool = first_step(em, x, p._replace(noise_precision=p.noise_precision / 2))
    assert_close(hot.latents, cool.latents)
    assert (hot.objective < found.objective).all()


@pytest.mark.parametrize("missing", [False, True])
def test_enumeration_in_parts_changes_nothing(monkeypatch, missing):
    em, x, p = BinaryEM(UNITS, exact=True), data(missing), parameters()
    if missing:
        x[:10] = x[:10].nan_to_num()  # a part without missing elements
    whole = first_step(em, x, p)
    monkeypatch.setattr("pyro_fmvae.models.em.binary_em.ENUMERATED", 7 * 3 * 2**UNITS)
    parts = first_step(em, x, p)
    assert_close(parts.latents, whole.latents)
    assert_close(parts.objective, whole.objective)
    for name, value in whole.statistics.values.items():
        assert_close(parts.statistics.values[name], value)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", [1, 2])
def test_the_search_finds_what_sweeps_from_the_prior_miss(group_size, missing):
    """Strong, overlapping causes and hardly any noise, as of bars: wrong fixed points are far too low."""
    weight = torch.eye(4).repeat_interleave(4, 0) + 0.0
    weight = torch.cat([weight, torch.eye(4).repeat(4, 1)], 1)
    h = (torch.rand(400, 8) < 0.25).double()
    x = h @ weight.T + 0.05 * torch.randn(400, 16)
    if missing:
        x[torch.rand(400, 16) < 0.1] = torch.nan
    p = BinaryParameters(weight[None], torch.full((1, 8), -1.1), torch.tensor([400.0]))
    em = BinaryEM(8, group_size=group_size)
    exact = enumerate_states(x, *p)[0]
    plain, found = (exact - bound(q, x, *p) for q in (em.posterior(x, p), em.search(x, p)))
    assert (found <= plain + 1e-9).all()
    assert (found >= -1e-9).all()
    assert plain.max() > 20
    assert found.max() < 5 and found.mean() < 0.1


def test_the_search_is_never_worse_than_sweeps_from_the_prior():
    """Of dense causes in noise the annealed fixed point alone would be 13 nats worse for one point."""
    torch.manual_seed(5)
    weight = torch.randn(16, 8)
    x = (torch.rand(400, 8) < 0.25).double() @ weight.T + 0.5 * torch.randn(400, 16)
    p = BinaryParameters(weight[None], torch.full((1, 8), -1.1), torch.tensor([4.0]))
    em = BinaryEM(8)
    plain, found = (bound(q, x, *p) for q in (em.posterior(x, p), em.search(x, p)))
    assert (found >= plain - 1e-9).all()
    assert (found > plain + 1).any()


def test_the_search_is_plain_where_nothing_is_strong_and_where_it_is_exact():
    x, p = data(), parameters(1)._replace(noise_precision=torch.tensor([1e-3]))
    assert BinaryEM(UNITS).search(x, p).probs.equal(BinaryEM(UNITS).posterior(x, p).probs)
    strong = parameters(1)
    exact = BinaryEM(UNITS, exact=True)
    assert exact.search(x, strong).probs.equal(exact.posterior(x, strong).probs)


@pytest.mark.parametrize("missing", [False, True])
def test_temperature_reaches_the_mean_field(missing):
    em, x, p = BinaryEM(UNITS, sweeps=200), data(missing), parameters()
    hot = em.e_step(x, p, em.start_latents(p, len(x)), temperature=4.0)
    q = em.posterior(x, p._replace(noise_precision=p.noise_precision / 4), sweeps=200)
    assert_close(hot.latents, q.mean, rtol=1e-3, atol=1e-4)


def test_statistics_are_additive_and_batches_with_and_without_missing_elements_blend():
    em, p = BinaryEM(UNITS, exact=True), parameters()
    x = torch.cat([data(size=20), data(missing=True, size=40)])
    parts = [first_step(em, rows, p).statistics for rows in (x[:20], x[20:])]
    whole = first_step(em, x, p).statistics
    assert (parts[0].values["second"].shape, parts[1].values["second"].shape) == ((3, 1, 5, 5), (3, 7, 5, 5))
    for total in (parts[0] + parts[1], parts[1] + parts[0]):
        assert total.count == 60
        for name, value in whole.values.items():
            assert_close(total.values[name], value)
    blended = [a.scaled(60).blend(b, rate) for a, b, rate in ((*parts, 2 / 3), (*parts[::-1], 1 / 3))]
    for statistics in blended:
        new, expected = em.m_step(statistics, p).parameters, em.m_step(whole, p).parameters
        for found, value in zip(new, expected, strict=True):
            assert_close(found, value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_starts_together_are_each_alone(options, missing):
    em, x, p = BinaryEM(UNITS, **options), data(missing), parameters()

    def steps(p):
        torch.manual_seed(2)
        latents = em.start_latents(p, len(x))
        for _ in range(3):
            found = em.e_step(x, p, latents)
            p, latents = em.m_step(found.statistics, p, x, found).parameters, found.latents
            p = em.reseed(x, p, found)
        return p

    together = steps(p)
    for r in range(3):
        alone = steps(BinaryParameters(*(t[r : r + 1] for t in p)))
        for found, value in zip(alone, together, strict=True):
            assert_close(found[0], value[r], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("missing", [False, True])
def test_reseeding_moves_the_unit_that_is_missed_least(missing):
    em, x, p = BinaryEM(UNITS, exact=True), data(missing), parameters()
    found = first_step(em, x, p)
    _, q = enumerate_states(x, *p)

    def squared_error(weight):
        zero, one = p.logits.new_zeros(p.logits.shape), p.noise_precision.new_ones(3)
        half = bound(q, x, weight, zero, one) - bound(q, x, 0 * weight, zero, one)
        return -2 * half.sum(-1)

    errors = []
    for i in range(UNITS):
        weight = p.weight.clone()
        weight[..., i] = 0
        errors.append(squared_error(weight))
    units = torch.stack(errors).argmin(0)
    assert len(set(units.tolist())) > 1
    residual = torch.where(x.isnan(), 0.0, x - found.latents @ p.weight.mT)
    for nonnegative in (False, True):
        new = BinaryEM(UNITS, exact=True, nonnegative=nonnegative).reseed(x, p, found)
        for r, unit in enumerate(units.tolist()):
            worst = residual[r, residual[r].square().sum(-1).argmax()]
            assert worst.min() < 0
            assert_close(new.weight[r, :, unit], worst.clamp_min(0) if nonnegative else worst)
            assert new.logits[r, unit].item() == pytest.approx(math.log(2 / 3))
            others = [i for i in range(UNITS) if i != unit]
            assert new.weight[r][:, others].equal(p.weight[r][:, others])
            assert new.logits[r, others].equal(p.logits[r, others])
        assert new.noise_precision.equal(p.noise_precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_start(nonnegative, dtype):
    x = data(missing=True, dtype=dtype)
    x[:, 2] = torch.nan  # an element that is never observed
    em = BinaryEM(8, nonnegative=nonnegative)
    p = em.start(x, 4)
    assert all(t.dtype == dtype and t.isfinite().all() for t in p)
    assert (p.weight.shape, p.logits.shape, p.noise_precision.shape) == ((4, 7, 8), (4, 8), (4,))
    assert_close(p.logits, torch.full((4, 8), math.log(1 / 3), dtype=dtype))
    seen = [column[~column.isnan()] for column in x.T]
    error = sum(((c - c.mean()) ** 2).sum() for c in seen if len(c))
    assert_close(p.noise_precision, (sum(len(c) for c in seen) / error).expand(4))
    assert not p.weight[0].equal(p.weight[1])
    if nonnegative:
        assert (p.weight >= 0).all() and p.weight.max() < x.nan_to_num().abs().max()
    else:
        known = torch.where(x.isnan(), x.nanmean(0).nan_to_num(), x)
        assert all((known == column).all(-1).any() for column in p.weight.mT.flatten(0, 1))
    assert_close(em.start_latents(p, 9), torch.full((4, 9, 8), 0.25, dtype=dtype))
    assert_close(em.noise(p), p.noise_precision**-0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_without_noise_and_units_without_use_stay_finite(dtype):
    x = torch.eye(3, dtype=dtype).repeat(20, 1)
    for value in (x, torch.zeros_like(x), torch.full_like(x, torch.nan)):
        em = BinaryEM(6, nonnegative=True)
        p, found = fit(em, value, starts=2, steps=15)
        assert all(t.isfinite().all() for t in p)
        assert found.objective.isfinite().all()
        assert (p.noise_precision > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_units_that_are_never_or_always_on_stay_finite(dtype):
    em, x, p = BinaryEM(UNITS), data(dtype=dtype), parameters(dtype=dtype)
    p.logits[:, 0], p.logits[:, 1] = -2000, 2000
    found = first_step(em, x, p)
    assert (found.latents[..., 0] == 0).all() and (found.latents[..., 1] == 1).all()
    logits = em.m_step(found.statistics, p).parameters.logits
    edge = torch.tensor([-1.0, 1.0], dtype=dtype).expand(3, 2) * -math.log(torch.finfo(dtype).eps)
    assert_close(logits[:, :2], edge, rtol=1e-3, atol=0)


def test_it_finds_bars():
    weight, x = bars()
    em = BinaryEM(8, nonnegative=True)
    p, found = fit(em, x)
    best = em.quality(p, found.objective).argmax()
    assert cosines(weight, p.weight[best]).min() > 0.95
    assert em.noise(p)[best].item() == pytest.approx(0.1, abs=0.005)
    assert_close(p.logits[best].sigmoid(), torch.full((8,), 0.25), rtol=0, atol=0.06)


def test_no_units_and_no_data():
    with pytest.raises(ValueError, match="units: expected a number >= 1, got 0"):
        BinaryEM(0)
    em = BinaryEM(4)
    p = em.start(torch.randn(3, 2), 1)
    with pytest.raises(ValueError, match="x: expected at least one data point"):
        em.e_step(torch.zeros(0, 2), p, torch.zeros(1, 0, 4))
