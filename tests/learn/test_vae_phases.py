import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae import VAE, Progress, Role, TraceConjugate_ELBO, checkpoint, fit
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.infer.free_gaussian import FreeGaussian, near_prior
from pyro_fmvae.learn.fmvae_phases import Joint
from pyro_fmvae.learn.options import FMVAEOptions, VAEOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.vae_phases import FreeEM, HybridEM, VAEJoint
from pyro_fmvae.models.free_encoder import FreeEncoder
from pyro_fmvae.models.vae import PointPosterior
from tests.models.small import binary_data, small_model

TEN = Budget(iterations=10)
FRACTIONS = (0.0, 0.3, 0.5, 0.75, 0.99)
RATES = {"learning_rate": 1e-3, "final_learning_rate": 1e-5}


def entered(phase, model, **options):
    kind = FMVAEOptions if phase is Joint else VAEOptions
    made = phase(model, kind(**options), TEN)
    made.enter()
    return made


@pytest.mark.parametrize("final", [None, 1e-3, 1e-5])
def test_learning_rate_is_that_of_a_mixtures_joint_phase(final):
    mixture = small_model((2,))
    options = {"learning_rate": 1e-3, "final_learning_rate": final}
    phases = entered(Joint, mixture, **options), entered(VAEJoint, mixture.pretraining(), **options)
    for fraction in FRACTIONS[1:]:  # a mixture warms up first
        for phase in phases:
            phase.before_step(fraction)
        expected, actual = (phase.svi.optim.others.param_groups[0]["lr"] for phase in phases)
        assert actual == expected
    assert actual == pytest.approx({None: 1e-3, 1e-3: 1e-3, 1e-5: 1e-3 * 0.01**0.98}[final])


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(("weight", "beta"), [(1.0, 1.0), (20.0, 1.0), (4.0, 4.0), (0.5, 6.0)])
def test_weight_of_the_divergence_moves_to_beta(weight, beta, eager):
    vae, x = small_model((2,)).pretraining(), binary_data()
    phase = entered(VAEJoint, vae, beta=beta, kl_weight=weight, eager=eager)
    for fraction in (0.25, 1.0):
        phase.before_step(fraction)
        torch.manual_seed(1)
        with torch.no_grad():
            parts = TraceConjugate_ELBO().loss_per_role(vae.model, vae.guide, x)
        torch.manual_seed(1)
        expected = parts[Role.RECONSTRUCTION] + (weight + fraction * (beta - weight)) * parts[Role.KL_Z]
        assert phase.step(x) == pytest.approx(expected.item())


@pytest.mark.parametrize("eager", [True, False])
def test_total_correlation_has_a_weight_of_its_own(eager):
    vae, x = small_model((2, 2)).pretraining(), binary_data(8)
    weights = {"beta": 2.0, "total_correlation": 6.0, "kl_weight": 2.0}
    phase = entered(VAEJoint, vae, **weights, eager=eager)
    for seed in range(3):
        phase.before_step(0.5)
        torch.manual_seed(seed)
        with torch.no_grad():
            parts = TraceConjugate_ELBO().loss_per_role(vae.model, vae.guide, x, tc_weight=6.0)
        assert parts[Role.FACTOR].abs() > 0.1
        torch.manual_seed(seed)
        expected = parts[Role.RECONSTRUCTION] + 2 * parts[Role.KL_Z] + parts[Role.FACTOR]
        assert phase.step(x) == pytest.approx(expected.item())


@pytest.mark.parametrize("eager", [True, False])
def test_encoder_and_decoder_are_learnt(eager):
    vae = small_model((2,)).pretraining()
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    records = list(fit([VAEJoint(vae, VAEOptions(eager=eager), TEN)], [binary_data()]))
    assert {record.phase for record in records} == {"joint"}
    assert not any(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    assert records[-1].loss < records[1].loss


def split(size=20):
    return Split(binary_data(size).float())


def free_model(family=None):
    torch.manual_seed(4)
    vae = small_model((1, 1)).pretraining().float()
    encoder = FreeEncoder(vae.decoder, vae.observation, 4, 5, family=family)
    return VAE(encoder, vae.decoder, vae.observation, 4, 20, family=family)


def amortised_model(family=None):
    torch.manual_seed(4)
    vae = small_model((1, 1)).pretraining().float()
    return VAE(vae.encoder, vae.decoder, vae.observation, 4, 20, family=family)


def by_hand(model, batches, options, weights, steps=3):
    """Variational EM as its definition has it: an optimiser for each network, and nothing captured."""
    hybrid = bool(list(model.encoder.parameters()))
    make = {"weight_decay": options.weight_decay, "fused": True}
    networks = [model.encoder, model.decoder] if hybrid else [model.decoder]
    optimisers = [torch.optim.AdamW(network.parameters(), **make) for network in networks]
    free, elbo = FreeGaussian(model, steps, 0.1), TraceConjugate_ELBO()
    table, losses = None if hybrid else near_prior(20, 4), []
    for number, (x, rows) in enumerate(batches):
        share = (options.final_learning_rate / options.learning_rate) ** max(2 * number / 10 - 1, 0)
        rate = share * options.learning_rate
        free.learning_rate = 0.1 * rate / options.learning_rate
        with torch.no_grad():
            start = model.encoder(x) if hybrid else [t[rows] for t in table]
        posterior = free(x, *start, **weights)
        for network, optimiser in zip(networks, optimisers, strict=True):
            at = posterior if network is model.decoder else None
            loss = elbo.differentiable_loss(model.model, model.guide, x, posterior=at, **weights)
            params = list(network.parameters())
            for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.grad = grad
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
        losses.append(loss.item())
        if not hybrid:
            table[0][rows], table[1][rows] = posterior
    return losses, table


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(
    ("phase", "make", "family", "eager"),  # every pair of them
    [
        (FreeEM, free_model, None, True),
        (FreeEM, free_model, PointPosterior(), False),
        (HybridEM, amortised_model, None, False),
        (HybridEM, amortised_model, PointPosterior(), True),
    ],
)
def test_iterations_are_those_of_the_definition(phase, make, family, eager):
    rates = {"learning_rate": 1e-2, "final_learning_rate": 1e-3, "weight_decay": 0.1}
    options = VAEOptions(**rates, free_steps=3, total_correlation=2.0, eager=eager)
    learned, data = make(family), split()
    made = phase(learned, options, TEN)
    torch.manual_seed(1)
    records = list(fit([made], Batches(data, 8, indexed=True)))
    assert [record.phase for record in records] == ["joint"] * 11
    expected, batches = make(family), Batches(data, 8, indexed=True)
    ten = [batch for _ in range(4) for batch in batches][:10]
    torch.manual_seed(1)
    losses, table = by_hand(expected, ten, options, {"tc_weight": 2.0})
    close = {"rtol": 1e-3, "atol": 1e-4}  # ten steps of Adam in single precision
    assert_close(torch.tensor([record.loss for record in records[1:]]), torch.tensor(losses), **close)
    start, end = make(family).state_dict(), expected.state_dict()
    for name, value in learned.state_dict().items():
        assert_close(value, end[name], **close)
        assert not torch.equal(value, start[name])
    if table:
        assert_close(made.posteriors.loc, table[0], **close)
        assert_close(made.posteriors.scale, table[1], **close)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("phase", [FreeEM, HybridEM])
def test_no_gradient_is_left_behind(phase, eager):
    model = amortised_model()
    for _ in fit(
        [phase(model, VAEOptions(free_steps=2, eager=eager), TEN)], Batches(split(), 8, indexed=True)
    ):
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.usefixtures("single_precision")
def test_free_posteriors_are_those_of_the_rows_seen_last():
    """And no encoder is asked for them, nor learnt."""
    model, batches = amortised_model(), Batches(split(), 8, indexed=True)
    before = [p.clone() for p in model.encoder.parameters()]
    model.encoder.forward = None
    phase = FreeEM(model, VAEOptions(free_steps=2), TEN)
    for number, _ in enumerate(fit([phase], batches)):
        table = phase.posteriors
        if number == 0:
            start = table.loc.clone()
            assert (table.scale == 1).all()
        if number == 1:
            visited = (table.scale != 1).all(-1)
            assert torch.equal(visited, (table.loc != start).all(-1))
            assert torch.equal(visited, (table.loc != start).any(-1))
            assert visited.sum() == 8
    assert (table.scale != 1).all()
    assert all(map(torch.equal, model.encoder.parameters(), before))


@pytest.mark.usefixtures("single_precision")
def test_free_posteriors_become_the_best_ones():
    """With the decoder as good as fixed, those that were kept reach those of a long search."""
    model, data = free_model(), split()
    with torch.no_grad():
        model.decoder.linear.weight.mul_(2)
    options = VAEOptions(learning_rate=1e-6, final_learning_rate=1e-8, free_steps=5)
    phase = FreeEM(model, options, Budget(iterations=120))
    list(fit([phase], Batches(data, 20, indexed=True)))
    loc, scale = FreeGaussian(model, 600, 0.1)(data.x, *near_prior(20, 4))
    difference = (phase.posteriors.loc - loc) / scale
    assert (loc / scale).abs().max() > 1
    assert difference.square().mean() < 0.1 * (loc / scale).square().mean()
    assert (phase.posteriors.scale / scale).log().abs().mean() < 0.1


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("stop", "eager"), [(0, True), (1, True), (4, True), (4, False)])
def test_free_posteriors_are_saved_and_resumed(stop, eager, tmp_path):
    """Through the files of a checkpoint, as if never stopped."""
    data, options = split(), VAEOptions(final_learning_rate=1e-4, free_steps=2, eager=eager)

    def parts():
        model = free_model()
        batches = Batches(data, 8, indexed=True)
        return model, FreeEM(model, options, Budget(iterations=8)), batches

    model, phase, batches = parts()
    torch.manual_seed(1)
    list(fit([phase], batches))
    whole, table = model.state_dict(), phase.posteriors.state_dict()

    model, phase, batches = parts()
    torch.manual_seed(1)
    progress = Progress()
    for number, _ in enumerate(fit([phase], batches, progress)):
        if number == stop:
            random = {"random": torch.get_rng_state(), "batches": batches.state_dict()}
            checkpoint.save(tmp_path, {"model": model.state_dict(), "phase": phase.state_dict(), **random})
            break
    state, _ = checkpoint.load(tmp_path)

    model, phase, batches = parts()
    phase.enter()
    model.load_state_dict(state["model"])
    phase.load_state_dict(state["phase"])
    batches.load_state_dict(state["batches"])
    torch.set_rng_state(state["random"])
    list(fit([phase], batches, progress, resumed=True))
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, table[name]) for name, value in phase.posteriors.state_dict().items())


def test_learning_rate_of_free_steps_falls_with_the_networks():
    phase = entered(HybridEM, small_model((2,)).pretraining(), free_learning_rate=0.2, **RATES)
    for fraction, expected in zip((0.0, 0.5, 0.75, 1.0), (0.2, 0.2, 0.02, 0.002), strict=True):
        phase.before_step(fraction)
        assert phase.free.learning_rate == pytest.approx(expected)
        assert phase.svi.optim.others.param_groups[0]["lr"] == pytest.approx(expected / 200)


class Moved(torch.nn.Module):
    def forward(self, x):
        return 1 - x


@pytest.mark.parametrize("phase", [VAEJoint, HybridEM])
def test_all_steps_of_an_iteration_see_the_same_augmented_points(phase):
    vae, x = small_model((2,)).pretraining(), binary_data(200)
    made = entered(phase, vae, augment_until=0.5)
    made.augmentation = Moved()
    seen = []
    for part in ("svi", "encoder_svi"):
        if hasattr(made, part):
            getattr(made, part).step = getattr(made, part).step_async = lambda x, **_: seen.append(x) or 0.0
    if phase is HybridEM:
        search = made.free
        made.free = lambda x, *start, **weights: seen.append(x) or search(x, *start, **weights)
    made.before_step(0.2)
    made.step(x)
    assert len(seen) == (1 if phase is VAEJoint else 3)
    assert not torch.equal(seen[0], x) and all(torch.equal(other, seen[0]) for other in seen)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: (binary_data(6),), r"got torch.float64 \[6, 2, 3\]"),
        (lambda: (binary_data(6), torch.zeros(6, 1, dtype=torch.int64)), r"got torch.int64 \[6, 1\]"),
        (lambda: (binary_data(6), torch.arange(5)), r"got torch.int64 \[5\]"),
        (lambda: (binary_data(6), torch.zeros(6)), r"got torch.float64 \[6\]"),
        (lambda: (torch.arange(6),), r"got torch.int64 \[6\]"),
    ],
)
def test_free_posteriors_need_indices_of_rows(batch, message):
    phase = entered(FreeEM, small_model((1, 1)).pretraining())
    with pytest.raises(
        ValueError, match=rf"^batch: expected the indices of its rows last, int64 .*{message}"
    ):
        phase.step(*batch())


@pytest.mark.usefixtures("single_precision")
def test_free_posteriors_are_of_all_data_points():
    phase = FreeEM(free_model(), VAEOptions(), TEN)
    with pytest.raises(ValueError, match=r"^batches: expected 20 data points, got 19"):
        list(fit([phase], Batches(split(19), 5, indexed=True)))


def test_free_posteriors_are_not_augmented():
    phase = FreeEM(small_model((1, 1)).pretraining(), VAEOptions(), TEN)
    phase.augmentation = Moved()
    with pytest.raises(ValueError, match=r"^augmentation: expected 0 if data points have posteriors"):
        phase.enter()


@pytest.mark.parametrize(
    ("weights", "kl_weight", "comparable", "settled"),
    [
        ({}, 1.0, True, True),
        ({}, 5.0, True, False),
        ({"beta": 4.0}, 4.0, False, True),
        ({"total_correlation": 2.0}, 1.0, False, True),
    ],
)
def test_bounds_are_compared_where_they_are_the_aim(weights, kl_weight, comparable, settled):
    phase = entered(VAEJoint, small_model((2,)).pretraining(), **weights, kl_weight=kl_weight)
    assert (phase.comparable, phase.settled) == (comparable, settled)
