"""Hidden Markov models as distributions of sequences."""

import itertools

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import HiddenMarkov

START = torch.tensor([0.7, 0.3], dtype=torch.float64)
ROWS = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
LOCS = torch.tensor([-1.0, 2.0], dtype=torch.float64)


def made(duration=3, lengths=None, **changes):
    parts = {"start": START, "transitions": ROWS, "emissions": dist.Normal(LOCS, 0.5), **changes}
    return HiddenMarkov(**parts, duration=duration, lengths=lengths, validate_args=True)


def test_density_is_that_of_pyro():
    """Pyro's chain makes a transition before its first observation."""
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pyros = dist.DiscreteHMM(torch.linalg.solve(ROWS.T, START).log(), ROWS.log(), dist.Normal(LOCS, 0.5))
    assert_close(
        made().log_prob(values), pyros.log_prob(values) + torch.linalg.solve(ROWS.T, START).sum().log()
    )
    assert made().expand([4]).log_prob(values).shape == (4,)
    assert made().expand([4]).shape() == (4, 3)


def test_gradients_leave_impossible_steps_out():
    rows = torch.tensor([[0.9, 0.1], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made(start=start, transitions=rows).log_prob(values).sum().backward()
    paths = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 1]])
    likelihood = dist.Normal(LOCS, 0.5).log_prob(values.unsqueeze(-1)).exp()
    weights = [likelihood[:, range(3), path].prod(-1) for path in paths]
    a, b, c = rows[0, 0].detach(), rows[0, 1].detach(), rows[1, 1].detach()
    shares = torch.stack([w * p for w, p in zip(weights, (a * a, a * b, b * c), strict=True)])
    stay, late, early = (shares / shares.sum(0)).sum(1)
    expected = torch.stack([(2 * stay + late) / a, (late + early) / b, torch.zeros_like(a), early / c])
    assert_close(rows.grad.flatten(), expected)
    assert_close(start.grad, torch.tensor([4.0, 0.0], dtype=torch.float64))


def test_events_and_masks_are_those_of_the_emissions():
    values = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there = torch.tensor([True, False, True])
    pairs = dist.Normal(torch.stack([LOCS, -LOCS], -1), 0.5).to_event(1)
    fn = made(emissions=pairs.mask(there.unsqueeze(-1)))
    assert fn.event_shape == (3, 2)
    table = pairs.log_prob(values.unsqueeze(-2)).exp()
    expected = (START * table[0]) @ ROWS @ ROWS @ table[2]
    assert_close(fn.log_prob(values), expected.log())
    assert_close(made(emissions=pairs.mask(False)).log_prob(values), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("total", [torch.tensor([4.0, 0.0, 7.0]).double().unsqueeze(-1), 7])
@pytest.mark.parametrize("events", [0, 1])
def test_emissions_may_have_a_support_that_differs_between_steps(total, events):
    share = torch.tensor([0.2, 0.9]).double()
    emissions = dist.Binomial(total, share)
    values = torch.tensor([[3.0, 0.0, 5.0], [4.0, 0.0, 0.0]]).double()
    weights = emissions.log_prob(values.unsqueeze(-1)).exp()
    expected = torch.stack([(START * w[0]) @ ROWS @ w[1].diag() @ ROWS @ w[2] for w in weights])
    if events:
        total = total.unsqueeze(-1) if isinstance(total, torch.Tensor) else total
        emissions, values = dist.Binomial(total, share.unsqueeze(-1)).to_event(1), values.unsqueeze(-1)
    fn = made(emissions=emissions)
    assert_close(fn.log_prob(values), expected.log())
    assert fn.support.check(fn.sample((5,))).all()
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(values + 8)


def test_draws_have_the_moments_of_the_chain():
    torch.manual_seed(0)
    draws = made().expand([2]).sample((4000,))
    assert draws.shape == (4000, 2, 3)
    states = torch.stack([START, START @ ROWS, START @ ROWS @ ROWS])
    pairs = torch.diag(START) @ ROWS
    for found, mean in (
        (draws, states @ LOCS),
        (draws[..., 0] * draws[..., 1], LOCS @ pairs @ LOCS),
    ):
        found = found.flatten(0, 1)
        error = found.std(0) / len(found) ** 0.5
        assert ((found.mean(0) - mean).abs() < 4 * error).all()


def test_known_states_leave_the_paths_that_they_are_on():
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states = torch.tensor([[1, 0, 1], [-1, 0, -1], [-1, -1, -1], [-1, -1, 1]])
    likelihood = dist.Normal(LOCS, 0.5).log_prob(values.unsqueeze(-1)).exp()
    expected = torch.zeros(4, dtype=torch.float64)
    for path in itertools.product(range(2), repeat=3):
        fits = ((states < 0) | (states == torch.tensor(path))).all(-1)
        weight = START[path[0]] * ROWS[path[0], path[1]] * ROWS[path[1], path[2]]
        expected += fits * weight * likelihood[:, torch.arange(3), list(path)].prod(-1)
    fn = made().given(states)
    assert fn.batch_shape == (4,)
    assert_close(fn.log_prob(values), expected.log())
    assert_close(fn.expand([2, 4]).log_prob(values)[1], expected.log())
    assert fn.chain(values).best_path()[0].tolist() == [1, 0, 1]
    rows = ROWS.clone().requires_grad_()
    made(transitions=rows).given(states[:1]).chain(values[:1]).log_evidence().backward()
    assert_close(rows.grad * ROWS, torch.eye(2, dtype=torch.float64).flip(0))  # one step each way


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([0, 1], r"states: expected int64 \[..., 3\], got int64 \[2\]"),
        ([True, False, True], r"states: expected int64 \[..., 3\], got bool \[3\]"),
        ([0, 1, 2], "states: expected numbers from -1 to 1, got 2"),
        ([0, -2, 1], "states: expected numbers from -1 to 1, got -2"),
    ],
)
def test_known_states_that_are_refused(states, words):
    with pytest.raises(ValueError, match=words):
        made().given(torch.tensor(states))


def test_inputs_choose_the_tables_of_transitions():
    """Densities by products of matrices; moments of draws by those of the states."""
    tables = torch.stack([ROWS, torch.tensor([[0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)])
    inputs = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 1]])
    fn = made(transitions=tables, inputs=inputs)
    assert fn.batch_shape == (3,)
    torch.manual_seed(0)
    draws = fn.sample((4000,))
    for b in range(3):
        here, there = tables[inputs[b, 1]], tables[inputs[b, 2]]
        table = dist.Normal(LOCS, 0.5).log_prob(draws[0, b].unsqueeze(-1)).exp()
        expected = ((START * table[0]) @ here * table[1]) @ there @ table[2]
        assert_close(fn.log_prob(draws)[0, b], expected.log())
        states = torch.stack([START, START @ here, START @ here @ there])
        means = draws[:, b].mean(0)
        assert ((means - states @ LOCS).abs() < 4 * draws[:, b].std(0) / len(draws) ** 0.5).all()


@pytest.mark.parametrize("lengths", [None, torch.tensor([23, 7, 10])], ids=["equal", "ragged"])
@pytest.mark.parametrize("tables", [1, 3])
def test_chunks_with_enough_of_a_buffer_are_the_whole(tables, lengths):
    x = made(duration=23).expand([3]).sample()
    transitions = torch.stack([ROWS, ROWS.flip(0), ROWS.flip(1)])[:tables]
    inputs = torch.randint(tables, (3, 23), generator=torch.Generator().manual_seed(0))
    whole = made(duration=23, lengths=lengths, transitions=transitions, inputs=inputs).log_prob(x).sum()
    errors = []
    for buffer in (0, 2, 5, 23):
        values, spans = HiddenMarkov.chunks(x, 10, buffer, lengths)
        _, first, last, there = spans.unbind(-1)
        steps = 3 * 23 if lengths is None else lengths.sum()
        assert (last - first).sum() == steps and (there <= values.shape[1]).all() and (last > first).all()
        own, _ = HiddenMarkov.chunks(inputs, 10, buffer, lengths)
        fn = made(duration=values.shape[1], transitions=transitions, inputs=own)
        parts = fn.of_chunks(spans).log_prob(values)
        errors.append((parts.sum() - whole).abs())
    assert_close(errors[-1], torch.zeros((), dtype=torch.float64), atol=1e-10, rtol=0.0)
    assert errors[0] > errors[1] > errors[2]


def test_a_chunk_of_an_impossible_sequence_is_impossible():
    """The second step cannot be in the other state, which the first chunk alone is told."""
    locs, x = torch.tensor([0.0, 10.0]), torch.zeros(1, 6)
    emissions = dist.Normal(locs, 1.0)
    known = torch.full((1, 6), -1)
    known[0, 1] = 1
    whole = HiddenMarkov(torch.tensor([1.0, 0.0]), torch.eye(2), emissions, 6).given(known).log_prob(x)
    values, spans = HiddenMarkov.chunks(x, 3, 1)
    states, _ = HiddenMarkov.chunks(known, 3, 1)
    parts = HiddenMarkov(torch.tensor([1.0, 0.0]), torch.eye(2), emissions, values.shape[1])
    found = parts.of_chunks(spans).given(states).log_prob(values)
    assert whole == found[0] == -torch.inf and found[1].isfinite()


def test_spans_that_are_refused():
    for fn, spans in ((made(), torch.zeros(3)), (made(lengths=torch.tensor(2)), torch.zeros(4))):
        with pytest.raises(ValueError, match=r"spans: expected shape \[..., 4\], and no lengths beside them"):
            fn.of_chunks(spans)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transitions": ROWS[:1]}, r"expected shapes \[..., K\] and \[..., K, K\], got \[2\] and \[1, 2\]"),
        (
            {"emissions": dist.Normal(0.0, 1.0)},
            "emissions: expected a batch shape that ends with the 2",
        ),
        (
            {"inputs": torch.zeros(3)},
            r"expected shapes \[..., K\] and \[..., U, K, K\], got \[2\] and \[2, 2\]",
        ),
        (
            {"transitions": ROWS[None], "inputs": torch.zeros(2, dtype=torch.int64)},
            r"inputs: expected int64 \[..., 3\], got int64 \[2\]",
        ),
        (
            {"transitions": ROWS[None], "inputs": torch.full((3,), 0.5)},
            r"inputs: expected int64 \[..., 3\], got float32 \[3\]",
        ),
        (
            {"transitions": ROWS[None], "inputs": torch.tensor([0, 1, 0])},
            "inputs: expected numbers from 0 to 0, got 1",
        ),
        ({"emissions": dist.Normal(torch.zeros(5, 2), 1.0)}, "after 1 or the duration 3 if there is more"),
        (
            {"lengths": torch.tensor([3, 0])},
            "lengths: expected numbers from 1 to the duration 3, got 0",
        ),
        ({"duration": 0}, "duration: expected 1 or more, got 0"),
        ({"lengths": torch.tensor([4, 1])}, "lengths: expected numbers from 1 to the duration 3, got 4"),
        (
            {"emissions": dist.Normal(LOCS, 0.5).mask(torch.tensor([True, False]))},
            r"emissions: expected a mask that is the same for all states, .* last one of \[2\]; write mask",
        ),
        (
            {"emissions": dist.Normal(torch.zeros(2, 1), 1.0).mask(torch.eye(2, 1) > 0).to_event(1)},
            "emissions: expected a mask that is the same for all states",
        ),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        made(**options)
