import pytest
import torch

from pyro_fmvae import Role, TraceConjugate_ELBO, fit
from pyro_fmvae.distributions import Concrete
from pyro_fmvae.learn.options import VAEOptions, VSCOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.vae_phases import VAEJoint
from pyro_fmvae.learn.vsc_phases import SparsePhase
from tests.models.small import binary_data, small_model
from tests.models.sparse import small_sparse_model

TEN = Budget(iterations=10)


def entered(model, warm_up=(0.0, 0.1), span=(0.0, 1.0), **options):
    phase = SparsePhase("joint", model, VSCOptions(warm_up=warm_up, **options), TEN, span)
    phase.enter()
    return phase


def test_slabs_warm_up_and_draws_sharpen():
    model = small_sparse_model()
    phase = entered(model, (0.2, 0.6))
    expected = {0.0: (0.0, 50.0), 0.2: (0.0, 80.0), 0.3: (0.25, 95.0), 0.6: (1.0, 140.0), 0.9: (1.0, 185.0)}
    for fraction in (0.9, 0.6, 0.3, 0.2, 0.0):  # whatever came before
        phase.before_step(fraction)
        assert (model.draws.warm_up.item(), model.draws.slope.item()) == pytest.approx(expected[fraction])


def test_several_phases_go_through_the_warm_up_together():
    model = small_sparse_model()
    first, second = (entered(model, (0.1, 0.5), span) for span in ((0.0, 0.3), (0.3, 1.0)))
    for phase, fraction, over in (
        (first, 0.0, 0.0),
        (first, 0.9, 0.27),
        (second, 0.0, 0.3),
        (second, 0.5, 0.65),
    ):
        phase.before_step(fraction)
        warm_up = min(max((over - 0.1) / 0.4, 0.0), 1.0)
        assert model.draws.warm_up.item() == pytest.approx(warm_up)
        assert model.draws.slope.item() == pytest.approx(50 + 150 * over)


@pytest.mark.parametrize(("warm_up", "first", "later"), [((0, 0), 1, 1), ((0, 1), 0, 0.5), ((1, 1), 0, 0)])
def test_warm_up_may_take_none_or_all_of_the_training(warm_up, first, later):
    model = small_sparse_model()
    phase = entered(model, warm_up)
    for fraction, value in ((0.0, first), (0.5, later)):
        phase.before_step(fraction)
        assert model.draws.warm_up.item() == value


def test_learning_rate_is_that_of_a_vae():
    options = {"learning_rate": 1e-3, "final_learning_rate": 1e-5, "weight_decay": 0.3}
    vae = VAEJoint(small_model((2,)).pretraining(), VAEOptions(**options), TEN)
    vae.enter()
    phase = entered(small_sparse_model(), **options)
    for fraction in (0.0, 0.5, 0.75, 0.99):
        for one in (vae, phase):
            one.before_step(fraction)
        expected, actual = (one.svi.optim.others.param_groups[0] for one in (vae, phase))
        for name in ("lr", "weight_decay"):
            assert actual[name] == expected[name]
    assert actual["lr"] == pytest.approx(1e-3 * 0.01**0.98)


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_weight_of_the_divergence_moves_to_one(weight, eager):
    model, x = small_sparse_model(), binary_data()
    phase = entered(model, eager=eager, kl_weight=weight)
    phase.before_step(0.25)
    torch.manual_seed(1)
    with torch.no_grad():
        parts = TraceConjugate_ELBO().loss_per_role(model.model, model.guide, x)
    torch.manual_seed(1)
    expected = parts[Role.RECONSTRUCTION] + parts[Role.FACTOR]
    expected += (weight + 0.25 * (1 - weight)) * parts[Role.KL_Z]
    assert phase.step(x) == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("draws", [None, Concrete()])
def test_everything_is_learnt(draws, eager):
    model = small_sparse_model("selection", draws)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = VSCOptions(learning_rate=0.02, eager=eager, kl_weight=0.5)
    phases = [
        SparsePhase(name, model, options, TEN, span=span)
        for name, span in (("pretrain", (0.0, 0.5)), ("joint", (0.5, 1.0)))
    ]
    records = list(fit(phases, [binary_data()]))
    assert [record.phase for record in records] == ["pretrain"] * 11 + ["joint"] * 11
    assert not any(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert records[-1].loss < records[1].loss
    if not eager:  # schedules need no other program
        assert [sum(phase.svi._captures.values()) for phase in phases] == [1, 1]


class Inverted(torch.nn.Module):
    def forward(self, x):
        return 1 - x


def test_batches_are_augmented_for_as_long_as_that_is_wanted():
    model, x = small_sparse_model(), binary_data(200)
    phase = entered(model, augment_until=0.5)
    phase.augmentation = Inverted()
    seen = []
    phase.svi.step_async = lambda x, **kwargs: seen.append(x) or 0.0
    for fraction in (0.0, 0.49, 0.5, 0.9):
        phase.before_step(fraction)
        phase.step(x)
        changed = (seen[-1] != x).flatten(1).all(-1).double().mean()
        assert 0.3 < changed < 0.7 if fraction < 0.5 else changed == 0


def test_resumed_is_uninterrupted():
    """From parameters and the optimiser's state alone, as a checkpoint holds them."""
    x = binary_data()
    options = {"kl_weight": 3.0, "final_learning_rate": 1e-4, "eager": True}

    def take(phase, steps):
        for step in steps:
            phase.before_step(step / 10)
            phase.step(x)

    torch.manual_seed(2)
    whole = small_sparse_model()
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    phase = entered(whole, (0.1, 0.8), **options)
    torch.manual_seed(3)
    take(phase, range(10))

    first = small_sparse_model()
    first.load_state_dict(start)
    phase = entered(first, (0.1, 0.8), **options)
    torch.manual_seed(3)
    take(phase, range(6))
    random = torch.get_rng_state()
    second = small_sparse_model()
    resumed = entered(second, (0.1, 0.8), **options)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(phase.state_dict())
    torch.set_rng_state(random)
    take(resumed, range(6, 10))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, rtol=0, atol=1e-12)
        assert not torch.equal(value, start[name])
