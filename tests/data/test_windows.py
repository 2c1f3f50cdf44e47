import json

import pytest
import torch

from pyro_fmvae.data import Batches, windows
from pyro_fmvae.data.readable_rows import joined, pieces, select
from pyro_fmvae.data.windows import Windows
from tests.data.on_disk_data import Counted, both, numbered

CPU = torch.device("cpu")


def generators(*key):
    return torch.Generator().manual_seed(hash((7, *key)) % 2**31)


def opened(x, shuffle=True, blocks=4, rows=5):
    """Windows of so many blocks of so many rows of 12 bytes."""
    return Windows(x, generators if shuffle else None, CPU, window=12 * blocks * rows, block=12 * rows)


@pytest.fixture
def small(monkeypatch):
    """Windows of 20 rows, in blocks of 5."""
    monkeypatch.setattr(windows.Windows.__init__, "__defaults__", (240, 60))


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
