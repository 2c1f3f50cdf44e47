import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli
from pyro_fmvae.models.em import binary_mean_field
from pyro_fmvae.models.em.binary_em import enumerate_states
from pyro_fmvae.models.em.binary_mean_field import bound, energy, log_partition, mean_field
from tests.models.em.binary import Binary, all_states, log_joint, problem

SIZES = [1, 2, 3, 4]


def independent(means):
    return GroupedBernoulli(torch.stack([1 - means, means], -1))


def one_by_one(p, group_size, order):
    """One sweep by enumeration of all states, and KL(q || p(h | x)) after every single update.

    A group's new probabilities are the softmax of E[log p(h, x)] over the other groups.
    """
    units = p.weight.shape[-1]
    states = all_states(units)
    joint = log_joint(p, states)
    groups = [list(range(i, min(i + group_size, units))) for i in range(0, units, group_size)]
    means = p.logits.sigmoid().unsqueeze(1).expand(-1, len(p.x), -1)
    on = torch.where(states[:, None, None] == 1, means, 1 - means)  # [K, R, B, H]
    factors = torch.stack([on[..., group].prod(-1) for group in groups])  # of the probability of a state
    divergences = []
    for g in order:
        others = torch.cat([factors[:g], factors[g + 1 :]]).prod(0)
        own = states[:, groups[g]]
        same = (own.unsqueeze(0) == own.unsqueeze(1)).all(-1).double()  # states that agree on this group
        scores = torch.einsum("kj,jrb->krb", same, others * joint)
        first = (same.cumsum(0) * same == 1) & (same == 1)
        distinct = torch.stack([first[:, k].nonzero()[0, 0] == k for k in range(len(states))])
        factors[g] = (scores - scores[distinct].logsumexp(0)).exp()
        q = factors.prod(0)
        divergences.append((torch.special.xlogy(q, q) - q * joint).sum(0) + joint.logsumexp(0))
    means = torch.einsum("krb,kh->rbh", factors.prod(0), states)
    return means, torch.stack(divergences)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", SIZES)
def test_a_sweep_is_that_of_enumeration(group_size, missing):
    p = problem(missing=missing, units=5)
    order = list(range(-(-5 // group_size)))
    expected, divergences = one_by_one(p, group_size, order)
    q = mean_field(*p, group_size=group_size, sweeps=1, shuffle=False)
    assert_close(q.mean, expected, rtol=1e-9, atol=1e-12)
    assert (divergences.diff(dim=0) <= 1e-9).all()  # no single update raises the divergence
    evidence, _ = enumerate_states(*p)
    assert_close(evidence - bound(q, *p), divergences[-1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("group_size", [1, 2])
def test_each_sweep_has_a_random_order(group_size):
    p = problem(units=5)
    torch.manual_seed(4)
    order = torch.randperm(-(-5 // group_size)).tolist()
    assert order != sorted(order)
    expected, _ = one_by_one(p, group_size, order)
    torch.manual_seed(4)
    assert_close(mean_field(*p, group_size=group_size, sweeps=1).mean, expected)


@pytest.mark.parametrize("precision", [1.0, 2.0])
def test_the_fixed_point_is_stationary(precision):
    p = problem(starts=20, size=2, dim=8)._replace(noise_precision=torch.full((20,), precision))
    means = mean_field(*p, sweeps=1000, tolerance=1e-14).mean.requires_grad_()
    states = all_states(6)
    joint = log_joint(p, states)
    on = torch.where(states[:, None, None] == 1, means, 1 - means)
    q = on.prod(-1)
    (gradient,) = torch.autograd.grad((q * (on.log().sum(-1) - joint)).sum(), means)
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", SIZES)
def test_the_bound_never_falls(group_size, missing):
    p = problem(size=20, units=9, missing=missing)
    p = p._replace(weight=p.weight + 1)  # strong overlaps
    q, bounds = None, []
    for _ in range(12):
        q = mean_field(*p, None if q is None else q.mean, group_size=1, sweeps=1)
        bounds.append(bound(q, *p))
    assert (torch.stack(bounds).diff(dim=0) >= -1e-9).all()
    longer = [bound(mean_field(*p, group_size=group_size, sweeps=n, shuffle=False), *p) for n in range(1, 9)]
    assert (torch.stack(longer).diff(dim=0) >= -1e-9).all()


@pytest.mark.parametrize("missing", [False, True])
def test_larger_groups_are_tighter_and_one_group_is_exact(missing):
    p = problem(starts=10, size=20, missing=missing)
    evidence, exact = enumerate_states(*p)
    gaps = []
    for group_size in range(1, 7):
        q = mean_field(*p, group_size=group_size)
        gaps.append((evidence - bound(q, *p)).mean())
        assert (evidence - bound(q, *p) > -1e-9).all()
    assert (torch.stack(gaps)[1:] < gaps[0]).all()
    assert gaps[0] > 0.05
    assert_close(bound(q, *p), evidence, rtol=1e-10, atol=1e-10)
    assert_close(q.probs, exact.probs)


@pytest.mark.parametrize("group_size", [1, 3])
def test_missing_elements_are_as_if_they_were_not_there(group_size):
    p = problem(size=6, missing=True, units=7)
    options = {"group_size": group_size, "sweeps": 7, "tolerance": 0.0, "shuffle": False}
    q = mean_field(*p, **options)
    bounds = bound(q, *p)
    for n, row in enumerate(p.x):
        seen = ~row.isnan()
        alone = Binary(row[seen].unsqueeze(0), p.weight[:, seen], *p[2:])
        found = mean_field(*alone, **options)
        assert_close(found.probs[:, 0], q.probs[:, n])
        assert_close(bound(found, *alone)[:, 0], bounds[:, n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group_size", [1, 4])
def test_the_form_for_missing_elements_is_that_for_none(group_size, dtype):
    p = problem(units=70, dtype=dtype)
    options = {"group_size": group_size, "sweeps": 5, "tolerance": 0.0, "shuffle": False}
    more = p._replace(x=torch.cat([p.x, torch.full_like(p.x[:1], torch.nan)]))
    rounding = 1e-3 if dtype == torch.float32 else 1e-9
    found, expected = mean_field(*more, **options).mean[:, :-1], mean_field(*p, **options).mean
    assert_close(found, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_size", [1, 3])
def test_panels_change_nothing(monkeypatch, group_size, missing):
    p = problem(units=70, missing=missing)
    options = {"group_size": group_size, "sweeps": 2, "tolerance": 0.0, "shuffle": False}
    found = mean_field(*p, **options).probs
    for form in ("_Complete", "_Missing"):
        monkeypatch.setattr(getattr(binary_mean_field, form), "panel", 1)
    assert_close(mean_field(*p, **options).probs, found)


def test_it_is_the_kernel_of_the_specification():
    """Of `siblings.md`, C: in place, one unit after another."""
    p = problem(starts=1, units=70)
    gram, drive, beta = p.weight[0].T @ p.weight[0], p.x @ p.weight[0], p.noise_precision[0]
    h, d = p.logits[0].sigmoid().repeat(4, 1), gram.diagonal()
    for _ in range(2):
        for i in range(70):
            others = h @ gram[:, i] - h[:, i] * d[i]
            h[:, i] = torch.sigmoid(p.logits[0, i] + beta * (drive[:, i] - 0.5 * d[i] - others))
    q = mean_field(*p, sweeps=2, tolerance=0.0, shuffle=False)
    assert_close(q.mean[0], h)


@pytest.mark.parametrize("missing", [False, True])
def test_starts_together_are_each_alone(missing):
    p = problem(missing=missing)
    together = mean_field(*p, group_size=2, sweeps=4, tolerance=0.0, shuffle=False)
    for r in range(3):
        alone = mean_field(*p.of(r), group_size=2, sweeps=4, tolerance=0.0, shuffle=False)
        assert_close(alone.probs[0], together.probs[r])
        assert_close(bound(alone, *p.of(r))[0], bound(together, *p)[r])


@pytest.mark.parametrize("group_size", [1, 2])
def test_temperature_divides_the_noise_precision(group_size):
    p = problem()
    hot = mean_field(*p, group_size=group_size, temperature=3.0, shuffle=False).probs
    cool = p._replace(noise_precision=p.noise_precision / 3)
    assert_close(mean_field(*cool, group_size=group_size, shuffle=False).probs, hot)


@pytest.mark.parametrize("group_size", [1, 3])
def test_float32_follows_float64(group_size):
    p = problem(missing=True)
    single = Binary(*(t.float() for t in p))
    options = {"group_size": group_size, "sweeps": 30, "tolerance": 0.0, "shuffle": False}
    double, found = mean_field(*p, **options), mean_field(*single, **options)
    assert found.probs.dtype == bound(found, *single).dtype == torch.float32
    assert_close(found.probs.double(), double.probs, rtol=1e-3, atol=1e-4)
    assert_close(bound(found, *single).double(), bound(double, *p), rtol=1e-4, atol=1e-4)


def test_it_stops_where_nothing_moves(monkeypatch):
    p = problem()
    fixed = mean_field(*p, tolerance=1e-9).mean
    calls, sweep = [], binary_mean_field._sweep

    def counted(*args):
        calls.append(None)
        sweep(*args)

    monkeypatch.setattr(binary_mean_field, "_sweep", counted)
    mean_field(*p, fixed)
    assert len(calls) == 1
    mean_field(*p, fixed, tolerance=0.0, sweeps=5)
    assert len(calls) == 6
    mean_field(*p)
    assert 8 < len(calls) < 106


@pytest.mark.parametrize("size", [1, 4])
def test_means_that_are_given_are_not_written_to(size):
    p = problem(size=size)
    means = torch.rand(3, size, 6)
    before = means.clone()
    mean_field(*p, means)
    assert means.equal(before)


def test_bound_is_that_of_pyro():
    p = problem(starts=1)
    means = mean_field(*p).mean

    def model():
        with pyro.plate("data", 4, dim=-1):
            causes = [
                pyro.sample(f"h{i}", dist.Bernoulli(logits=p.logits[0, i]), infer={"enumerate": "parallel"})
                for i in range(6)
            ]
            mean = torch.stack(torch.broadcast_tensors(*causes), -1) @ p.weight[0].T
            pyro.sample("x", dist.Normal(mean, p.noise_precision[0].rsqrt()).to_event(1), obs=p.x)

    def guide():
        with pyro.plate("data", 4, dim=-1):
            for i in range(6):
                pyro.sample(f"h{i}", dist.Bernoulli(means[0, :, i]), infer={"enumerate": "parallel"})

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, guide)
    assert bound(independent(means), *p).sum().item() == pytest.approx(-loss, rel=1e-10)


@pytest.mark.parametrize("missing", [False, True])
def test_energy_and_partition_function_are_the_joint_density(missing):
    p = problem(missing=missing)
    states = all_states(6)
    total = log_partition(p.x, p.logits, p.noise_precision)
    found = torch.stack([-energy(p.x, h.expand(3, 4, 6), *p[1:]) - total for h in states])
    assert_close(found, log_joint(p, states))


def test_partition_function_is_an_integral():
    p = problem(starts=1, dim=1, units=3)
    x = torch.linspace(-30, 30, 20_001)
    densities = [(-energy(x.unsqueeze(-1), h.expand(1, 20_001, 3), *p[1:])).exp() for h in all_states(3)]
    found = torch.trapezoid(torch.stack(densities).sum(0), x).log()
    assert_close(found, log_partition(x[:1, None], p.logits, p.noise_precision)[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size: expected 1 to 10, got 0"),
        ({"group_size": 11}, "group_size"),
        ({"sweeps": 0}, "sweeps: expected a number >= 1, got 0"),
        ({"temperature": 0.0}, "temperature: expected a number > 0, got 0.0"),
        ({"means": torch.zeros(4, 6)}, r"means: expected \[3, 4, 6\], got \[4, 6\]"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        mean_field(*problem(), **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("x", (4, 6)), ("weight", (5, 6)), ("logits", (6,)), ("noise_precision", ())],
)
def test_wrong_shapes(name, shape):
    with pytest.raises(ValueError, match=f"{name}: expected shape"):
        mean_field(*problem()._replace(**{name: torch.ones(shape)}))
