import itertools
import math

import numpy as np
import pytest
import torch

from pyro_fmvae.figures import attribute_grid
from pyro_fmvae.figures.attribute_grid import default_choice
from tests.figures.generator import SIZES, Generator, grid, overlaps, pale, texts

LONG = "a property with a name that goes on and on, far beyond what anybody would read"


@pytest.mark.parametrize("chosen", [[0], [2, 0], [0, 2], [1, 2, 0]])
@pytest.mark.parametrize("colour", [False, True])
def test_each_column_shows_its_combination(chosen, colour):
    shown = grid(attribute_grid(Generator(colour=colour).factors(), chosen, rows=4))
    assert shown.shape[:2] == (4, math.prod(SIZES[factor] for factor in chosen))
    shown = shown[..., 0] if colour else shown
    for column, combination in enumerate(itertools.product(*(range(SIZES[factor]) for factor in chosen))):
        for factor, component in zip(chosen, combination, strict=True):
            np.testing.assert_allclose(shown[:, column, 0, factor], component / SIZES[factor])


def test_all_else_is_held_along_a_row():
    shown = grid(attribute_grid(Generator().factors(), [2, 0], rows=4))
    assert (shown[:, :, :, 1] == shown[:, :1, :, 1]).all()
    assert len(np.unique(shown[:, 0, 1, 1])) == 4  # and drawn anew from row to row
    # A chosen block is drawn once per row and component: columns are a Cartesian product of blocks.
    noise = shown[:, :, 1].reshape(4, 5, 2, 3)
    assert (noise[..., 2] == noise[:, :, :1, 2]).all() and (noise[..., 0] == noise[:, :1, :, 0]).all()
    assert len(np.unique(noise[..., 2])) == 4 * 5 and len(np.unique(noise[..., 0])) == 4 * 2


def test_headings_span_the_columns_of_equal_value():
    factors = Generator().factors(
        names=("hat", "hair", "rest"), labelled=2, value_names=((), ("blond", "dark"))
    )
    figure = attribute_grid(factors, [1, 0], rows=1)
    places = {text.get_text(): text for text in figure.texts}
    assert {"hat", "hair", "blond", "dark", "2"} <= places.keys()
    assert [texts(figure).count(text) for text in ("blond", "dark", "2", "0", "1")] == [1, 1, 1, 3, 3]
    centres = sorted(text.get_position()[0] for text in figure.texts if text.get_text() in ("0", "1"))
    assert places["dark"].get_position()[0] == pytest.approx((centres[2] + centres[3]) / 2)


def test_unused_components_are_pale():
    shares = [torch.tensor([1.0, 0.0]), torch.ones(3), torch.ones(5)]
    figure = attribute_grid(Generator().factors(shares=shares), [1, 0], rows=2)
    assert pale(figure).tolist() == [[False, True] * 3] * 2
    assert " ".join(texts(figure)).endswith("Pale: unused components.")
    figure = attribute_grid(Generator().factors(shares=shares), [0, 1], rows=1)
    assert pale(figure).tolist() == [[False] * 3 + [True] * 3]
    assert "1 unused" in texts(figure)
    assert not any("unused" in text for text in texts(attribute_grid(Generator().factors(), rows=1)))


@pytest.mark.parametrize(
    ("sizes", "labelled", "expected"),
    [
        ((2, 2, 2, 2), 4, (0, 1, 2, 3)),
        ((6, 6, 6, 6, 3, 3, 16), 6, (0, 1)),
        ((6, 7, 2), 3, (0,)),  # 42 combinations are too many, and only leading ones are taken
        ((40, 2), 2, (0,)),
        ((65, 2), 2, ()),
        ((4, 2, 3, 2), 1, (0,)),
        ((16, 2, 3), 0, (1, 2)),
        ((64,), 0, (0,)),
        ((65, 4), 0, (1,)),
        ((65,), 0, ()),
    ],
)
def test_default_choice(sizes, labelled, expected):
    shares = [torch.ones(size) for size in sizes]
    assert default_choice(Generator(sizes).factors(labelled=labelled, shares=shares)) == expected


def test_default_choice_without_labels_goes_by_components_in_use():
    shares = [torch.ones(3), torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 1, 0, 0, 0])]
    assert default_choice(Generator((3, 4, 5)).factors(shares=shares)) == (1, 2)


def test_random_numbers():
    factors, before = Generator().factors(), torch.get_rng_state()
    first, again, other = (grid(attribute_grid(factors, rows=2, seed=seed)) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 3, 6), (64, 2), (6, 6)])
@pytest.mark.parametrize("names", [(), ("$\\frac$ (€_$",), (LONG,)])
def test_no_text_overlaps(sizes, names):
    count = len(sizes)
    shares = [torch.tensor([*[1.0] * (size - 1), 0.0]) for size in sizes]
    factors = Generator(sizes).factors(
        names=names * count, labelled=count, value_names=(names * 2,) * count, shares=shares
    )
    chosen = range(count) if math.prod(sizes) <= 64 else None
    assert overlaps(attribute_grid(factors, chosen, rows=2)) == []


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"rows": 0}, "rows: expected a number >= 1, got 0"),
        ({}, {"chosen": []}, "chosen: expected different factors, at least one"),
        ({}, {"chosen": [0, 0]}, "chosen: expected different factors"),
        ({}, {"chosen": [3]}, r"chosen: expected a factor in 0\.\.2, got 3"),
        ({}, {"chosen": [-1]}, "chosen: expected a factor in"),
        ({"sizes": (9, 8)}, {"chosen": [0, 1]}, "chosen: expected at most 64 combinations .*, got 9·8"),
        ({"decode": lambda z: z}, {}, "decode: expected images"),
        ({"decode": lambda z: torch.zeros(1, 2, 2)}, {}, "decode: expected 48 images, got 1"),
        ({"sample_latent": lambda n, c: torch.zeros(n, 5)}, {}, "sample_latent: expected z"),
    ],
)
def test_errors(changes, arguments, message):
    generator = Generator(changes.pop("sizes", SIZES))
    with pytest.raises(ValueError, match=message):
        attribute_grid(generator.factors(**changes), **{"chosen": [0, 1], **arguments})
