import pytest
import torch

from pyro_fmvae import Role, TraceConjugate_ELBO, fit
from pyro_fmvae.infer.phase import Budget
from pyro_fmvae.models.fmvae_phases import Joint
from pyro_fmvae.models.learning import Learning
from pyro_fmvae.models.vae_phases import VAEJoint
from tests.models.small import binary_data, small_model

TEN = Budget(iterations=10)
FRACTIONS = (0.0, 0.3, 0.5, 0.75, 0.99)


def entered(phase, model, **learning):
    made = phase(model, Learning(**learning), TEN)
    made.enter()
    return made


@pytest.mark.parametrize("final", [None, 1e-3, 1e-5])
def test_learning_rate_is_that_of_a_mixtures_joint_phase(final):
    mixture = small_model((2,))
    options = {"learning_rate": 1e-3, "final_learning_rate": final}
    phases = entered(Joint, mixture, **options), entered(VAEJoint, mixture.pretraining(), **options)
    for fraction in FRACTIONS:
        for phase in phases:
            phase.before_step(fraction)
        expected, actual = (phase.svi.optim.others.param_groups[0]["lr"] for phase in phases)
        assert actual == expected
    assert actual == pytest.approx({None: 1e-3, 1e-3: 1e-3, 1e-5: 1e-3 * 0.01**0.98}[final])


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_weight_of_the_divergence_moves_to_one(weight, eager):
    vae, x = small_model((2,)).pretraining(), binary_data()
    phase = entered(VAEJoint, vae, kl_weight=weight, eager=eager)
    phase.before_step(0.25)
    torch.manual_seed(1)
    with torch.no_grad():
        parts = TraceConjugate_ELBO().loss_per_role(vae.model, vae.guide, x)
    torch.manual_seed(1)
    expected = parts[Role.RECONSTRUCTION] + (weight + 0.25 * (1 - weight)) * parts[Role.KL_Z]
    assert phase.step(x) == pytest.approx(expected.item())


@pytest.mark.parametrize("eager", [True, False])
def test_encoder_and_decoder_are_learnt(eager):
    vae = small_model((2,)).pretraining()
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    records = list(fit([VAEJoint(vae, Learning(eager=eager), TEN)], [binary_data()]))
    assert {record.phase for record in records} == {"joint"}
    assert not any(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    assert records[-1].loss < records[1].loss
