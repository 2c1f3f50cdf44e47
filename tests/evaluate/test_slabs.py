import numpy as np
import pytest
import torch

from pyro_fmvae.evaluate.slabs import Slabs, resample_active, slabs_of


def codes(n=200):
    z = torch.randn(n, 5) * torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0]) + torch.arange(5.0)
    return z * (torch.rand(n, 5) < torch.tensor([0.1, 0.5, 0.9, 1.0, 0.0]))


def test_slabs_are_mean_and_sd_of_what_is_not_zero():
    z = codes()
    slabs = slabs_of(z)
    for j in range(4):
        values = z[:, j][z[:, j] != 0].numpy()
        assert slabs.loc[j].item() == pytest.approx(np.mean(values))
        assert slabs.scale[j].item() == pytest.approx(np.std(values))


def test_never_or_once_active():
    slabs = slabs_of(torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    assert slabs.loc.tolist() == [0, 3] and slabs.scale.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype(dtype):
    z = codes().to(dtype)
    slabs = slabs_of(z)
    assert slabs.loc.dtype == slabs.scale.dtype == resample_active(z, slabs, 2).dtype == dtype


def test_the_same_latents_stay_active():
    z = codes()
    drawn = resample_active(z, slabs_of(z), 30)
    assert drawn.shape == (30, 200, 5)
    assert ((drawn != 0) == (z != 0)).all()
    values = drawn[:, z != 0]
    assert len(values.unique()) == values.numel()  # each is a draw of its own


def test_values_are_drawn_from_the_slabs():
    slabs = Slabs(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
    drawn = resample_active(torch.ones(100, 2), slabs, 1000).flatten(0, 1)
    error = slabs.scale / len(drawn) ** 0.5
    assert ((drawn.mean(0) - slabs.loc).abs() < 4 * error).all()
    assert ((drawn.std(0) - slabs.scale).abs() < 4 * error / 2**0.5).all()
    assert abs(torch.corrcoef(drawn.T)[0, 1]) < 4 / len(drawn) ** 0.5


@pytest.mark.parametrize("latents", [torch.zeros(3), torch.zeros(2, 0), torch.zeros(2, 1, 1)])
def test_errors_of_slabs(latents):
    with pytest.raises(ValueError, match=r"latents: expected shape \[n, J\], got"):
        slabs_of(latents)


@pytest.mark.parametrize(
    ("z", "draws", "message"),
    [
        (torch.zeros(2, 3), 1, r"z, draws: expected \[n, 5\] and a number >= 1, got \[2, 3\] and 1"),
        (torch.zeros(5), 1, r"z, draws: .* got \[5\] and 1"),
        (torch.zeros(2, 5), 0, r"z, draws: .* got \[2, 5\] and 0"),
    ],
)
def test_errors_of_draws(z, draws, message):
    with pytest.raises(ValueError, match=message):
        resample_active(z, slabs_of(codes()), draws)
