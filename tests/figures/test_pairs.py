import numpy as np
import pytest
import torch

from pyro_fmvae.figures import pair_grid
from tests.figures.generator import SIZES, Generator, grid, overlaps, pale, texts

FOUR = (*SIZES, 4)


@pytest.mark.parametrize("colour", [False, True])
def test_cells_are_means_over_draws(colour):
    generator = Generator(FOUR, colour)
    shown = grid(
        pair_grid(generator.factors(), 1, 2, draws=300, most=4)
    )  # more draws than are decoded at once
    assert shown.shape[:2] == (3, 4)
    z = torch.cat(generator.decoded).unflatten(0, (3, 4, 300))
    expected = torch.stack([torch.stack([generator.decode(cell).mean(0) for cell in row]) for row in z])
    np.testing.assert_allclose(shown, expected)
    np.testing.assert_allclose(z[..., 1 * 2], torch.tensor([2.0, 1, 0])[:, None, None].expand(3, 4, 300))
    np.testing.assert_allclose(z[..., 2 * 2], torch.tensor([4.0, 3, 2, 1])[:, None].expand(3, 4, 300))
    others = z[..., [0, 1, 6, 7]]
    assert (others == others[:1, :1]).all()  # the same draws of all else in every cell
    assert set(others[0, 0, :, 2].tolist()) == {0, 1, 2, 3}
    assert (z[..., 3] == z[:, :1, :, 3]).all() and (z[..., 5] == z[:1, :, :, 5]).all()
    assert len(z[0, 0, :, 3].unique()) == 300  # the given blocks are drawn, too


def test_other_factors_are_drawn_by_their_shares():
    draws = 2000
    shown = grid(pair_grid(Generator().factors(), 0, 1, draws=draws, most=1))
    share, value = torch.arange(1.0, 6) / 15, torch.arange(5.0) / 5
    expected = (share * value).sum()
    error = ((share * value**2).sum() - expected**2).sqrt() / draws**0.5
    assert abs(shown[0, 0, 0, 2] - expected) < 5 * error


def test_held():
    names = {"names": ("hat", "hair", "rest", "more"), "labelled": 2, "value_names": ((), ("blond", "dark"))}
    generator = Generator(FOUR)
    figure = pair_grid(generator.factors(**names), 3, 2, draws=5, held={1: 1, 0: 0})
    z = torch.cat(generator.decoded)
    assert (z[:, 2] == 1).all() and (z[:, 0] == 0).all()
    np.testing.assert_allclose(grid(figure)[..., 0, 1], 1 / 3)
    assert "held: hair = dark, hat = 0." in " ".join(texts(figure))
    figure = pair_grid(generator.factors(**names), 3, 2, draws=5, held={1: 1})
    assert "held: hair = dark; all other factors drawn." in " ".join(texts(figure))


def test_names_shares_and_unused_components():
    shares = [torch.ones(2), torch.tensor([1.0, 0, 3]), torch.tensor([0.0, 3, 1, 1, 0])]
    names = {"names": ("hat", "hair", "rest"), "labelled": 2, "value_names": ((), ("blond", "dark"))}
    figure = pair_grid(Generator().factors(shares=shares, **names), 1, 2, draws=2, most=4)
    assert {"hair", "rest  (4 of 5)", "blond", "dark", "2", "75 %", "25 %", "60 %", "20 %"} <= set(
        texts(figure)
    )
    assert texts(figure).count("unused") == 2
    rows, columns = np.array([False, False, True]), np.array([False, False, False, True])
    assert (pale(figure) == rows[:, None] | columns).all()


def test_random_numbers():
    factors, before = Generator().factors(), torch.get_rng_state()
    first, again, other = (grid(pair_grid(factors, 0, 1, draws=2, seed=seed)) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 12), (12, 1), (12, 12, 2)])
@pytest.mark.parametrize("value", ["", "blond", "a value with a name that goes on and on and on"])
def test_no_text_overlaps(sizes, value):
    shares = [torch.tensor([*[1.0] * (size - 1), 1.0 if size == 1 else 0.0]) for size in sizes]
    names = ("a property with a name that goes on and on, far beyond what anybody would read",) * len(sizes)
    values = ((value,) * 12,) * len(sizes) if value else ()
    factors = Generator(sizes).factors(shares=shares, names=names if value else (), value_names=values)
    assert overlaps(pair_grid(factors, 0, 1, draws=2)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"i": 3}, r"i: expected a factor in 0\.\.2, got 3"),
        ({"j": -1}, r"j: expected a factor in 0\.\.2, got -1"),
        ({"j": 0}, "i, j: expected two factors that are not held, got 0 and 0"),
        ({"held": {1: 0}}, "i, j: expected two factors that are not held"),
        ({"held": {3: 0}}, r"held: expected a factor in 0\.\.2, got 3"),
        ({"held": {2: 5}}, r"held: expected a component in 0\.\.4 for factor 2, got 5"),
        ({"draws": 0}, "draws, most: expected numbers >= 1"),
        ({"most": 0}, "draws, most: expected numbers >= 1"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        pair_grid(Generator().factors(), **{"i": 0, "j": 1, **arguments})
