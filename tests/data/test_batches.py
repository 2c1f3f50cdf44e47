import json
from dataclasses import replace

import pytest
import torch

from pyro_fmvae.data import Batches, Split, whole
from tests.calls import count_calls


def make(n=23, resample=False):
    grey = (torch.arange(n * 6).reshape(n, 2, 3) % 256).to(torch.uint8)
    return Split(grey, torch.arange(2 * n).reshape(n, 2), resample)


def equal(left, right):
    return len(left) == len(right) and all(
        torch.equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_an_epoch_visits_each_row_once_and_keeps_the_last_short_batch():
    batches = Batches(make(23), 5)
    assert len(batches) == 5 and batches.num_data == 23
    epoch = list(batches)
    assert [len(x) for x, _ in epoch] == [5, 5, 5, 5, 3]
    labels = torch.cat([labels for _, labels in epoch])
    assert sorted(labels[:, 0].tolist()) == list(range(0, 46, 2))
    x, labels = epoch[0]
    assert x.dtype == torch.float32 and x.shape == (5, 2, 3)
    assert labels.dtype == torch.int64 and labels.shape == (5, 2)
    torch.testing.assert_close(x, make().observations[labels[:, 0] // 2])


def test_signed_pixels():
    split = replace(make(3), signed=True)
    expected = split.x.double() / 255 * 2 - 1
    for x in (next(iter(Batches(split, 3, shuffle=False)))[0], whole(split)[0]):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), expected, atol=1e-6, rtol=0)


def test_signed_pixels_that_are_drawn():
    split = replace(make(20, resample=True), signed=True)
    assert whole(split)[0].unique().tolist() == [-1, 1]


def test_batches_without_labels_are_one_tuples():
    ((x,),) = Batches(Split(torch.rand(4, 3, dtype=torch.float32)), 4)
    assert x.shape == (4, 3)


@pytest.mark.parametrize(("n", "batch_size", "lengths"), [(3, 10, [3]), (10, 5, [5, 5]), (1, 1, [1])])
def test_lengths(n, batch_size, lengths):
    batches = Batches(make(n), batch_size)
    assert [len(x) for x, _ in batches] == lengths and len(batches) == len(lengths)


@pytest.mark.parametrize("labelled", [False, True])
def test_indices_of_rows_come_last(labelled):
    split = make(23) if labelled else replace(make(23), labels=None)
    batches, plain = Batches(split, 5, seed=1, indexed=True), Batches(split, 5, seed=1)
    for _ in range(2):
        for (*batch, rows), expected in zip(batches, plain, strict=True):
            assert rows.dtype == torch.int64 and rows.shape == batch[0].shape[:1]
            assert equal([batch], [expected])
            torch.testing.assert_close(batch[0], split.observations[rows])


def test_without_shuffling_rows_come_in_order_in_each_epoch():
    batches = Batches(make(), 4, shuffle=False)
    for _ in range(2):
        assert torch.equal(torch.cat([labels for _, labels in batches]), make().labels)


def test_the_order_is_a_function_of_seed_and_epoch():
    batches, again, other = Batches(make(), 5, seed=1), Batches(make(), 5, seed=1), Batches(make(), 5, seed=2)
    first, second = list(batches), list(batches)
    torch.rand(3)  # the global generator plays no part
    assert equal(first, list(again)) and equal(second, list(again))
    assert not equal(first, second) and not equal(first, list(other))


def test_dynamic_binarisation_draws_at_every_visit():
    split = make(resample=True)
    batches = Batches(split, 23, shuffle=False)
    total = torch.zeros(23, 2, 3, dtype=torch.float32)
    visits = 2000
    draws = [next(iter(batches))[0] for _ in range(visits)]
    assert not torch.equal(draws[0], draws[1])
    for x in draws:
        total += x
    assert torch.stack(draws[:5]).unique().tolist() == [0, 1]
    torch.testing.assert_close(total / visits, split.observations, atol=5 * 0.5 / visits**0.5, rtol=0)


def test_batches_of_one_epoch_have_bits_of_their_own():
    split = Split(torch.full((8, 50), 128, dtype=torch.uint8), resample=True)
    first, second = Batches(split, 4, shuffle=False)
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("stop", range(12))
def test_resuming_continues_with_exactly_the_batches_that_would_have_come(resample, stop):
    def endless(batches):
        while True:
            yield from batches

    batches = Batches(make(resample=resample), 5, seed=3)
    stream = endless(batches)
    for _ in range(stop):
        next(stream)
    state = json.loads(json.dumps(batches.state_dict()))
    assert state == {"epoch": stop // 5, "position": stop % 5}
    expected = [next(stream) for _ in range(12)]

    resumed = Batches(make(resample=resample), 5, seed=3)
    resumed.load_state_dict(state)
    stream = endless(resumed)
    assert equal([next(stream) for _ in range(12)], expected)


def test_a_broken_off_epoch_is_continued():
    batches, reference = Batches(make(), 5), list(Batches(make(), 5))
    for _ in batches:
        break
    assert equal(list(batches), reference[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        (
            {"split": Split(torch.zeros(0, 2, dtype=torch.float32))},
            "split: expected at least one row, got an empty split",
        ),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Batches(**({"split": make(), "batch_size": 2} | arguments))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"epoch": 1}, r"state: expected the keys epoch and position, got \['epoch'\]"),
        ({"epoch": -1, "position": 0}, "state: expected epoch >= 0 and 0 <= position < 5, got -1 and 0"),
        ({"epoch": 0, "position": 5}, "state: expected epoch >= 0 and 0 <= position < 5, got 0 and 5"),
        ({"epoch": 0, "position": -1}, "state: expected epoch >= 0 and 0 <= position < 5, got 0 and -1"),
    ],
)
def test_bad_states(state, message):
    with pytest.raises(ValueError, match=message):
        Batches(make(), 5).load_state_dict(state)


def test_whole_is_one_batch_in_row_order():
    x, labels = whole(make())
    assert torch.equal(x, make().observations) and torch.equal(labels, make().labels)


def test_whole_draws_dynamic_pixels_with_a_fixed_seed():
    x, _ = whole(make(resample=True))
    assert x.unique().tolist() == [0, 1]
    assert torch.equal(x, whole(make(resample=True))[0])


def test_whole_of_nothing():
    with pytest.raises(ValueError, match="split: expected at least one row"):
        whole(Split(torch.zeros(0, 2, dtype=torch.float32)))


def test_a_batch_costs_no_work_per_item():
    calls = []
    for size in (10, 10, 1000):  # the first may have things to set up
        batches = Batches(Split(torch.zeros(10 * size, 16, dtype=torch.bool)), size)
        calls.append(count_calls(lambda batches=batches: [len(x) for (x,) in batches]))
    assert 0 < calls[2] == calls[1]


@pytest.mark.parametrize(("batch_size", "lengths"), [(3, [3, 3]), (4, [4]), (7, [7]), (9, [7])])
def test_full_batches_alone(batch_size, lengths):
    batches = Batches(Split(torch.arange(7).float().unsqueeze(-1)), batch_size, full=True)
    assert len(batches) == len(lengths)
    assert [len(x) for (x,) in batches] == lengths
    seen = torch.cat([x for _ in range(300) for (x,) in batches])
    counts = seen.long().flatten().bincount()
    expected = 300 * sum(lengths) / 7
    assert counts.tolist() == pytest.approx([expected] * 7, abs=4 * expected**0.5)
