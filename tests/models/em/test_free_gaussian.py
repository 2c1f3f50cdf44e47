"""Free Gaussians of data points: against the closed form, against torch's Adam, and what they leave be."""

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae import VAE, GaussianObservation
from pyro_fmvae.capture import CapturedFreeGaussian
from pyro_fmvae.infer.free_gaussian import BETAS, EPSILON, FreeGaussian, GaussianTable, near_prior
from tests.capture.captured import CLOSE
from tests.models.em.free import found, programs, start
from tests.models.small import Linear, binary_data, small_model

KINDS = [FreeGaussian, CapturedFreeGaussian]


def test_linear_model_has_its_optimum_in_closed_form():
    """The exact posterior's mean, and s_j² = 1 / (1 + |W_j|² / σ²); copies of a point differ by draws."""
    sigma, copies, matrix = 0.8, 300, torch.randn(4, 2)
    observation = GaussianObservation(1, sigma - 0.1, sigma + 0.1)
    vae, x = VAE(nn.Identity(), Linear(matrix), observation, 2, 10), torch.randn(3, 4)
    at = torch.zeros(3 * copies, 2), torch.ones(3 * copies, 2)
    loc, scale = found(vae, x.repeat_interleave(copies, 0), at, steps=600, rate=0.05)
    precision = torch.eye(2) + matrix.T @ matrix / sigma**2
    exact = (
        (torch.linalg.inv(precision) @ matrix.T @ x.T / sigma**2).T,
        -0.5 * (1 + matrix.square().sum(0) / sigma**2).log().expand(3, 2),
    )
    assert (exact[1] < -0.2).all() and exact[0].abs().max() > 0.3
    for values, expected in zip((loc, scale.log()), exact, strict=True):
        values = values.view(3, copies, 2)
        error = values.std(1) / math.sqrt(copies)
        assert ((values.mean(1) - expected).abs() < 4 * error).all()
        assert error.max() < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torchs_adam(kind):
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    at, steps, rate = start(6, 4), 7, 0.1
    free = [at[0].clone().requires_grad_(), at[1].log().requires_grad_()]
    adam = torch.optim.Adam(free, rate, BETAS, EPSILON)
    torch.manual_seed(1)
    for step in range(steps):
        adam.param_groups[0]["lr"] = rate * (1 - step / steps)
        loc, scale = free[0], free[1].exp()
        z = loc + scale * torch.normal(torch.zeros(6, 4), torch.ones(6, 4))
        logits = vae.decoder(z).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        loss = loss + 0.5 * (loc**2 + scale**2 - 1 - 2 * scale.log()).sum()
        adam.zero_grad()
        (30 / 6 * loss).backward()
        adam.step()
    loc, scale = found(vae, x, at, steps, rate, kind=kind)
    assert_close(loc, free[0].detach(), **CLOSE)
    assert_close(scale, free[1].detach().exp(), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vae", "ragged mixture"])
def test_nothing_else_changes(name, kind):
    program, x, at = programs()[name], binary_data(6), start(6, 4)
    given = [t.clone() for t in (x, *at)]
    before = {key: value.clone() for key, value in program.state_dict().items()}
    with poutine.trace() as outside:
        loc, scale = found(program, x, at, calls=2, kind=kind)
    assert not (loc.requires_grad or scale.requires_grad)
    assert all(torch.equal(value, before[key]) for key, value in program.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in program.parameters())
    assert all(map(torch.equal, (x, *at), given))
    assert len(pyro.get_param_store()) == 0
    assert not outside.trace.nodes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [1, 2])
def test_random_numbers_are_one_draw_for_each_step(kind, calls):
    """Capturing takes none."""
    found(small_model((1, 1)).pretraining(), binary_data(6), start(6, 4), 5, calls=calls, kind=kind)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    for _ in range(5 * calls):
        torch.normal(torch.zeros(6, 4), torch.ones(6, 4))
    assert torch.equal(torch.get_rng_state(), after)


def test_works_where_gradients_are_off_and_inside_of_handlers():
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    expected = found(vae, x, at)
    with torch.no_grad(), poutine.scale(scale=1e3), pyro.plate("other", 7, dim=-2):
        actual = found(vae, x, at)
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_works_in_inference_mode(kind):
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    expected = found(vae, x, at, kind=kind)
    with torch.inference_mode():
        inputs = [tensor.clone() for tensor in (x, *at)]
        actual = found(vae, inputs[0], inputs[1:], options={"kl_weight": torch.tensor(1.0)}, kind=kind)
    assert all(map(torch.equal, actual, expected))
    assert not any(tensor.is_inference() for tensor in actual)


def test_first_step_is_as_long_as_the_learning_rate():
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    free = FreeGaussian(vae, 1, 0.1)
    for rate in (0.1, 0.02):
        free.learning_rate = rate
        loc, scale = free(x, *at)
        assert_close((loc - at[0]).abs(), torch.full((6, 4), rate))
        assert_close((scale / at[1]).log().abs(), torch.full((6, 4), rate))


@pytest.mark.parametrize("kind", KINDS)
def test_further_arguments_reach_the_program(kind):
    """Under a great weight of the divergence q is the prior; a tensor may change between calls."""
    vae, x, at = small_model((1, 1)).pretraining(), binary_data(6), start(6, 4)
    free = kind(vae, 200, 0.1)
    weight = torch.tensor(1e6)
    loc, scale = free(x, *at, kl_weight=weight)
    assert_close(loc, torch.zeros(6, 4), rtol=0, atol=0.02)
    assert_close(scale, torch.ones(6, 4), rtol=0, atol=0.02)
    weight.fill_(1e-6)
    loc, _ = free(x, *at, kl_weight=weight)
    assert loc.abs().max() > 3
    assert free(x, *at, kl_weight=1e6)[0].abs().max() < 0.1
    assert free(x, *at, kl_weight=1e-6)[0].abs().max() > 3


def test_numbers_may_have_another_type_than_torchs_default():
    vae = small_model((1, 1)).pretraining().float()
    x, at = binary_data(6).float(), [t.float() for t in start(6, 4)]
    torch.set_default_dtype(torch.float32)  # restored by the fixture
    for kind in KINDS:
        assert found(vae, x, at, kind=kind)[1].dtype == torch.float32


def test_bfloat16_in_the_networks_is_near():
    vae, x = small_model((1, 1)).pretraining().float(), binary_data(6).float()
    at = [t.float() for t in start(6, 4)]
    torch.set_default_dtype(torch.float32)
    exact, rounded = (found(vae, x, at, autocast=dtype)[0] for dtype in (None, torch.bfloat16))
    assert not torch.equal(rounded, exact)
    assert_close(rounded, exact, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: expected a number >= 1, got 0"),
        ({"rate": 0.0}, "learning_rate: expected a number > 0, got 0.0"),
        ({"rate": math.nan}, "learning_rate: expected a number > 0, got nan"),
        ({"rate": math.inf}, "learning_rate: expected a number > 0, got inf"),
        (
            {"at": (torch.zeros(5, 4), torch.ones(5, 4))},
            r"loc, scale: expected the same shape \[6, J\], got \[5, 4\] and \[5, 4\]",
        ),
        ({"at": (torch.zeros(6, 4), torch.ones(6, 3))}, r"loc, scale: expected the same shape \[6, J\], got"),
        ({"at": (torch.zeros(6), torch.ones(6))}, r"loc, scale: expected the same shape \[6, J\], got"),
    ],
)
def test_refuses(changes, message):
    arguments = {"program": small_model((1, 1)).pretraining(), "x": binary_data(6), "at": start(6, 4)}
    with pytest.raises(ValueError, match=rf"^{message}"):
        found(**(arguments | changes))


def test_table_starts_near_the_prior_and_keeps_what_it_is_given():
    loc, scale = near_prior(2000, 3)
    assert scale.tolist() == [[1.0] * 3] * 2000
    assert loc.mean().abs() < 4 * 0.1 / math.sqrt(6000)
    assert loc.std().item() == pytest.approx(0.1, rel=0.04)
    table, rows = GaussianTable(5, 2), torch.tensor([3, 0])
    assert 0 < table(rows)[0].abs().max() < 1
    assert table(rows)[1].tolist() == [[1, 1], [1, 1]]
    before = table(torch.arange(5))[0]
    table.keep(rows, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    loc, scale = table(torch.arange(5))
    assert loc[rows].tolist() == [[1, 2], [3, 4]] and torch.equal(loc[[1, 2, 4]], before[[1, 2, 4]])
    assert scale.tolist() == [[0.3, 0.4], [1, 1], [1, 1], [0.1, 0.2], [1, 1]]
    assert list(table.state_dict()) == ["loc", "scale"] and not list(table.parameters())
