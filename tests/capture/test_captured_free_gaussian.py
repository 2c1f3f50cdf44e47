"""Captured free Gaussians: they are the eager ones, and captured anew where these would change."""

import copy

import pyro
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae import VAE
from pyro_fmvae.capture import CapturedFreeGaussian, CaptureError
from pyro_fmvae.capture.recording import Recording
from pyro_fmvae.models.em import FreeGaussian
from tests.capture.captured import CLOSE
from tests.capture.cuda_double import stand_in
from tests.models.em.free import found, programs, start
from tests.models.small import binary_data, small_model


@pytest.mark.parametrize("name", programs())
def test_captured_steps_are_eager_ones(name):
    program, x, at = programs()[name], binary_data(6), start(6, 4)
    eager, captured = (
        found(program, x, at, calls=3, kind=kind) for kind in (FreeGaussian, CapturedFreeGaussian)
    )
    assert not torch.equal(eager[0], at[0])
    assert torch.equal(eager[1], at[1].log().exp()) is (name == "points")
    for one, other in zip(eager, captured, strict=True):
        assert_close(other, one, **CLOSE)


def test_copies_capture_steps_of_their_own():
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    free = CapturedFreeGaussian(vae, 5, 0.1)
    torch.manual_seed(1)
    expected = free(x, *at)
    other = copy.deepcopy(free)
    torch.manual_seed(1)
    assert all(map(torch.equal, other(x, *at), expected))
    with torch.no_grad():
        other.program.decoder.linear.weight.mul_(-2)
    torch.manual_seed(1)
    assert not torch.allclose(other(x, *at)[0], expected[0])
    torch.manual_seed(1)
    assert all(map(torch.equal, free(x, *at), expected))


def test_networks_are_read_anew():
    """Changed in place (as optimisers do), replaced, or in another mode."""
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    vae.decoder.hidden.append(nn.Dropout(0.5))
    free = CapturedFreeGaussian(vae, 3, 0.1)

    def agree():
        torch.manual_seed(1)
        found_by_it = free(x, *at)
        for one, other in zip(found(vae, x, at, 3), found_by_it, strict=True):
            assert_close(other, one, **CLOSE)
        return found_by_it[0]

    results = [agree()]
    with torch.no_grad():
        vae.decoder.linear.weight.mul_(-3)
    results.append(agree())
    vae.decoder.linear.weight = nn.Parameter(torch.randn_like(vae.decoder.linear.weight))
    results.append(agree())
    vae.eval()
    results.append(agree())
    assert len({loc.sum().item() for loc in results}) == 4


def test_batches_of_other_sizes_are_captured_as_they_come():
    vae = small_model((1, 1)).pretraining()
    free = CapturedFreeGaussian(vae, 2, 0.1)
    for size in (6, 3, 6, *range(10, 18), 6):
        x, at = binary_data(size), start(size, 4)
        torch.manual_seed(1)
        assert_close(free(x, *at)[0], found(vae, x, at, 2)[0], **CLOSE)
    assert len(free._captured) == 8


@pytest.mark.parametrize("refusal", ["", "no memory"])
def test_on_a_gpu_a_step_is_a_graph(monkeypatch, refusal):
    """On the stand-in for CUDA's: three calls warm up, all others are replays."""
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    expected = found(vae, x, at, 6, calls=2, kind=CapturedFreeGaussian)
    recorder = stand_in(monkeypatch)
    recorder.refusal = refusal
    monkeypatch.setattr(Recording, "on_device", lambda _: True)
    torch.manual_seed(1)
    free = CapturedFreeGaussian(vae, 6, 0.1)
    first = free(x, *at)
    kept = [t.clone() for t in first]
    assert all(map(torch.equal, free(x, *at), expected))
    assert all(map(torch.equal, first, kept))  # no view of what a graph writes to
    assert [graph.replays for graph in recorder.graphs] == ([0] if refusal else [9])


class Asking(VAE):
    """A program that cannot be captured."""

    def model(self, x, **options):
        assert x.sum().item() > -1
        super().model(x, **options)


def test_programs_that_cannot_be_captured():
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    asking = Asking(vae.encoder, vae.decoder, vae.observation, 4, 20)
    with pytest.raises(CaptureError, match=r"x\.sum\(\)\.item\(\)"):
        found(asking, x, at, kind=CapturedFreeGaussian)
    assert all(map(torch.equal, found(asking, x, at), found(vae, x, at)))


def test_only_a_tensor_may_change_without_a_capture():
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    free = CapturedFreeGaussian(vae, 2, 0.1)
    weight = torch.tensor(1e6)
    for value in (1e6, 1e-6):
        free(x, *at, kl_weight=weight.fill_(value))
    assert len(free._captured) == 1
    for value in (1e6, 1e-6):
        free(x, *at, kl_weight=value)
    assert len(free._captured) == 3


class Weighted(VAE):
    """A program that is given its weight by a function."""

    def model(self, x, weight, **options):
        super().model(x, kl_weight=weight(), **options)

    def guide(self, x, weight, **options):
        super().guide(x, kl_weight=weight(), **options)


WEIGHT = 1e6


def read():
    return WEIGHT


def test_what_functions_among_the_arguments_read_is_captured_anew(monkeypatch):
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    weighted = Weighted(vae.encoder, vae.decoder, vae.observation, 4, 20)
    free = CapturedFreeGaussian(weighted, 2, 0.1)
    for value in (1e6, 1e-6):
        monkeypatch.setitem(globals(), "WEIGHT", value)
        torch.manual_seed(1)
        captured = free(x, *at, weight=read)[0]
        torch.manual_seed(1)
        assert_close(captured, FreeGaussian(vae, 2, 0.1)(x, *at, kl_weight=value)[0], **CLOSE)


@pytest.mark.parametrize("validation", [True, False])
def test_numbers_that_are_not_finite(validation):
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    free = CapturedFreeGaussian(vae, 2, 0.1)
    free(x, *at)
    with pyro.validation_enabled(validation):
        if validation:
            with pytest.raises(ValueError, match=r"^loc, scale: not finite after 2 steps; expected finite"):
                free(x, at[0], -at[1])
        else:
            assert free(x, at[0], -at[1])[1].isnan().all()
