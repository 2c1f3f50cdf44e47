import pytest
import torch

from pyro_fmvae.figures.draws import draw_blocks, draw_codes, draw_latent
from tests.figures.generator import SIZES, Generator


def test_codes_follow_the_shares_of_components_in_use():
    shares = [torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0, 0.001]), torch.ones(5)]
    codes = draw_codes(Generator().factors(shares=shares), 2000)
    assert codes.shape == (2000, 3) and codes.dtype == torch.int64
    assert abs(codes[:, 0].double().mean() - 0.75) < 5 * (0.75 * 0.25 / 2000) ** 0.5
    assert (codes[:, 1] == 1).all()
    assert set(codes[:, 2].tolist()) == set(range(5))


def test_held_components_leave_the_other_draws_alone():
    factors = Generator().factors()
    torch.manual_seed(0)
    free = draw_codes(factors, 50)
    torch.manual_seed(0)
    held = draw_codes(factors, 50, {1: 2})
    assert (held[:, 1] == 2).all() and (held[:, [0, 2]] == free[:, [0, 2]]).all()


def test_blocks():
    blocks = draw_blocks(Generator().factors(), 2, torch.tensor([4, 1]), 3)
    assert blocks.shape == (2, 3, 2)
    assert (blocks[..., 0] == torch.tensor([[4.0], [1.0]])).all()
    assert len(blocks[..., 1].unique()) == 6


def test_shape_of_the_sampler():
    factors = Generator().factors(sample_latent=lambda n, codes: torch.zeros(n, 5))
    with pytest.raises(ValueError, match=r"sample_latent: expected z of shape \[2, 6\], got \[2, 5\]"):
        draw_latent(factors, torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("held", [{3: 0}, {-1: 0}, {0: 2}, {0: -1}])
def test_errors(held):
    with pytest.raises(ValueError, match="held: expected a "):
        draw_codes(Generator().factors(), 1, held)


def test_names_of_components():
    names = ("hat", "hair", "rest")
    factors = Generator().factors(names=names, labelled=2, value_names=((), ("blond", "dark")))
    assert [factors.component_name(1, k) for k in range(SIZES[1])] == ["blond", "dark", "2"]
    assert [factors.value(1, k) for k in range(SIZES[1])] == ["blond", "dark", "hair 2"]
    assert factors.value(0, 1) == "hat 1" and factors.value(2, 4) == "rest 4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labelled": 4}, r"labelled: expected a number in 0\.\.3, got 4"),
        ({"labelled": -1}, "labelled: expected a number in"),
        ({"value_names": ((),) * 4}, "value_names: expected at most 3, got 4"),
    ],
)
def test_errors_of_factors(changes, message):
    with pytest.raises(ValueError, match=message):
        Generator().factors(**changes)
