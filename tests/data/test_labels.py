import itertools
import math
from dataclasses import replace

import pytest
import torch

from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split, choose_labels, hide_labels, hold_out, whole
from pyro_fmvae.data.dataset import SPLITS

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


@pytest.mark.parametrize("amount", [-0.1, 1.01, 2.5, math.nan, math.inf, "two"])
def test_neither_a_share_nor_a_number(amount):
    message = rf"amount: expected a share in \[0, 1\], a whole number .*, or one-per-value, got {amount}"
    with pytest.raises(ValueError, match=message):
        hide_labels(LABELS, amount, 0)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("amount", "number"), [(5, 5), ("one-per-value", 1)])
def test_a_number_of_points_for_each_value_of_each_column(seed, amount, number):
    labels = torch.stack([torch.arange(60) % 2, (torch.arange(60) % 30).clamp(max=2)], dim=1)
    labels[::7] = -1
    hidden = hide_labels(labels, amount, seed)
    assert ((hidden == labels) | (hidden == -1)).all()
    for column in range(2):
        for value in labels[:, column].unique().tolist():
            known, kept = ((array[:, column] == value).sum().item() for array in (labels, hidden))
            if value >= 0:
                assert kept == min(known, number) and (known > 5 or value < 2)
    assert torch.equal(hidden, hide_labels(labels, amount, seed))
    assert not torch.equal(hidden, hide_labels(labels, amount, seed + 1))
    more = hide_labels(labels, 6, seed)
    assert torch.equal(more[hidden >= 0], hidden[hidden >= 0])


def test_a_split_without_labels():
    with pytest.raises(ValueError, match="labels: the split has no labels to hide"):
        hide_labels(Split(torch.zeros(2, 1, dtype=torch.float32)), 0.5, 0)


# Which labels count, and in which order

NAMES = ("size", "colour", "shape", "noise")
SIZES = (3, 4, 2, 5)


def make(lengths=(300, 40, 60), sizes=SIZES, names=NAMES, unknown=0.0, **options):
    """Random labels; observation [1] of a row is its number, over all splits."""
    generator = torch.Generator().manual_seed(1)
    n = sum(lengths)
    labels = torch.stack([torch.randint(size, (n,), generator=generator) for size in sizes], dim=1)
    labels[torch.rand(labels.shape, generator=generator) < unknown] = -1
    x = torch.arange(n, dtype=torch.float32)[:, None]
    train, valid, test = map(Split, x.split(lengths), labels.split(lengths))
    described = {"label_names": names, "label_sizes": sizes} | options
    return Dataset("mine", train, valid, test, Preprocessing(Kind.TABLE, (1,)), **described)


def parts(dataset):
    """Its splits by name, without those that are missing."""
    return {name: getattr(dataset, name) for name in SPLITS if getattr(dataset, name) is not None}


def combinations(split, columns=None):
    """The combination of labels of each row, None where one of them is unknown."""
    rows = split.labels.tolist() if columns is None else split.labels[:, columns].tolist()
    return [None if -1 in row else tuple(row) for row in rows]


def numbered(dataset):
    """Number and labels of each row, over all splits."""
    return [
        (int(x), labels)
        for split in parts(dataset).values()
        for x, labels in zip(split.x, split.labels.tolist(), strict=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_chosen_labels_come_first_and_the_others_stay_behind_them(count):
    dataset = make(value_names=tuple(tuple(f"{name}{value}" for value in range(3)) for name in NAMES))
    for chosen in itertools.permutations(NAMES, count):
        order = [NAMES.index(name) for name in chosen]
        order += [column for column in range(4) if column not in order]
        found = choose_labels(dataset, chosen)
        assert found.label_names == tuple(NAMES[column] for column in order)
        assert found.label_sizes == tuple(SIZES[column] for column in order)
        assert found.value_names == tuple(dataset.value_names[column] for column in order)
        for name, split in parts(dataset).items():
            assert torch.equal(found.split(name).labels, split.labels[:, order])
            assert torch.equal(found.split(name).x, split.x)


def test_choosing_leaves_what_is_missing_alone():
    dataset = make()
    dataset = replace(dataset, test=None, valid=replace(dataset.valid, labels=None))
    found = choose_labels(dataset, ["shape"])
    assert found.test is None and found.valid.labels is None and found.value_names == ()
    assert torch.equal(found.train.labels[:, 0], dataset.train.labels[:, 2])
    assert choose_labels(hold_out(make(), 0.1, 0), ["noise"]).unseen.labels[:, 0].max() == 4


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("size", "weight"), "out of size, colour, shape, noise; got size, weight"),
        (("size", "size"), "different ones out of size, colour, shape, noise; got size, size"),
    ],
)
def test_names_that_cannot_be_chosen(chosen, message):
    with pytest.raises(ValueError, match=f"label_names: expected .*{message}"):
        choose_labels(make(), chosen)
    with pytest.raises(ValueError, match="the data set has no labels, got size; in a "):
        choose_labels(replace(make(), label_names=()), ["size"])


# Which combinations are kept apart


@pytest.mark.parametrize("unknown", [0.0, 0.2])
@pytest.mark.parametrize("combined", [(), ("colour", "size"), ("noise", "shape", "size")])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_what_is_held_out_occurs_nowhere_else(share, combined, unknown):
    before = make(unknown=unknown, combined=combined)
    after = hold_out(before, share, seed=3)
    columns = [NAMES.index(name) for name in combined or NAMES]

    # Every row is in one split with its labels, and those left stay in their split and order.
    assert sorted(numbered(after)) == numbered(before) and len(numbered(before)) == 400
    for name, split in parts(before).items():
        apart = set(after.unseen.x.flatten().tolist())
        assert after.split(name).x.flatten().tolist() == [
            x for x in split.x.flatten().tolist() if x not in apart
        ]

    # Combinations are either seen or not, all that are not seen were in training, and as many as asked for.
    held_out = set(combinations(after.unseen, columns))
    known = {combination for combination in combinations(before.train, columns) if combination}
    assert None not in held_out and held_out <= known
    for name in ("train", "valid", "test"):
        assert held_out.isdisjoint(combinations(after.split(name), columns))
    if share < 0.6:  # else the values run out
        assert len(held_out) == round(share * len(known))

    # No value is lost.
    for column in columns:
        assert set(after.train.labels[:, column].tolist()) == set(before.train.labels[:, column].tolist())


@pytest.mark.parametrize("seed", range(5))
def test_every_value_keeps_a_combination_even_if_most_are_asked_for(seed):
    """Of a full 3 x 4 grid at most 8 cells can go; then each that is left has the last of some value."""
    grid = torch.tensor(list(itertools.product(range(3), range(4))))
    x = torch.arange(12, dtype=torch.float32)[:, None]
    before = replace(make(sizes=(3, 4), names=("a", "b")), train=Split(x, grid))
    after = hold_out(before, 0.99, seed)
    left = combinations(after.train)
    assert len(set(combinations(after.unseen))) + len(left) == 12 and 4 <= len(left) <= 6
    for column in range(2):
        assert {combination[column] for combination in left} == set(range((3, 4)[column]))
    for combination in left:
        others = [other for other in left if other != combination]
        assert any(combination[c] not in {other[c] for other in others} for c in range(2))


def test_the_seed_chooses_the_combinations():
    first, again, other = (set(combinations(hold_out(make(), 0.2, seed).unseen)) for seed in (0, 0, 1))
    assert first == again != other


def test_the_choice_depends_on_the_training_labels_alone():
    dataset = make()
    without = replace(dataset, test=None, valid=dataset.valid.select(torch.arange(5)))
    one, other = hold_out(dataset, 0.2, 0), hold_out(without, 0.2, 0)
    assert other.test is None and torch.equal(one.train.x, other.train.x)


def test_at_least_one_combination_is_held_out():
    assert len(set(combinations(hold_out(make(), 1e-6, 0).unseen))) == 1


def test_rows_that_only_other_splits_have_stay_there():
    """A combination that training never had is no combination that is held out."""
    labels = torch.tensor([[0, 0], [0, 1], [1, 0]])
    before = make(sizes=(2, 2), names=("a", "b"))
    train = Split(torch.zeros(30, 1, dtype=torch.float32), labels.repeat(10, 1))
    new = Split(torch.zeros(2, 1, dtype=torch.float32), torch.tensor([[1, 1], [1, 1]]))
    before = replace(before, train=train, valid=new)
    after = hold_out(before, 0.4, 0)
    assert len(after.valid) == 2 and set(combinations(after.unseen)) == {(0, 0)}


def test_pixels_that_are_drawn_at_each_visit_are_drawn_once_for_what_is_unseen():
    dataset = make()
    grey = Split(torch.full((300, 50), 51, dtype=torch.uint8), dataset.train.labels, resample=True)
    drawn = [
        Split(torch.ones(len(split), 50, dtype=torch.bool), split.labels)
        for split in (dataset.valid, dataset.test)
    ]
    before = Dataset("mine", grey, *drawn, Preprocessing(Kind.BINARY, (50,), "dynamic"), NAMES, SIZES)
    after, again = hold_out(before, 0.3, 0), hold_out(before, 0.3, 0)
    assert after.train.resample and after.train.x.dtype == torch.uint8
    assert not after.unseen.resample and after.unseen.x.dtype == torch.bool
    assert torch.equal(after.unseen.x, again.unseen.x)
    n = 300 - len(after.train)  # the rows from training come first
    assert n > 50 and abs(whole(after.unseen)[0][:n].mean() - 0.2) < 5 * 0.4 / (50 * n) ** 0.5
    assert after.unseen.x[n:].all() and len(after.unseen) > n


def test_signed_pixels_stay_signed():
    dataset = make()
    splits = {name: replace(split, signed=True) for name, split in parts(dataset).items()}
    assert hold_out(replace(dataset, **splits), 0.1, 0).unseen.signed


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_of_combinations_that_is_none(share):
    with pytest.raises(ValueError, match=rf"hold_out: expected a share in \(0, 1\), got {share}"):
        hold_out(make(), share, 0)


def test_combinations_that_cannot_be_held_out():
    single = make(sizes=(3,), names=("a",))
    diagonal = replace(
        make(), train=Split(torch.zeros(3, 1, dtype=torch.float32), torch.arange(3)[:, None].expand(3, 4))
    )
    unknown = replace(make(), train=Split(torch.zeros(3, 1, dtype=torch.float32), torch.full((3, 4), -1)))
    for dataset in (single, diagonal, unknown):
        with pytest.raises(ValueError, match="hold_out: no combination of labels can be held out"):
            hold_out(dataset, 0.5, 0)


def test_nothing_can_be_held_out_without_labels():
    dataset = make()
    with pytest.raises(ValueError, match="hold_out: the data set 'mine' has no labels to combine"):
        hold_out(replace(dataset, train=replace(dataset.train, labels=None)), 0.1, 0)
    with pytest.raises(ValueError, match="hold_out: the data set 'mine' has no labels to combine"):
        hold_out(replace(dataset, label_names=()), 0.1, 0)
    with pytest.raises(ValueError, match="hold_out: the test split has no labels"):
        hold_out(replace(dataset, test=replace(dataset.test, labels=None)), 0.1, 0)


def test_chosen_labels_are_those_that_are_combined():
    chosen = choose_labels(make(), ("size", "colour"))
    assert chosen.combined == ("size", "colour")
    declared = choose_labels(make(combined=("shape",)), ("size", "colour"))
    assert declared.combined == ("shape",)


def test_no_split_is_emptied():
    rows = Split(torch.zeros(1, 1, dtype=torch.float32), torch.tensor([[0, 0]]))
    labels = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    train = Split(torch.zeros(4, 1, dtype=torch.float32), labels)
    described = {"label_names": ("a", "b"), "label_sizes": (2, 2)}
    data = Dataset("mine", train, rows, None, Preprocessing(Kind.TABLE, (1,)), **described)
    for seed in range(20):
        try:
            kept = hold_out(data, 0.25, seed)
        except ValueError as error:
            assert str(error) == "hold_out: nothing would be left of the valid split"
            return
        assert len(kept.valid) == 1
    pytest.fail("no seed held out the only combination of the validation rows")
