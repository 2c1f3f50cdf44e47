import pytest
import torch

from pyro_fmvae.data import Split, hide_labels

LABELS = torch.stack([torch.arange(50), torch.arange(50) % 3], dim=1)


@pytest.mark.parametrize(("share", "kept"), [(0, 0), (0.1, 5), (0.33, 16), (0.35, 18), (1.0, 50)])
def test_exactly_the_share_is_kept_with_all_columns(share, kept):
    hidden = hide_labels(LABELS, share, seed=1)
    known = (hidden >= 0).all(dim=1)
    assert known.sum() == kept
    assert torch.equal(hidden[known], LABELS[known])
    assert (hidden[~known] == -1).all()


def test_the_seed_chooses_the_points():
    assert torch.equal(hide_labels(LABELS, 0.3, 1), hide_labels(LABELS, 0.3, 1))
    assert not torch.equal(hide_labels(LABELS, 0.3, 1), hide_labels(LABELS, 0.3, 2))


def test_a_larger_share_keeps_a_superset_and_the_argument_is_left_alone():
    labels = LABELS.clone()
    few, many = hide_labels(labels, 0.2, 1)[:, 0] >= 0, hide_labels(labels, 0.6, 1)[:, 0] >= 0
    assert (few <= many).all()
    assert torch.equal(labels, LABELS)


def test_a_split_and_unknown_labels():
    labels = torch.tensor([[-1], [2]])
    assert torch.equal(hide_labels(Split(torch.zeros(2, 1, dtype=torch.float32), labels), 1.0, 0), labels)


@pytest.mark.parametrize("share", [-0.1, 1.01, float("nan")])
def test_a_share_outside_the_unit_interval(share):
    with pytest.raises(ValueError, match=rf"share: expected a number in \[0, 1\], got {share}"):
        hide_labels(LABELS, share, 0)


def test_a_split_without_labels():
    with pytest.raises(ValueError, match="labels: the split has no labels to hide"):
        hide_labels(Split(torch.zeros(2, 1, dtype=torch.float32)), 0.5, 0)
