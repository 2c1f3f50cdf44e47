import math

import pytest
import torch

from pyro_fmvae import FactorialMixtureVAE, Progress, Role, TraceConjugate_ELBO, fit
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.distributions import GaussianObservation
from pyro_fmvae.evaluate import bound
from pyro_fmvae.infer.posteriors import NaturalPosterior
from pyro_fmvae.learn.fmvae_phases import (
    Joint,
    Pretraining,
    PriorFitting,
    draw_views,
    encode_some,
    fmvae_phases,
)
from pyro_fmvae.learn.options import FMVAEOptions, VAEOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.vae_phases import VAEJoint
from pyro_fmvae.nn import MLPDecoder, MLPEncoder
from tests.learn.clusters import stripes
from tests.models.small import SHAPE, binary_data, small_model

TEN = Budget(iterations=10)


def labelled_model(num_data=20):
    """Factors of 2 (labelled), 3 and 2 components: three groups."""
    return small_model((2, 3, 2), num_data=num_data, labelled=(0,), spread=False)


def batch(size=20, known=10):
    """x, and the labels of the first few points."""
    y = torch.arange(size) % 2
    return binary_data(size), y.where(torch.arange(size) < known, -1).unsqueeze(-1)


def loader(size=20, batch_size=8):
    x, y = batch(size)
    return Batches(Split(x.bool(), y), batch_size)


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module, before):
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def names(module, *prefixes):
    return {name for name in module.state_dict() if name.startswith(prefixes)}


def test_pretraining_leaves_the_prior_alone():
    model = labelled_model()
    before = copy_of(model)
    list(fit([Pretraining(model, FMVAEOptions(), TEN)], [batch()]))
    assert changed(model, before) == names(model, "encoder", "decoder")


@pytest.mark.parametrize(
    ("annealing", "fraction", "weight"),
    [(0.0, 0.0, 1.0), (0.5, 0.0, 1e-3), (0.5, 0.1, 0.2), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0), (1.0, 0.75, 0.75)],
)
@pytest.mark.parametrize("full", [1.0, 0.1])
def test_divergence_is_annealed(annealing, fraction, weight, full):
    model, (x, labels) = labelled_model(), batch()
    options = FMVAEOptions(kl_annealing=annealing, pretrain_kl_weight=full)
    phase = Pretraining(model, options, TEN)
    phase.enter()
    phase.before_step(fraction)
    torch.manual_seed(1)
    with torch.no_grad():
        parts = TraceConjugate_ELBO().loss_per_role(phase.vae.model, phase.vae.guide, x)
    torch.manual_seed(1)
    expected = parts[Role.RECONSTRUCTION] + full * weight * parts[Role.KL_Z]
    assert phase.step(x, labels) == pytest.approx(expected.item())


def test_bound_of_a_phase_does_not_see_the_annealing():
    model, x = labelled_model(), batch()[0]
    phase = Pretraining(model, FMVAEOptions(kl_annealing=1.0), TEN)
    before = bound(phase.program, [(x,)])
    phase.before_step(0.1)
    assert bound(phase.program, [(x,)]) == before


def test_prior_fitting_leaves_the_networks_alone():
    model = labelled_model()
    before = copy_of(model)
    list(fit([PriorFitting(model, FMVAEOptions(), TEN)], [batch()]))
    assert changed(model, before) == names(model, "groups")


def test_prior_fitting_raises_the_bound():
    model, data = labelled_model(), batch(known=0)
    rate = {"delay": 0.0, "forgetting": 0.51, "first_step": 1.0}
    bounds = []
    for record in fit([PriorFitting(model, FMVAEOptions(**rate), Budget(iterations=20))], [data]):
        if record.step in (0, 20):
            parts = bound(model, [data])
            bounds.append(-parts["kl_z"] - parts["kl_r"] - parts["kl_global"])
    assert bounds[1] > bounds[0]


def standard_groups(model):
    return [not isinstance(group.loc_precision, NaturalPosterior) for group in model.factor_groups()]


def test_labelled_factors_take_first_order_steps_at_their_own_rate():
    model = labelled_model()
    options = FMVAEOptions(learning_rate=1e-3, prior_learning_rate=0.05, label_weight=10.0)
    phase = Joint(model, options, TEN)
    phase.enter()
    assert standard_groups(model) == [True, False, False]
    before = copy_of(model)
    phase.step(*batch())
    assert changed(model, before) == set(before)
    first_order = names(model, "groups.0.")
    gaps = {name: (model.state_dict()[name] - before[name]).abs().max().item() for name in before}
    for name in first_order:  # Adam's first step is its rate
        assert gaps[name] == pytest.approx(0.05, rel=1e-3), name
    for name in names(model, "encoder", "decoder"):
        assert gaps[name] <= 1.001e-3, name


def test_without_label_weight_all_steps_are_natural():
    model = labelled_model()
    phase = Joint(model, FMVAEOptions(), TEN)
    phase.enter()
    assert standard_groups(model) == [False, False, False]
    before = copy_of(model)
    phase.step(*batch())
    assert changed(model, before) == set(before)


def test_label_weight_teaches_the_labels():
    torch.manual_seed(2)
    y = torch.arange(40) % 2
    x = torch.bernoulli(torch.where(y == 1, 0.9, 0.1)[:, None, None].expand(-1, *SHAPE))
    model = labelled_model(num_data=40)
    data = [(x, y.unsqueeze(-1))]
    options = FMVAEOptions(learning_rate=1e-2, label_weight=100.0)
    phases = [PriorFitting(model, options, TEN), Joint(model, options, Budget(iterations=60))]
    list(fit(phases, data))
    assert (model.codes(x)[:, 0] == y).double().mean() > 0.9


@pytest.mark.parametrize("label_weight", [0.0, 10.0])
def test_joint_phase_seeds_what_no_prior_phase_did(label_weight):
    torch.manual_seed(2)
    y = torch.arange(40) % 2
    x = torch.bernoulli(torch.where(y == 1, 0.9, 0.1)[:, None, None].expand(-1, *SHAPE))
    options, data = FMVAEOptions(label_weight=label_weight), [(x, y.unsqueeze(-1))]
    joint, fitted = labelled_model(num_data=40), labelled_model(num_data=40)
    fitted.load_state_dict(joint.state_dict())
    PriorFitting(fitted, options, TEN, seed=3).prepare(data)
    phase = Joint(joint, options, TEN, seed=3)
    phase.enter()
    phase.prepare(data)
    assert standard_groups(joint) == [label_weight > 0, False, False]
    for group, expected in zip(joint.factor_groups(), fitted.factor_groups(), strict=True):
        for locations, seeded in zip(group.locations(), expected.locations(), strict=True):
            assert torch.allclose(locations, seeded)
            assert torch.pdist(locations).min() > 0
    before = copy_of(joint)
    phase.step(*batch())
    assert changed(joint, before) == set(before)  # the optimiser has the new parameters


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("label_weight", [0.0, 10.0])
def test_joint_phase_separates_components_whose_labels_teach(label_weight, seed):
    model, data = labelled_model(), [batch()]
    PriorFitting(model, FMVAEOptions(), TEN, seed=3).prepare(data)
    phase = Joint(model, FMVAEOptions(label_weight=label_weight, label_distance=4.0), TEN, seed=seed)
    phase.enter()
    before = copy_of(model)
    phase.prepare(data)
    assert bool(changed(model, before)) == (label_weight > 0)
    if label_weight:
        (means,) = model.factor_groups()[0].locations()
        assert torch.pdist(means).item() == pytest.approx(4.0)
        before = copy_of(model)
        phase.step(*batch())
        assert changed(model, before) == set(before)  # the optimiser has the new parameters


def test_refining_rebuilds_natural_parameters_exactly():
    model = labelled_model()
    Joint(model, FMVAEOptions(label_weight=10.0), TEN).enter()
    before = [(g.weights.natural_value(), g.loc_precision.natural_value()) for g in model.factor_groups()]
    Joint(model, FMVAEOptions(), TEN, name="refine").enter()
    assert standard_groups(model) == [False, False, False]
    for group, (weights, loc_precision) in zip(model.factor_groups(), before, strict=True):
        assert torch.equal(group.weights.natural_value(), weights)
        assert torch.equal(group.loc_precision.natural_value(), loc_precision)


@pytest.mark.parametrize(("fraction", "weight"), [(0.0, 20.0), (0.5, 10.5), (0.75, 5.75), (1.0, 1.0)])
def test_weight_of_the_divergence_moves_to_one(fraction, weight):
    phase = Joint(labelled_model(), FMVAEOptions(kl_weight=20.0), TEN)
    phase.enter()
    phase.before_step(fraction)
    assert phase.svi.elbo.kl_weight == pytest.approx(weight)


@pytest.mark.parametrize(
    ("fraction", "rate"), [(0.0, 1e-4), (0.025, 5e-3), (0.05, 1e-2), (0.5, 1e-2), (0.75, 1e-3), (1.0, 1e-4)]
)
def test_learning_rate_grows_at_first_and_falls_in_the_second_half(fraction, rate):
    phase = Joint(
        labelled_model(), FMVAEOptions(learning_rate=1e-2, final_learning_rate=1e-4, label_weight=1.0), TEN
    )
    phase.enter()
    phase.before_step(fraction)
    rates = [group["lr"] for group in phase.svi.optim.others.param_groups]
    assert rates == pytest.approx([rate, 1e-2])  # that of λ stays


@pytest.mark.parametrize(("fraction", "share"), [(0.0, 0.01), (0.025, 0.5), (0.05, 1.0), (0.9, 1.0)])
def test_weight_of_labels_grows_at_first(fraction, share):
    phase = Joint(labelled_model(), FMVAEOptions(label_weight=40.0), TEN)
    phase.enter()
    phase.before_step(fraction)
    assert phase.svi.elbo.label_weight == pytest.approx(40.0 * share)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(
    "left_out", [(), (0,), (1,), (2,), (3,), (0, 1), (0, 1, 3), (1, 2, 3)], ids=lambda out: f"without {out}"
)
@pytest.mark.parametrize("recompute", [False, True])
def test_any_phase_can_be_left_out(left_out, recompute):
    model = labelled_model()
    budgets = [Budget(iterations=0 if number in left_out else 2) for number in range(4)]
    options = FMVAEOptions(label_weight=5.0, recompute=recompute, eager=True)
    phases = [
        Pretraining(model, options, budgets[0]),
        PriorFitting(model, options, budgets[1]),
        Joint(model, options, budgets[2]),
        Joint(model, FMVAEOptions(recompute=recompute, eager=True), budgets[3], name="refine"),
    ]
    records = list(fit(phases, loader()))
    assert all(math.isfinite(record.loss) for record in records if record.step)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert list(dict.fromkeys(record.phase for record in records)) == [
        phase.name for number, phase in enumerate(phases) if number not in left_out
    ]


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("size", "batch_size"), [(3, 64), (9, 8), (8, 8)])
def test_small_data_and_a_last_batch_of_one(size, batch_size):
    model = labelled_model(num_data=size)
    options = FMVAEOptions(label_weight=5.0, eager=True)
    phases = [
        Pretraining(model, options, TEN),
        PriorFitting(model, options, TEN),
        Joint(model, options, TEN),
    ]
    assert all(math.isfinite(record.loss) for record in fit(phases, loader(size, batch_size)) if record.step)


@pytest.mark.usefixtures("single_precision")
def test_seeding_sees_all_points_wherever_the_loader_stands():
    model, batches = labelled_model(), loader(20, 8)
    for _ in range(2):
        next(iter(batches))  # a last batch of four is left of this epoch
    loc, scale, labels = encode_some(model, batches)
    assert len(loc) == len(scale) == len(labels) >= 20
    assert len(encode_some(model, [binary_data(12), binary_data(8)])[0]) == 20


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("enough", "found"), [(1000, 5), (3, 3), (0, 3)])
def test_seeding_looks_for_labels_until_there_are_enough(monkeypatch, enough, found):
    monkeypatch.setattr("pyro_fmvae.learn.fmvae_phases.SEEDING_POINTS", 8)
    x, y = batch(20, known=0)
    y[[0, 5, 6, 13, 19]] = 1
    model = labelled_model()
    _, _, labels = encode_some(model, list(zip(x.split(4), y.split(4), strict=True)), enough)
    assert int((labels >= 0).sum()) == found and len(labels) == 8 + found - 3
    assert len(encode_some(model, list(x.split(4)), enough)[0]) == 8


class Blank(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def test_half_of_the_points_are_augmented():
    x, phase = torch.ones(5, 2, 3), Joint(labelled_model(), FMVAEOptions(), TEN)
    assert phase.augment(x) is x
    phase.augmentation = Blank()
    torch.manual_seed(0)
    points = torch.stack([phase.augment(x).flatten(1).mean(1) for _ in range(400)])
    assert set(points.flatten().tolist()) == {0.0, 1.0}
    assert set(points.sum(1).tolist()) == {2.0, 3.0}
    assert (points.mean(0) - 0.5).abs().max() < 4 * 0.5 / math.sqrt(400)


@pytest.mark.parametrize(
    ("kind", "fraction", "augmented"),
    [
        (Pretraining, 0.9, True),
        (Joint, 0.2, True),
        (Joint, 0.3, False),
        (VAEJoint, 0.2, True),
        (VAEJoint, 0.3, False),
    ],
)
def test_phases_are_augmented_until_it_is_time(kind, fraction, augmented):
    model, (x, labels) = labelled_model(), batch()
    options = (VAEOptions if kind is VAEJoint else FMVAEOptions)(augment_until=0.3)
    phase = kind(model.pretraining() if kind is VAEJoint else model, options, TEN)
    phase.augmentation = Blank()
    phase.enter()
    seen = []
    phase.svi.step_async = lambda x, *args, **kwargs: seen.append(x)
    phase.before_step(fraction)
    phase.step(x, labels)
    assert torch.equal(seen[0], x) is not augmented


def test_weight_decay_is_that_of_the_networks_alone():
    model = labelled_model()
    phase = Joint(model, FMVAEOptions(label_weight=10.0, weight_decay=0.5, learning_rate=0.1), TEN)
    phase.enter()
    before = copy_of(model)
    networks, first_order = phase.svi.optim.others.param_groups
    assert (networks["weight_decay"], first_order["weight_decay"]) == (0.5, 0.0)
    phase.svi.optim.others.zero_grad()
    for group in (networks, first_order):
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    phase.svi.optim.others.step()
    for name in names(model, "encoder", "decoder"):
        torch.testing.assert_close(model.state_dict()[name], 0.95 * before[name])
    assert changed(model, before) == names(model, "encoder.", "decoder.") - {
        name for name in names(model, "encoder", "decoder") if not before[name].any()
    }


@pytest.mark.parametrize("phase", [PriorFitting, Joint])
def test_restarts_are_as_many_as_were_asked_for(phase, monkeypatch):
    asked = []
    monkeypatch.setattr(FactorialMixtureVAE, "seed", lambda *args: asked.append(args[5]))
    phase(labelled_model(), FMVAEOptions(prior_restarts=7), TEN, seed=0).prepare([batch()])
    assert asked == [7]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("phase", [PriorFitting, Joint])
def test_full_starts_find_clusters_aslant_to_the_axes(phase, full, monkeypatch):
    codes, _ = stripes()
    encoded = codes, torch.full_like(codes, 0.01), None
    monkeypatch.setattr("pyro_fmvae.learn.fmvae_phases.encode_some", lambda *_: encoded)
    model = small_model((3,), num_data=len(codes))
    phase(model, FMVAEOptions(full_starts=full), TEN, seed=0).prepare([batch()])
    (group,) = model.factor_groups()
    assert torch.allclose(group.counts(), torch.tensor(60.0).double()) == full


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("every", "expected"), [(0, []), (2, [2, 4]), (5, [5]), (6, [])])
def test_new_starts_are_tried_every_so_many_steps(every, expected, monkeypatch, caplog):
    """Not before the first step, and not after the last one."""
    asked, taken = [], []
    model, options = labelled_model(), FMVAEOptions(restart_every=every, prior_restarts=7, eager=True)

    def restart(loc, scale, generator, restarts):
        asked.append((len(taken), len(loc), restarts, generator.initial_seed()))
        return {1: 0.25}

    monkeypatch.setattr(model, "restart", restart)
    with caplog.at_level("INFO"):
        for record in fit([Joint(model, options, Budget(iterations=6))], loader()):
            taken += [record] if record.step else []
    assert [call[:-1] for call in asked] == [(step, 20, 7) for step in expected]
    assert len({seed for *_, seed in asked}) == len(asked)
    assert [message for message in caplog.messages if "anew" in message] == [
        f"joint step {step}: factor 1 started anew, +0.250 nats a point" for step in expected
    ]


def restarting(eager, stop=None):
    """A phase of six steps, with new starts after two and four, that is broken off at a step."""
    torch.manual_seed(3)
    model = labelled_model()
    options = FMVAEOptions(restart_every=2, prior_restarts=2, eager=eager)
    phase, batches, progress = Joint(model, options, Budget(iterations=6)), loader(), Progress()
    for record in fit([phase], batches, progress):
        if record.step == stop:
            break
    return model, phase, batches, progress


@pytest.fixture
def any_gain(single_precision, monkeypatch):
    """Every start counts as a gain; gives the list of what was gained."""
    gains, restart = [], FactorialMixtureVAE.restart
    taken = lambda *args: gains.append(restart(*args, least=-math.inf)) or gains[-1]  # noqa: E731
    monkeypatch.setattr(FactorialMixtureVAE, "restart", taken)
    return gains


def test_captured_steps_go_on_from_new_starts(any_gain):
    eager, captured = restarting(eager=True)[0], restarting(eager=False)[0]
    assert [set(gain) for gain in any_gain] == 4 * [{1, 2}]
    assert changed(captured, eager.state_dict()) == set()


def test_training_sees_what_was_encoded_for_new_starts(any_gain, monkeypatch):
    seen, step = [], Joint.step
    monkeypatch.setattr(Joint, "step", lambda phase, *batch: seen.append(batch[0]) or step(phase, *batch))
    batches = restarting(eager=True)[2]
    batches.load_state_dict({"epoch": 0, "position": 0})
    expected = [batch[0] for _ in range(2) for batch in batches]
    assert len(any_gain) == 2
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_new_starts_are_the_same_in_a_resumed_phase(any_gain, stop):
    whole = restarting(eager=True)[0].state_dict()
    model, phase, batches, progress = restarting(eager=True, stop=stop)
    list(fit([phase], batches, progress, resumed=True))
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())


def test_seeding_from_an_empty_loader_is_an_error():
    with pytest.raises(ValueError, match=r"^batches: expected at least one"):
        encode_some(labelled_model(), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("prior_learning_rate", -1.0),
        ("independence_weight", -1.0),
        ("free_from", 1.5),
        ("kl_weight", 0.0),
        ("kl_weight", math.inf),
        ("final_learning_rate", 0.0),
        ("final_learning_rate", 1.0),
        ("label_weight", -1.0),
        ("label_weight", math.nan),
        ("label_distance", -1.0),
        ("kl_annealing", 1.5),
        ("pretrain_kl_weight", 0.0),
        ("views", 0),
        ("prior_restarts", 0),
        ("restart_every", -1),
        ("weight_decay", -1.0),
        ("augment_until", 1.5),
    ],
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name}: expected an? (number|share|integer)"):
        FMVAEOptions(**{name: value})


def seen_by_decoder(model):
    """A list of the z [B, I, D] that the decoder is going to see."""
    seen, shape = [], (len(model.num_components), model.dim)
    model.decoder.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0].unflatten(-1, shape))
    )
    return seen


@pytest.mark.parametrize(
    ("free_from", "fraction", "closed"),
    [(0.0, 0.0, False), (0.4, 0.3, True), (0.4, 0.4, False), (1.0, 0.9, True)],
)
def test_free_factors_are_opened_on_time(free_from, fraction, closed):
    model = labelled_model()
    seen = seen_by_decoder(model)
    phase = Joint(model, FMVAEOptions(free_from=free_from, eager=True), TEN)
    phase.enter()
    phase.before_step(fraction)
    phase.step(*batch())
    (z,) = seen
    assert z[:, 0].all()
    assert (z[:, 1:] == 0).all() if closed else z[:, 1:].all()


@pytest.mark.parametrize("breaks", [False, True])
def test_free_factors_are_shut_out_of_steps_alone(breaks):
    """Whatever else asks the model for a bound sees all of it, as what needs no program does."""
    model, (x, y) = labelled_model(), batch()
    phase = Joint(model, FMVAEOptions(free_from=1.0, eager=True), TEN)
    if breaks:
        refused = model.decoder.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(fit([phase], [(x, y)]))
        refused.remove()
    else:
        next(record for record in fit([phase], [(x, y)]) if record.step == 3)
    seen = seen_by_decoder(model)
    TraceConjugate_ELBO().loss(model.model, model.guide, x)
    assert seen[0].all()


@pytest.mark.usefixtures("single_precision")
def test_captured_steps_open_free_factors_as_eager_ones_do():
    states = []
    for eager in (True, False):
        torch.manual_seed(3)
        model = labelled_model()
        list(fit([Joint(model, FMVAEOptions(free_from=0.5, eager=eager), TEN)], loader()))
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@pytest.mark.parametrize("eager", [True, False])
def test_labels_out_of_range_are_refused(eager):
    """In captured steps as in eager ones, with any integers, and without a trace in the model."""
    model, (x, y) = labelled_model(), batch()
    phase = Joint(model, FMVAEOptions(eager=eager), TEN)
    phase.enter()
    phase.before_step(0.0)
    for _ in range(3):
        assert math.isfinite(phase.step(x, y.int()))
    before, y = copy_of(model), y.clone()
    for wrong in (-2, 2):
        y[3] = wrong
        with pytest.raises(ValueError, match=f"^labels: expected -1 to 1 of column 0, got {wrong}$"):
            phase.step(x, y.int())
        assert changed(model, before) == set()


@pytest.mark.parametrize("training", [True, False])
def test_pretraining_is_in_the_mode_that_the_model_is_in_when_it_starts(training):
    model, (x, _) = labelled_model().train(not training), batch()
    seen = []
    model.distortion.register_forward_hook(lambda *_: seen.append(True))
    phase = Pretraining(model, FMVAEOptions(eager=True), TEN)
    model.train(training)
    phase.enter()
    phase.before_step(0.0)
    phase.step(x)
    assert bool(seen) == training


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (True, True)),
        ({"kl_annealing": 0.5}, (False, True)),
        ({"pretrain_kl_weight": 0.1}, (False, False)),
    ],
)
def test_bounds_of_pretraining_are_compared_at_full_weight(options, expected):
    phase = Pretraining(labelled_model(), FMVAEOptions(**options), TEN)
    comparable = []
    for fraction in (0.2, 0.7):
        phase.before_step(fraction)
        comparable.append(phase.comparable)
    assert tuple(comparable) == expected


def test_a_joint_phase_is_not_over_before_all_factors_are_open():
    """Nor is its start compared, whose labels are not learnt."""
    phase = Joint(labelled_model(), FMVAEOptions(free_from=0.5), TEN)
    assert not phase.comparable and Joint(labelled_model(), FMVAEOptions(), TEN).comparable
    phase.enter()
    settled = []
    for fraction in (0.0, 0.4, 0.6):
        phase.before_step(fraction)
        assert phase.comparable
        settled.append(phase.settled)
    assert settled == [False, False, True]
    assert not Joint(labelled_model(), FMVAEOptions(kl_weight=20.0), TEN).settled


class Marked(torch.nn.Module):
    """A view of a point: the point with its first pixel replaced by a random one."""

    def forward(self, x):
        marked = x.clone()
        marked[:, 0, 0] = torch.bernoulli(torch.full((len(x),), 0.5))
        return marked


@pytest.mark.parametrize(("number", "shape"), [(1, (20, *SHAPE)), (3, (20, 3, *SHAPE))])
@pytest.mark.parametrize("view", [None, Marked()], ids=["copies", "changed"])
def test_views_of_a_batch(number, shape, view):
    x = batch()[0]
    seen = draw_views(x, number, view)
    assert seen.shape == shape
    each = seen.reshape(20, number, -1)
    assert (each[..., 1:] == x.reshape(20, 1, -1)[..., 1:]).all()
    if view is None:
        assert (each == x.reshape(20, 1, -1)).all()
    else:
        assert len(each[..., 0].unique()) == 2
        assert number == 1 or (each[:, 0, 0] != each[:, 1, 0]).any()


@pytest.mark.parametrize("phase", [Pretraining, PriorFitting, Joint])
def test_pretraining_sees_one_view_and_all_other_phases_several(phase):
    model, seen = labelled_model(), []
    model.encoder.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    one = phase(model, FMVAEOptions(views=3, eager=True), TEN)
    one.view = Marked()
    one.enter()
    one.before_step(0.0)
    x, labels = batch()
    assert math.isfinite(one.step(x, labels))
    assert [each.shape for each in seen] == [(20, *SHAPE) if phase is Pretraining else (20, 3, *SHAPE)]
    assert not torch.equal(seen[0][..., 0, 0].flatten()[:20], x[:, 0, 0])


def test_a_step_on_views_is_that_of_their_program():
    model, (x, labels) = labelled_model(), batch()
    phase = Joint(model, FMVAEOptions(views=2, label_weight=5.0, eager=True), TEN)
    phase.view = Marked()
    phase.enter()
    phase.before_step(0.0)
    torch.manual_seed(1)
    seen = phase.viewed(x)
    with torch.no_grad():
        expected = phase.svi.elbo.loss(model.model, model.guide, seen, labels)
    torch.manual_seed(1)
    assert phase.step(x, labels) == pytest.approx(expected, rel=1e-12)


def colour_pictures(number=400, side=8):
    """Noisy bars of two colours, upright or level, on a dark ground, and the colour of some of them."""
    generator = torch.Generator().manual_seed(0)
    colour, level = torch.randint(0, 2, (2, number), generator=generator)
    ink = torch.tensor([[0.9, 0.2, 0.1], [0.1, 0.3, 0.9]])[colour]
    x = torch.full((number, side, side, 3), -0.8)
    x[:, :, side // 2 - 1 : side // 2 + 1] = ink[:, None, None]
    x = torch.where(level[:, None, None, None] > 0, x.transpose(1, 2), x)
    x += 0.05 * torch.randn(x.shape, generator=generator)
    return x, colour.where(torch.arange(number) < number // 4, -1).unsqueeze(-1)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("labelled", [(), (0,)])
def test_the_bound_does_not_fall_where_a_joint_phase_begins(labelled):
    torch.manual_seed(0)
    x, labels = colour_pictures()
    data = Batches(Split(x, labels if labelled else None), 50)
    shape = tuple(x.shape[1:])
    model = FactorialMixtureVAE(
        MLPEncoder(shape, 8, (100,)),
        MLPDecoder(8, shape, 2, (100,)),
        GaussianObservation(3, 0.1, 0.4),
        (2, 2),
        4,
        len(x),
        labelled,
    )
    learning = FMVAEOptions(label_weight=100.0 if labelled else 0.0, independent_start=True)
    budgets = {"pretrain": 250, "prior": 10, "joint": 1000, "refine": 0}
    phases = fmvae_phases(model, learning, {name: Budget(iterations=n) for name, n in budgets.items()}, 0)
    before = {}
    for record in fit(phases, data):
        if record.step % 5 == 0:
            now = bound(phases[0].program if record.phase == "pretrain" else model, [(x,)])["elbo"]
            reached = {"prior": before.get("pretrain"), "joint": before.get("prior")}.get(record.phase)
            assert reached is None or now > reached - max(1.0, 0.02 * abs(reached)), record
            before[record.phase] = now
        if record.phase == "joint" and record.step == 100:
            break
    assert set(before) == {"pretrain", "prior", "joint"}
