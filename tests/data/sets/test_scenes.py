import pytest
import torch

from pyro_fmvae.data import Kind, SparseOptions, load
from pyro_fmvae.data.patch_transform import FLOOR


def test_load():
    data = load("scenes")
    assert data.name == "scenes" and data.event_shape == (12, 12)
    assert data.preprocessing.kind is Kind.PATCHES
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [16_000, 2_000, 2_000]
    flat = data.train.x.double().flatten(1)
    values = torch.linalg.eigvalsh(flat.T @ flat / len(flat))
    # All but that of a patch's mean are above the floor.
    torch.testing.assert_close(values[1:], torch.ones(143).double(), atol=1e-3, rtol=0)
    assert values[0] < 1e-6 and FLOOR > 0
    held_out = data.test.x.double()
    assert 0.5 < held_out.square().mean() < 2
    # Natural images are sparse: of heavier tails than a Gaussian's, whose kurtosis is 3.
    assert (flat**4).mean() / (flat**2).mean() ** 2 > 5


def test_options():
    data = load("scenes", seed=5, sparse=SparseOptions(patch_size=6, patches=1000, whiten=False, on_off=True))
    assert data.event_shape == (6, 12) and len(data.train) == 800
    assert data.preprocessing.patches.whitening is None
    again = load("scenes", sparse=SparseOptions(patch_size=6, patches=1000, whiten=False, on_off=True))
    assert torch.equal(data.train.x, again.train.x)


def test_too_few_patches():
    with pytest.raises(ValueError, match="whiten: expected at least 144 training patches, got 80"):
        load("scenes", sparse=SparseOptions(patches=100))
