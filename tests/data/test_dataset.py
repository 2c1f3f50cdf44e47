from dataclasses import replace

import pytest
import torch

from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split


@pytest.fixture
def data():
    splits = [Split(torch.full((n, 2), n / 10, dtype=torch.float32)) for n in (3, 1)]
    return Dataset("mine", splits[0], splits[1], None, Preprocessing(Kind.IMAGE, (2,)))


def test_split_by_name(data):
    assert data.split("train") is data.train and data.split("valid") is data.valid
    assert data.event_shape == (2,)
    unseen = Split(torch.zeros(1, 2, dtype=torch.float32))
    assert replace(data, unseen=unseen).split("unseen") is unseen


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("training", "split: expected one of train, valid, test, unseen, got 'training'"),
        ("name", "split: expected one of train, valid, test, unseen, got 'name'"),
        ("test", "split: the data set 'mine' has no test split"),
        ("unseen", "split: the data set 'mine' has no unseen split"),
    ],
)
def test_a_split_that_is_not_there(data, name, message):
    with pytest.raises(ValueError, match=message):
        data.split(name)


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (torch.zeros(2, 3).double(), None, "x: expected dtype bool, uint8 or float32, got torch.float64"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, 1),
            r"labels: expected int64 \[2, L\], got torch.float32 \[2, 1\]",
        ),
        (torch.zeros(2, 3), torch.zeros(2).long(), r"labels: expected int64 \[2, L\], got torch.int64 \[2\]"),
        (
            torch.zeros(2, 3),
            torch.zeros(3, 1).long(),
            r"labels: expected int64 \[2, L\], got torch.int64 \[3, 1\]",
        ),
    ],
)
def test_a_malformed_split(x, labels, message):
    with pytest.raises(ValueError, match=message):
        Split(x, labels)


def test_observations_and_selected_rows():
    split = Split(
        torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.tensor([[4], [5], [6]]), resample=True
    )
    torch.testing.assert_close(split.observations, torch.tensor([[0.0], [0.2], [1.0]], dtype=torch.float32))
    chosen = split.select(torch.tensor([2, 0]))
    assert len(chosen) == 2 and chosen.resample
    assert chosen.x.tolist() == [[255], [0]] and chosen.labels.tolist() == [[6], [4]]
    assert Split(split.x).select(torch.tensor([1])).labels is None


def test_a_signed_split_gives_pixels_from_minus_one_to_one_and_so_do_its_rows():
    split = Split(torch.tensor([[0], [51], [255]], dtype=torch.uint8), signed=True)
    expected = torch.tensor([[-1.0], [-0.6], [1.0]], dtype=torch.float32)
    torch.testing.assert_close(split.observations, expected)
    torch.testing.assert_close(split.select(torch.tensor([2, 1])).observations, expected[[2, 1]])
