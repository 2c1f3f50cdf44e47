import json
from dataclasses import replace

import pytest
import torch

from pyro_fmvae.data import PatchTransform
from pyro_fmvae.data.patch_transform import FLOOR


def greys(n=4000, size=4, dtype=torch.float64):
    """Correlated patches in [0, 1] of many brightnesses."""
    x = torch.randn(n, size, size).cumsum(1).cumsum(2).cumsum(1).cumsum(2)
    return (0.5 + x / x.abs().max() / 2).to(dtype)


def covariance(x):
    flat = x.flatten(1)
    return flat.T @ flat / len(flat)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("on_off", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
def test_patches_are_centred_and_come_back_less_their_mean(whiten, on_off, dtype):
    x = greys(dtype=dtype)
    transform = PatchTransform.fit(x, 100, whiten, on_off)
    seen = transform.apply(x)
    assert seen.dtype == dtype and seen.shape[1:] == transform.event_shape
    assert transform.event_shape == ((4, 8) if on_off else (4, 4))
    centred = x - x.mean((1, 2), keepdim=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(transform.invert(seen), centred, atol=tolerance, rtol=0)
    torch.testing.assert_close(
        transform.invert(seen[:6].unflatten(0, (2, 3)))[1, 2], centred[5], atol=tolerance, rtol=0
    )


def test_without_whitening_there_is_one_scale():
    x = greys()
    centred = x - x.mean((1, 2), keepdim=True)
    transform = PatchTransform.fit(x, 100, whiten=False, on_off=False)
    torch.testing.assert_close(transform.apply(x), centred / centred.std(correction=0))
    assert transform.apply(x).square().mean().item() == pytest.approx(1)


def test_whitening_makes_kept_directions_uncorrelated_with_variance_one():
    x = greys()
    plain = PatchTransform.fit(x, 100, whiten=False, on_off=False)
    transform = PatchTransform.fit(x, 100, whiten=True, on_off=False)
    before = covariance(plain.apply(x))
    values, vectors = torch.linalg.eigh(before)
    floor = FLOOR * values.mean()
    assert 0 < (values > floor).sum() < 15  # some are kept, and not only the mean lies below the floor
    expected = vectors @ (values / values.clamp(min=floor)).diag() @ vectors.T
    torch.testing.assert_close(covariance(transform.apply(x)), expected, atol=1e-8, rtol=0)
    kept = vectors[:, values > floor]
    moments = kept.T @ covariance(transform.apply(x)) @ kept
    torch.testing.assert_close(moments, torch.eye(kept.shape[1]), atol=1e-8, rtol=0)
    matrix = torch.tensor(transform.whitening).reshape(16, 16)
    torch.testing.assert_close(matrix, matrix.T)  # zero-phase: pixels stay where they are


def test_on_and_off_channels_lie_side_by_side():
    x = greys()
    plain, split = (PatchTransform.fit(x, 100, whiten=True, on_off=on_off) for on_off in (False, True))
    seen, both = plain.apply(x), split.apply(x)
    assert (both >= 0).all() and (both[..., :4] * both[..., 4:] == 0).all()
    assert torch.equal(both[..., :4], seen.clamp(min=0)) and torch.equal(both[..., 4:], -seen.clamp(max=0))


@pytest.mark.parametrize("on_off", [False, True])
def test_missing_greys_stay_missing_and_have_no_part_in_the_mean(on_off):
    x = greys(10)
    transform = PatchTransform.fit(x, 100, whiten=False, on_off=on_off)
    mean = (x[0].sum() - x[0, 1, 2]) / 15
    x[0, 1, 2] = torch.nan
    x[1] = torch.nan
    back = transform.invert(transform.apply(x))
    assert back.isnan().sum() == 17 and back[0, 1, 2].isnan() and back[1].isnan().all()
    torch.testing.assert_close(back[0, 0], x[0, 0] - mean)
    whitened = PatchTransform.fit(greys(), 100, whiten=True, on_off=on_off)
    with pytest.raises(
        ValueError, match=r"greys: expected none that is missing \(NaN\) in patches to be whit"
    ):
        whitened.apply(x)


@pytest.mark.parametrize("whiten", [False, True])
def test_json_round_trip(whiten):
    transform = PatchTransform.fit(greys(), 100, whiten, on_off=True)
    back = PatchTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert back == transform and hash(back) == hash(transform)
    assert (back.scale, back.whitening) == (transform.scale, transform.whitening)


def test_equality_forgives_roundings_alone():
    transform = PatchTransform.fit(greys(), 100, whiten=True, on_off=False)
    matrix = transform.whitening
    rounded = replace(
        transform, scale=transform.scale * (1 + 1e-6), whitening=(matrix[0] + 1e-6, *matrix[1:])
    )
    assert rounded == transform and hash(rounded) == hash(transform)
    for change in (
        {"scale": transform.scale * 1.01},
        {"whitening": (matrix[0] * 1.1, *matrix[1:])},
        {"whitening": None},
        {"count": 99},
        {"on_off": True},
    ):
        assert replace(transform, **change) != transform
    assert transform != "something else"


@pytest.mark.parametrize(
    ("training", "whiten", "message"),
    [
        (torch.ones(20, 4, 4), False, "training: expected patches that are not flat, all of them are"),
        (torch.rand(15, 4, 4), True, "whiten: expected at least 16 training patches, got 15"),
    ],
)
def test_patches_that_nothing_can_be_fitted_to(training, whiten, message):
    with pytest.raises(ValueError, match=message):
        PatchTransform.fit(training, 100, whiten, on_off=False)


def test_a_matrix_of_another_size():
    with pytest.raises(ValueError, match="whitening: expected 256 numbers, got 3"):
        PatchTransform(4, 100, False, 1.0, (1.0, 0.0, 0.0))
