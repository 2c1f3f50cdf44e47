import numpy as np
import pytest
import torch

from pyro_fmvae.figures import clusters
from tests.figures.generator import SIZES, STD, Generator, grid, overlaps, pale, texts


def test_mean_and_variance_of_x_given_the_component():
    generator = Generator()
    figure = clusters(generator.factors(), 2, most=3, samples=4, draws=300)
    shown = grid(figure)
    assert shown.shape[:2] == (3, 2 + 4)
    z = torch.cat(generator.decoded).unflatten(0, (3, 2, 300))[:, 0]  # each is decoded for mean and std
    images = torch.stack([generator.decode(part) for part in z])
    variance = images.var(1, correction=0) + STD**2
    np.testing.assert_allclose(shown[:, 0], images.mean(1))
    np.testing.assert_allclose(shown[:, 1], variance / variance.max())
    np.testing.assert_allclose(shown[:, 2:], images[:, :4])
    assert f"white {variance.max():.2g};" in " ".join(texts(figure))
    # From the most used component on, alone in this factor; the others have the same draws in each row.
    np.testing.assert_allclose(images[:, :, 0, 2], torch.tensor([4, 3, 2])[:, None].expand(3, 300) / 5)
    assert (images[..., :2] == images[:1, ..., :2]).all()


def test_other_factors_are_drawn_by_their_shares():
    draws = 2000
    shown = grid(clusters(Generator().factors(), 2, most=1, draws=draws))
    share = torch.arange(1.0, 4) / 6
    value = torch.arange(3.0) / 3
    expected = (share * value).sum()
    error = ((share * value**2).sum() - expected**2).sqrt() / draws**0.5
    assert abs(shown[0, 0, 0, 1] - expected) < 5 * error


def test_unused_components_are_pale():
    shares = [torch.ones(2), torch.tensor([0.0, 1, 1]), torch.ones(5)]
    figure = clusters(Generator().factors(shares=shares), 1, samples=1, draws=2)
    assert pale(figure)[:, 0].tolist() == [False, False, True]
    assert texts(figure).count("unused") == 1


def test_names():
    names = {"names": ("hat", "hair", "rest"), "labelled": 2, "value_names": ((), ("blond",))}
    figure = clusters(Generator().factors(**names), 1, samples=1, draws=1)
    assert {"hair", "blond", "1", "2", "50 %"} <= set(texts(figure))


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("sizes", [(3,), SIZES])
def test_no_text_overlaps(sizes, samples):
    long = "a value with a name that goes on and on, far beyond what anybody would read"
    factors = Generator(sizes).factors(
        names=(long,) * len(sizes), labelled=1, value_names=((long, "$\\frac$"),)
    )
    assert overlaps(clusters(factors, 0, samples=samples, draws=5)) == []


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"factor": 3}, r"factor: expected a factor in 0\.\.2, got 3"),
        ({}, {"most": 0}, "most, samples: expected numbers >= 1"),
        ({}, {"samples": 0}, "most, samples: expected numbers >= 1"),
        ({}, {"draws": 4}, "draws: expected a number >= 5, got 4"),
        ({"std": None}, {}, "factors: this picture needs 'std'"),
        ({"std": lambda z: torch.zeros(len(z), 2)}, {}, r"std: expected shape \[100, 2, 3\]"),
        ({"decode": lambda z: z, "std": lambda z: z}, {}, "decode: expected images"),
    ],
)
def test_errors(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        clusters(Generator().factors(**changes), **{"factor": 0, **arguments})
