import numpy as np
import pytest
import torch

from pyro_fmvae.figures import spread
from tests.figures.generator import STD, Generator, grid, overlaps, texts


@pytest.mark.parametrize("colour", [False, True])
def test_mean_deviation_and_sample(colour):
    generator = Generator(colour=colour)
    shown = grid(spread(generator.factors(std=lambda z: 0.2 * generator.decode(z)), rows=5))
    assert shown.shape[:2] == (5, 3)
    mean, std, sample = shown.swapaxes(0, 1)
    z = generator.decoded[0]
    np.testing.assert_allclose(mean, generator.decode(z))
    np.testing.assert_allclose(std, mean / mean.max())  # scaled to its greatest value
    np.testing.assert_allclose(sample, 1 - mean)
    assert len(np.unique(mean.reshape(5, -1), axis=0)) == 5


def test_the_scale_is_said():
    figure = spread(Generator().factors(), rows=1)
    assert (grid(figure)[:, 1] == 1).all()
    assert f"white {STD};" in texts(figure)[-1]
    assert {"mean", "standard deviation", "sample"} <= set(texts(figure))


def test_no_deviation_at_all():
    shown = grid(spread(Generator().factors(std=lambda z: torch.zeros(len(z), 2, 3)), rows=1))
    assert (shown[:, 1] == 0).all()


def test_samples_are_clipped_and_depend_on_the_seed_alone():
    factors = Generator().factors(draw=lambda z: 2 * torch.randn(len(z), 2, 3))
    before = torch.get_rng_state()
    first, again, other = (grid(spread(factors, rows=2, seed=seed))[:, 2] for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert first.min() == 0 and first.max() == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_no_text_overlaps():
    assert overlaps(spread(Generator().factors(), rows=1)) == []


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({}, 0, "rows: expected a number >= 1"),
        ({"std": None}, 1, "factors: this picture needs 'std'"),
        ({"draw": None}, 1, "factors: this picture needs 'draw'"),
        ({"std": lambda z: torch.zeros(len(z), 3, 3)}, 1, r"std: expected shape \[1, 2, 3\]"),
        ({"draw": lambda z: torch.zeros(len(z), 2, 3, 3)}, 1, r"draw: expected shape \[1, 2, 3\]"),
    ],
)
def test_errors(changes, rows, message):
    with pytest.raises(ValueError, match=message):
        spread(Generator().factors(**changes), rows)
