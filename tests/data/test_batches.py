import json
from dataclasses import replace

import pytest
import torch

from pyro_fmvae.data import Batches, Split, whole
from pyro_fmvae.data.batches import Windows
from pyro_fmvae.data.readable_rows import joined, pieces, select
from tests.calls import count_calls
from tests.data.on_disk_data import Counted, both, numbered


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


CPU = torch.device("cpu")


def generators(*key):
    return torch.Generator().manual_seed(hash((7, *key)) % 2**31)


def opened(x, shuffle=True, blocks=4, rows=5):
    """Windows of so many blocks of so many rows of 12 bytes."""
    return Windows(x, generators if shuffle else None, CPU, window=12 * blocks * rows, block=12 * rows)


@pytest.fixture
def small(monkeypatch):
    """Windows of 20 rows, in blocks of 5."""
    monkeypatch.setattr(Windows.__init__, "__defaults__", (240, 60))


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_one_window_are_the_batches_that_rows_in_memory_are(shuffle, labelled):
    held, read = (list(Batches(split, 8, seed=3, shuffle=shuffle)) for split in both(50, labelled))
    assert len(held) == len(read) == 7
    for one, two in zip(held, read, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("n", [21, 40, 97, 100, 103])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_comes_once_with_its_index(n, shuffle):
    x, found = opened(Counted(numbered(n)), shuffle), []
    for start in range(0, n, 7):
        stored, rows = x.take(start, min(start + 7, n))
        assert torch.equal(stored[:, 0].long(), rows)
        found += rows.tolist()
    x.close()
    assert sorted(found) == list(range(n))
    assert (found == sorted(found)) is not shuffle


def test_a_window_is_read_in_blocks_of_neighbours_and_mixes_them():
    source = Counted(numbered(100))
    x = opened(source)
    _, rows = x.take(0, 20)
    x.close()
    read = source.asked[0].sort().values.view(4, 5)  # blocks of five neighbours ...
    assert (read % 5 == torch.arange(5)).all()
    assert len((rows[:5] // 5).unique()) > 1  # ... of which a batch has several
    assert (rows[:-1].diff() != 1).any()


def test_no_more_than_the_next_window_is_read_ahead():
    source = Counted(numbered(200))
    x = opened(source)
    x.take(0, 1)
    x.close()
    assert len(source.asked) <= 2
    assert len(x._there) == 1
    y = opened(source)
    y.take(0, 1)
    y.take(100, 101)
    assert len(y._there) == 1  # those behind are let go
    y.close()


def test_two_windows_are_held_at_most():
    x, held = opened(Counted(numbered(200))), []
    for start in range(0, 196, 7):  # some batches lie across two windows
        x.take(start, start + 7)
        held.append(len(x._there) + len(x._read))
    x.close()
    assert max(held) == 2


def test_epochs_differ_and_depend_on_the_seed(small):
    def order(seed, epochs):
        batches = Batches(both(100)[1], 7, seed=seed, indexed=True)
        return [torch.cat([rows for _, rows in batches]).tolist() for _ in range(epochs)]

    first, second = order(0, 2)
    assert first != second and order(0, 1) == [first] and order(1, 1) != [first]


@pytest.mark.parametrize("done", [0, 1, 2, 5, 14, 15, 22])
def test_two_integers_continue_an_epoch_within_any_window(small, done):
    whole = Batches(both(100, labelled=True)[1], 7, seed=2)
    expected = [batch for _ in range(2) for batch in whole]
    left = Batches(both(100, labelled=True)[1], 7, seed=2)
    seen = iter([batch for _ in range(2) for batch in left][:done])
    state = {"epoch": done // 15, "position": done % 15}
    resumed = Batches(both(100, labelled=True)[1], 7, seed=2)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    rest = [batch for _ in range(2 - done // 15) for batch in resumed]
    found = [*seen, *rest]
    assert len(found) == len(expected)
    for one, two in zip(expected, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_an_epoch_that_is_broken_off_ends_its_thread(small):
    import threading

    for _ in Batches(both(100)[1], 7):
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rows")]


def test_an_error_in_the_thread_reaches_the_caller(small):
    class Broken(Counted):
        def read(self, rows):
            raise ValueError("x: it has become shorter")

    split = both(100)[1]
    split = type(split)(Broken(numbered(100)))
    with pytest.raises(ValueError, match="it has become shorter"):
        next(iter(Batches(split, 7)))


def test_selections_are_composed_and_joined():
    source = Counted(numbered(10))
    part = select(select(source, torch.tensor([1, 3, 5, 7])), torch.tensor([2, 0]))
    assert part.read(torch.tensor([1, 0]))[:, 0].tolist() == [1, 5]
    assert part.source is source and len(part) == 2 and part.shape == (2, 3)
    both_parts = joined([part, select(source, torch.tensor([9]))])
    assert torch.cat(list(pieces(both_parts)))[:, 0].tolist() == [5, 1, 9]
    with pytest.raises(ValueError, match="selections of the same rows"):
        joined([part, numbered(2)])
