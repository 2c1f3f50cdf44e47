import numpy as np
import pytest
import torch

from pyro_fmvae.data import Kind, load, smiley
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, SOURCES, smiley_sources
from tests.calls import count_calls


def test_statistics_agree_with_the_published_test_file():
    faces = smiley(20_000, seed=11)
    assert faces.x.dtype == np.uint8 and faces.x.shape == (20_000, 32, 32)
    assert set(np.unique(faces.x)) == {0, 1}
    assert faces.x.mean() == pytest.approx(0.332, abs=0.01)
    np.testing.assert_allclose(faces.labels.mean(axis=0), 0.5, atol=0.02)
    # Independent attributes: 4 standard errors of a correlation are 4 / sqrt(20,000).
    correlation = np.corrcoef(faces.labels.T) - np.eye(4)
    assert np.abs(correlation).max() < 0.03


def test_sources():
    faces = smiley(20_000, seed=3)
    assert sum(FEATURES) == 18
    assert faces.presence.shape == faces.values.shape == (20_000, 18)
    blocks = np.split(faces.presence, np.cumsum(FEATURES)[:-1], axis=1)
    for attribute, block in enumerate(blocks):
        assert (block == faces.labels[:, [attribute]]).all()
    # Drawn for absent attributes too, and standard normal: 5 standard errors.
    absent = faces.presence == 0
    assert abs(faces.values[absent].mean()) < 5 / np.sqrt(absent.sum())
    np.testing.assert_allclose(faces.values.std(axis=0), 1, atol=5 / np.sqrt(2 * 20_000))


def test_names_of_sources():
    names = np.split(np.array(SOURCES), np.cumsum(FEATURES)[:-1])
    assert [len(set(block)) for block in names] == list(FEATURES)  # different ones within an attribute


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_sources_of_a_split_are_those_of_its_faces(split):
    faces, sources = load("smiley").split(split), smiley_sources(split)
    assert sources.dtype == np.float64 and sources.shape == (len(faces), 18)
    blocks = np.split(sources, np.cumsum(FEATURES)[:-1], axis=1)
    for attribute, block in enumerate(blocks):
        assert ((block != 0) == (faces.labels[:, [attribute]] == 1).numpy()).all()
    # The sizes of eyes, which erase, and of bowties, which draw, tell how many pixels are set where they are.
    for column, rows, sign in ((2, slice(11, 17), -1), (17, slice(27, 32), 1)):
        shown = sources[:, column] != 0
        count = faces.x[:, rows].double().sum((1, 2)).numpy()[shown]
        assert sign * np.corrcoef(sources[shown, column], count)[0, 1] > 0.5


def test_sources_of_an_unknown_split():
    with pytest.raises(ValueError, match="split: expected one of train, valid, test, got 'unseen'"):
        smiley_sources("unseen")


def test_equal_seeds_give_equal_faces_and_others_differ():
    first, again, other = smiley(700, 5), smiley(700, 5), smiley(700, 6)
    for left, right in zip(first, again, strict=True):
        assert (left == right).all()
    assert (first.x != other.x).any() and (first.values != other.values).any()


REGIONS = {
    # attribute: (rows, columns) from 0 that it may touch, and the change of pixels that it makes
    "eyes": (slice(8, 20), slice(6, 26), -1),
    "mouth": (slice(17, 28), slice(8, 24), -1),
    "hat": (slice(0, 11), slice(0, 32), 1),
    "bowtie": (slice(22, 32), slice(5, 27), 1),
}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_an_attribute_changes_pixels_in_its_own_place_and_direction(attribute):
    faces = smiley(20_000, seed=7)
    column = ATTRIBUTES.index(attribute)
    others = np.delete(faces.labels, column, axis=1)
    alone = faces.x[(others == 0).all(axis=1) & (faces.labels[:, column] == 1)].astype(int)
    bare = faces.x[(faces.labels == 0).all(axis=1)].astype(int)
    assert (bare == bare[0]).all()
    rows, columns, sign = REGIONS[attribute]
    change = alone - bare[0]
    assert set(np.unique(change)) == {0, sign}
    assert (change != 0).any(axis=(1, 2)).mean() > 0.99
    change[:, rows, columns] = 0
    assert (change == 0).all()


@pytest.mark.parametrize(
    ("source", "statistic", "sign"),
    [
        (0, "eye distance", 1),
        (1, "row", 1),
        (2, "area", 1),
        (3, "width", 1),
        (4, "area", 1),
        (5, "column", 1),
        (6, "row", 1),
        (8, "column", 1),
        (9, "row", 1),
        (10, "width", 1),
        (11, "area", 1),
        (12, "area", 1),
        (13, "area", 1),
        (14, "column", 1),
        (15, "row", 1),
        (16, "width", 1),
        (17, "area", 1),
    ],
)
def test_each_source_moves_what_it_names(source, statistic, sign):
    faces = smiley(40_000, seed=9)
    attribute = int(np.searchsorted(np.cumsum(FEATURES), source, side="right"))
    chosen = (faces.labels == np.eye(4, dtype=int)[attribute]).all(axis=1)
    bare = faces.x[(faces.labels == 0).all(axis=1)][0]
    change = (faces.x[chosen] != bare).astype(float)
    values = faces.values[chosen, source]
    drawn = change.sum(axis=(1, 2)) > 0
    change, values = change[drawn], values[drawn]
    area = change.sum(axis=(1, 2))
    pixel = np.arange(32)
    measured = {
        "area": area,
        "row": change.sum(axis=2) @ pixel / area,
        "column": change.sum(axis=1) @ pixel / area,
        "width": change.any(axis=1).sum(axis=1),
        "eye distance": (change.sum(axis=1) * np.abs(pixel - 15.5)).sum(axis=1) / area,
    }[statistic]
    assert sign * np.corrcoef(measured, values)[0, 1] > 0.1  # 5 standard errors


def test_the_mouth_bends_with_its_last_source():
    faces = smiley(20_000, seed=2)
    only_mouth = (faces.labels == [0, 1, 0, 0]).all(axis=1)
    bare = faces.x[(faces.labels == 0).all(axis=1)][0]
    holes = faces.x[only_mouth] != bare
    rows = np.arange(holes.shape[1])
    first = holes.argmax(axis=2).astype(float)
    first[holes.sum(axis=2) == 0] = np.inf
    row_of_the_left_end = np.where(first == first.min(axis=1, keepdims=True), rows, np.nan)
    assert np.corrcoef(np.nanmean(row_of_the_left_end, axis=1), faces.values[only_mouth, 7])[0, 1] > 0.4


def test_an_image_costs_no_work_of_its_own():
    smiley(10, 0)
    few, many = (count_calls(lambda n=n: smiley(n, 0)) for n in (10, 1000))
    assert 0 < many < 5 * few


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="n: expected a number of images >= 0, got -1"):
        smiley(-1, 0)


def test_load():
    data, again = load("smiley", seed=0), load("smiley", seed=1)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [20_000, 2_000, 4_000]
    assert data.event_shape == (32, 32)
    assert data.preprocessing.kind is Kind.BINARY and data.preprocessing.binary
    assert data.label_names == ("eyes", "mouth", "hat", "bowtie")
    assert data.label_sizes == (2, 2, 2, 2)
    assert torch.equal(data.train.x, again.train.x)
    assert not torch.equal(data.valid.x, data.train.x[:2000])
    assert not torch.equal(data.valid.x, data.test.x[:2000])
    for name in ("train", "valid", "test"):
        assert data.split(name).labels.unique().tolist() == [0, 1]
