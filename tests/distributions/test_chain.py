"""Sums over the paths of chains: against all paths one by one, and finite differences."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import chain as path_sums
from pyro_fmvae.distributions.chain import Chain

K, STEPS, B, U = 3, 4, 5, 2
ENDS = torch.tensor([4, 1, 3, 2, 4])
FORBIDDEN = torch.tensor([[True, False, False], [False, False, True], [False, True, False]])


@pytest.fixture(params=[10**9, 0], ids=["step by step", "in blocks"], autouse=True)
def short(request, monkeypatch):
    """Sums go through all steps one after another, or through blocks of them side by side."""
    monkeypatch.setattr(path_sums, "_SHORT", request.param)


def tables(kind, dtype=torch.float64):
    """Start, transitions and likelihood; transitions of several kinds."""
    source = torch.Generator().manual_seed(0)
    start, shared, own, likelihood, by_input, both = (
        torch.randn(shape, generator=source, dtype=dtype)
        for shape in ((K,), (K, K), (B, K, K), (B, STEPS, K), (U, K, K), (B, U, K, K))
    )
    of_kinds = {
        "shared": shared,
        "own": own,
        "forbidden": shared.masked_fill(FORBIDDEN, -torch.inf),
        "by input": by_input,
        "own by input": both,
    }
    return start, of_kinds[kind], 3 * likelihood


def given(kind, duration=STEPS):
    """Inputs of each step, if there are any."""
    if not kind.endswith("by input"):
        return {}
    return {"inputs": torch.randint(U, (B, duration), generator=torch.Generator().manual_seed(2))}


kinds = pytest.mark.parametrize("kind", ["shared", "own", "forbidden", "by input", "own by input"])
ends = pytest.mark.parametrize("lengths", [None, ENDS], ids=["equal", "ragged"])


def tables_of_steps(kind, transitions, b):
    """The transitions to each step of a sequence."""
    own = transitions[b] if kind.startswith("own") else transitions
    inputs = given(kind).get("inputs")
    return [own if inputs is None else own[inputs[b, t]] for t in range(STEPS)]


def paths(kind, start, transitions, likelihood, lengths):
    """For each sequence, all paths and their log-weights."""
    for b in range(B):
        steps = STEPS if lengths is None else int(lengths[b])
        rows = tables_of_steps(kind, transitions, b)
        found = list(itertools.product(range(K), repeat=steps))
        weights = [
            start[path[0]]
            + sum(rows[t + 1][i, j] for t, (i, j) in enumerate(itertools.pairwise(path)))
            + sum(likelihood[b, t, state] for t, state in enumerate(path))
            for path in found
        ]
        yield found, torch.stack(weights)


@kinds
@ends
def test_evidence_posterior_and_best_path_are_those_of_all_paths(kind, lengths):
    own = tables(kind)
    chain = Chain(*own, lengths, **given(kind))
    evidence, posterior, best = chain.log_evidence(), chain.posterior(), chain.best_path()
    filtered = chain.filtered()
    for b, (found, weights) in enumerate(paths(kind, *own, lengths)):
        steps = len(found[0])
        assert_close(evidence[b], weights.logsumexp(0))
        assert_close(filtered[b, steps - 1], posterior[b, steps - 1])
        log_weights = chain.log_weight(torch.tensor([*found[0], *[0] * (STEPS - steps)]).expand(B, STEPS))
        assert_close(log_weights[b], weights[0])
        shares = torch.zeros(STEPS, K, dtype=torch.float64)
        for path, share in zip(found, weights.softmax(0), strict=True):
            shares[range(steps), path] += share
        assert_close(posterior[b], shares)
        assert best[b].tolist() == [*found[weights.argmax()], *[-1] * (STEPS - steps)]


@kinds
@ends
def test_gradients_are_those_of_the_sum_over_paths(kind, lengths):
    inputs = [table.requires_grad_() for table in tables(kind)]
    each = enumerate(paths(kind, *inputs, lengths))
    expected = sum((1 + b) * weights.logsumexp(0) for b, (_, weights) in each)
    ours = (torch.arange(1, 1 + B) * Chain(*inputs, lengths, **given(kind)).log_evidence()).sum()
    for mine, theirs in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        assert_close(mine, theirs.nan_to_num())


@kinds
@ends
def test_parts_of_steps_are_those_of_all_paths(kind, lengths):
    """E[log p - log q] of a step given the one before it, with q from the weights of all paths."""
    inputs = [table.requires_grad_() for table in tables(kind)]
    counted = torch.rand(B, STEPS, generator=torch.Generator().manual_seed(1)) < 0.5
    counted = counted if lengths is None else counted & (torch.arange(STEPS) < lengths.unsqueeze(-1))
    start, transitions, likelihood = inputs
    expected = []
    for b, (found, weights) in enumerate(paths(kind, *inputs, lengths)):
        q, rows = weights.softmax(0).detach(), tables_of_steps(kind, transitions, b)
        table, total = torch.zeros((K,) * len(found[0]), dtype=torch.float64), 0.0
        for path, share in zip(found, q, strict=True):
            table[path] = share
        for path in found:
            for t in counted[b].nonzero().flatten().tolist():
                pair = marginal(table, path, (t - 1, t) if t else (t,))
                before = marginal(table, path, (t - 1,)) if t else 1.0
                own = start[path[0]] if t == 0 else rows[t][path[t - 1], path[t]]
                if table[path] > 0:
                    total = total + table[path] * (own + likelihood[b, t, path[t]] - (pair / before).log())
        expected.append(torch.as_tensor(total, dtype=torch.float64))
    ours = Chain(*inputs, lengths, counted, **given(kind)).log_evidence()
    assert_close(ours, torch.stack(expected))
    slopes = torch.arange(1.0, 1 + B, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(slopes @ ours, inputs),
        torch.autograd.grad(slopes @ torch.stack(expected), inputs),
        strict=True,
    ):
        assert_close(mine, theirs)


def marginal(table, path, steps):
    """The probability of what a path has at some steps."""
    others = [t for t in range(table.dim()) if t not in steps]
    return (table.sum(others) if others else table)[tuple(path[t] for t in steps)]


@kinds
@ends
def test_parts_of_all_steps_are_the_whole(kind, lengths):
    inputs, found = [table.requires_grad_() for table in tables(kind)], []
    there = torch.arange(STEPS) < (torch.full((B,), STEPS) if lengths is None else lengths).unsqueeze(-1)
    for counted in (None, there):
        evidence = Chain(*inputs, lengths, counted, **given(kind)).log_evidence()
        found.append((evidence, *torch.autograd.grad(evidence.sum(), inputs)))
    for whole, parts in zip(*found, strict=True):
        assert_close(parts, whole)


def test_both_ways_to_sum_agree_however_sharp_the_likelihood_is():
    start, transitions, likelihood = tables("shared")
    sharp = [table.requires_grad_() for table in (start, transitions, 2000 * likelihood)]
    scaled = Chain(*sharp).log_evidence()
    exact = Chain(sharp[0], sharp[1].expand(B, K, K), sharp[2]).log_evidence()
    assert_close(scaled, exact, rtol=1e-13, atol=0.0)
    for mine, theirs in zip(
        torch.autograd.grad(scaled.sum(), sharp), torch.autograd.grad(exact.sum(), sharp), strict=True
    ):
        assert_close(mine, theirs)


@pytest.mark.parametrize("rare", [-280.0, -500.0, -900.0])
def test_rare_transitions_count_where_nothing_else_is_left(rare):
    """The second state is rare after the first, and the only one that the last observation allows."""
    transitions = torch.tensor([[0.0, rare], [rare, 0.0]], dtype=torch.float64)
    likelihood = torch.tensor([[[0.0, -torch.inf], [0.0, 0.0], [-torch.inf, 0.0]]], dtype=torch.float64)
    evidence = Chain(torch.zeros(2), transitions, likelihood).log_evidence()
    assert_close(evidence, torch.tensor([rare + torch.tensor(2.0).log()], dtype=torch.float64))


def test_an_impossible_sequence_leaves_the_gradients_of_others_as_they_are():
    inputs = tables("shared")
    inputs[2][1, 2] = -torch.inf
    inputs = [table.requires_grad_() for table in inputs]
    evidence = Chain(*inputs).log_evidence()
    assert evidence[1] == -torch.inf
    others = [0, 2, 3, 4]
    alone = Chain(*inputs[:2], inputs[2][others]).log_evidence().sum()
    found, expected = (torch.autograd.grad(total, inputs[:2]) for total in (evidence[others].sum(), alone))
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs)


def test_filtered_states_without_a_path_have_no_probability():
    likelihood = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf], [0.0, 0.0]], dtype=torch.float64)
    chain = Chain(torch.zeros(2), torch.zeros(2, 2), likelihood[None])
    assert_close(chain.filtered()[0], torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


def sums(chain, tables):
    evidence = chain.log_evidence()
    return evidence, chain.posterior(), *torch.autograd.grad(evidence.sum(), tables)


@kinds
@ends
@pytest.mark.parametrize("duration", [5, 12, 53, 999])
def test_blocks_of_steps_are_one_step_after_another(kind, lengths, duration, monkeypatch):
    source = torch.Generator().manual_seed(0)
    likelihood = 30 * torch.randn(B, duration, K, generator=source, dtype=torch.float64)
    likelihood[torch.rand(B, duration, generator=source) < 0.3] = 0.0  # nothing is observed
    if kind != "forbidden":  # some states are known
        known = torch.rand(B, duration, 1, generator=source) < 0.3
        own = torch.randint(K, (B, duration, 1), generator=source) == torch.arange(K)
        likelihood = likelihood.masked_fill(known & ~own, -torch.inf)
    inputs = [table.requires_grad_() for table in (*tables(kind)[:2], likelihood)]
    if lengths is not None:
        lengths = torch.tensor([duration, 1, duration // 2, duration - 1, duration // 3])
    chain = Chain(*inputs, lengths, **given(kind, duration))
    monkeypatch.setattr(path_sums, "_SHORT", 10**9)
    expected = sums(chain, inputs)
    monkeypatch.setattr(path_sums, "_SHORT", 0)
    assert path_sums._most_blocks(duration - 1) > 1
    for mine, theirs in zip(sums(chain, inputs), expected, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_chains_of_one_step(kind):
    start, transitions, likelihood = tables(kind)
    chain = Chain(start, transitions, likelihood[:, :1])
    assert_close(chain.log_evidence(), (start + likelihood[:, 0]).logsumexp(-1))
    assert_close(chain.posterior()[:, 0], (start + likelihood[:, 0]).softmax(-1))
    assert_close(chain.best_path()[:, 0], (start + likelihood[:, 0]).argmax(-1))


def test_single_precision_is_summed_in_double():
    exact = Chain(*tables("shared")).log_evidence()
    single = Chain(*(table.float() for table in tables("shared"))).log_evidence()
    assert single.dtype == torch.float32
    assert_close(single.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_drawn_path_of_many_steps():
    """Transitions that are nearly always the same: 0 to 1, 1 to 2, 2 to 0; a single step is a draw, too."""
    ahead = torch.tensor([[0.0, 50, 0], [0, 0, 50], [50, 0, 0]])
    path = Chain(torch.zeros(3), ahead, torch.zeros(4, 300, 3)).draw()
    assert bool((path[:, 1:] == (path[:, :-1] + 1) % 3).all()) and path.unique().numel() == 3
    assert Chain(torch.zeros(3), ahead, torch.zeros(4, 1, 3)).draw().shape == (4, 1)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 2])])
@pytest.mark.parametrize("inputs", [None, torch.tensor([[0, 1, 1], [2, 0, 2]])])
def test_drawn_paths(inputs, lengths, at_once, monkeypatch):
    """Frequencies of paths against their weights, by all paths."""
    monkeypatch.setattr("pyro_fmvae.distributions.chain._FEW_PAIRS", 2**20 if at_once else 0)
    table = (2, 2) if inputs is None else (3, 2, 2)
    logs = [
        torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((2,), table, (2, 3, 2))
    ]
    chain, draws = Chain(*logs, lengths, inputs=inputs), 4000
    many = Chain(logs[0], logs[1], logs[2].expand(draws, 2, 3, 2), lengths, inputs=inputs)
    paths = torch.cartesian_prod(*[torch.arange(2)] * 3)
    steps = [3, 3] if lengths is None else lengths.tolist()
    weights = chain_weights = torch.stack([chain.log_weight(path.expand(2, 3)) for path in paths], -1)
    for row, count in enumerate(steps):
        kept = paths[:, count:].sum(-1) == 0  # one path for each of those that count
        torch.testing.assert_close(chain_weights[row, kept].logsumexp(-1), chain.log_evidence()[row])
        exact = weights[row, kept].softmax(-1)
        drawn = many.draw()[:, row, :count] @ (2 ** torch.arange(count - 1, -1, -1))
        found = torch.bincount(drawn, minlength=2**count) / draws
        assert ((found - exact).abs() < 4.5 * (exact * (1 - exact) / draws).sqrt()).all()
