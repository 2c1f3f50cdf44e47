"""The objectives and averages of examples/variations.py, against what they are by definition."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from pyro_fmvae import RobbinsMonro, TraceConjugate_ELBO, fit
from pyro_fmvae.infer.phase import Budget
from pyro_fmvae.models.learning import Learning
from tests.models.small import binary_data, small_model
from tests.scripts import imported

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
STEPS = Budget(iterations=3)


@pytest.fixture(scope="module")
def variations():
    with imported(EXAMPLES, ["variations"]) as modules:
        yield modules.variations


def loss_of(program, *data):
    torch.manual_seed(0)
    return TraceConjugate_ELBO().loss(program.model, program.guide, *data)


@pytest.mark.parametrize("nats", [0.0, 0.2, 50.0])
def test_free_bits_are_a_floor_under_the_mean_divergence_of_each_dimension(variations, nats):
    vae, x = small_model((3, 3)).pretraining(), binary_data(8)
    loc, scale = vae.encoder(x)
    mean = kl_divergence(Normal(loc, scale), Normal(0.0, 1.0)).mean(0)
    assert nats in (0.0, 50.0) or 0 < (mean < nats).sum() < len(mean)
    extra = vae.num_data * (mean.clamp(min=nats) - mean).sum().item()
    assert loss_of(variations.FreeBits(vae, nats), x) == pytest.approx(loss_of(vae, x) + extra)


def test_pretraining_with_free_bits_moves_the_networks_that_were_given(variations):
    model = small_model()
    vae = model.pretraining()
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    list(fit([variations.FreePretraining(vae, Learning(), STEPS, 0.1)], [binary_data(8)]))
    assert all(not torch.equal(value, before[name]) for name, value in vae.state_dict().items())


@pytest.mark.parametrize("sizes", [(3,), (3, 3)])
def test_the_collapsed_objective_is_the_collapsed_bound(variations, sizes):
    model, x = small_model(sizes), binary_data(8)
    expected = []
    for seed in range(2):
        torch.manual_seed(seed)
        loc, scale = model.encoder(x)
        z = loc + scale * torch.randn_like(loc)
        log_likelihood = model.pretraining().log_likelihood(x, z)
        expected.append((log_likelihood + model.log_prior(z) - Normal(loc, scale).log_prob(z).sum(-1)).mean())
    phase = variations.Collapsed(model, Learning(), STEPS)
    assert loss_of(phase, x) == pytest.approx(-model.num_data * expected[0].item(), rel=1e-6)
    assert loss_of(phase, x) != pytest.approx(-model.num_data * expected[1].item(), rel=1e-6)


def test_collapsed_steps_leave_the_mixtures_as_they_are(variations):
    model = small_model((3, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    list(fit([variations.Collapsed(model, Learning(final_learning_rate=1e-4), STEPS)], [binary_data(8)]))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith(("encoder", "decoder"))}


def test_averages_are_exponential_ones_of_the_weights_after_each_step(variations):
    model = small_model()
    phase = variations.Averaging(model, Learning(), STEPS, [0.5, 0.9])
    weight, states = model.encoder.state_dict(), []
    for record in fit([phase], [binary_data(8)]):
        if record.step:
            states.append({name: value.clone() for name, value in model.encoder.state_dict().items()})
    assert len(states) == 3
    for decay, average in phase.averages.items():
        for name in weight:
            first, second, third = (state[name] for state in states)
            expected = decay * (decay * first + (1 - decay) * second) + (1 - decay) * third
            assert_close(average.module[0].state_dict()[name], expected)


def test_steps_of_the_mixtures_go_on_falling_where_they_stood(variations):
    rate = RobbinsMonro(delay=50.0, forgetting=0.6, first_step=0.2)
    training = SimpleNamespace(
        run=SimpleNamespace(config=SimpleNamespace(joint_iterations=30)), learning=Learning(rate=rate)
    )
    chosen = SimpleNamespace(learning_rate=1e-4, final_learning_rate=1e-6)
    later = variations.continued(training, chosen)
    assert [later.rate(step) for step in range(5)] == pytest.approx([rate(30 + step) for step in range(5)])
    assert (later.learning_rate, later.final_learning_rate, later.augment_until) == (1e-4, 1e-6, 0.0)
