"""The objectives and averages of examples/variations.py, against what they are by definition."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from pyro_fmvae import RobbinsMonro, TraceConjugate_ELBO, fit
from pyro_fmvae.learn.options import FMVAEOptions
from pyro_fmvae.learn.phase import Budget
from tests.models.small import binary_data, small_model
from tests.scripts import imported
from tests.small_runs import command

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
    phase = variations.Collapsed(model, FMVAEOptions(), STEPS)
    assert loss_of(phase, x) == pytest.approx(-model.num_data * expected[0].item(), rel=1e-6)
    assert loss_of(phase, x) != pytest.approx(-model.num_data * expected[1].item(), rel=1e-6)


def test_collapsed_steps_leave_the_mixtures_as_they_are(variations):
    model = small_model((3, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    list(fit([variations.Collapsed(model, FMVAEOptions(final_learning_rate=1e-4), STEPS)], [binary_data(8)]))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith(("encoder", "decoder"))}


def test_averages_are_exponential_ones_of_the_weights_after_each_step(variations):
    model = small_model()
    phase = variations.Averaging(model, FMVAEOptions(), STEPS, [0.5, 0.9])
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


@pytest.mark.parametrize("first_step", [None, 0.2])
def test_steps_of_the_mixtures_go_on_falling_where_they_stood(variations, first_step):
    rate = RobbinsMonro(50.0, 0.6, first_step)
    training = SimpleNamespace(
        run=SimpleNamespace(config=SimpleNamespace(joint_iterations=30)),
        options=FMVAEOptions(**vars(rate), kl_weight=20.0, restart_every=5),
    )
    chosen = SimpleNamespace(learning_rate=1e-4, final_learning_rate=1e-6)
    later = variations.continued(training, chosen)
    steps = RobbinsMonro(later.delay, later.forgetting, later.first_step)
    assert [steps(step) for step in range(5)] == pytest.approx([rate(30 + step) for step in range(5)])
    assert (later.learning_rate, later.final_learning_rate, later.augment_until) == (1e-4, 1e-6, 0.0)
    assert (later.kl_weight, later.restart_every) == (1.0, 0)


TRAIN = "train --data smiley.npz --factor-dim 2 --network mlp --hidden 5 --eager --seed 1 --labels 0"
RUNS = {
    "vae": "--model vae --pretrain-iterations 2 --joint-iterations 0",
    "distorted": "--model vae --pretrain-iterations 2 --joint-iterations 0 --distortion 1",
    "fmvae": "--factors 3 --pretrain-iterations 1 --prior-iterations 1 --joint-iterations 2",
    "sizes": "--factors 3,2 --pretrain-iterations 1 --prior-iterations 1 --joint-iterations 2",
}


PRETRAINED = ("--pretrained", "free", "--prior-iterations", "1", "--joint-iterations", "1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variations")
    x = np.random.default_rng(0).integers(0, 2, (60, 28, 28), dtype=np.uint8)
    np.savez(folder / "smiley.npz", x=x)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, given in RUNS.items():
            assert command(*TRAIN.split(), *given.split(), "--out", name)[0] == 0
    return folder


def call(variations, monkeypatch, folder, text):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["variations.py", *text.split()])
    variations.main()


@pytest.mark.usefixtures("single_precision")
def test_networks_with_free_bits_are_where_a_training_can_start(variations, runs, monkeypatch, capsys):
    call(variations, monkeypatch, runs, "free-bits vae --nats 0.5 --iterations 3 --out free")
    assert "| 0.5 nats free | -" in capsys.readouterr().out
    assert command(*TRAIN.split(), *RUNS["fmvae"].split()[:2], *PRETRAINED, "--out", "from-free")[0] == 0
    with pytest.raises(SystemExit):
        call(variations, monkeypatch, runs, "free-bits vae --iterations 1 --out free")
    assert "out: expected a new folder, free is there" in capsys.readouterr().err


@pytest.mark.usefixtures("single_precision")
def test_both_objectives_start_from_the_last_state(variations, runs, monkeypatch, capsys):
    call(variations, monkeypatch, runs, "collapsed fmvae --iterations 2 --learning-rate 1e-9")
    rows = [row.split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| before", "| by the collapsed bound", "| by equation 11"]
    assert len({row[2] for row in rows}) == 1  # no weight has moved far enough for the reconstruction to tell


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("averages vae", "run: expected one of --model fmvae, got vae"),
        ("free-bits fmvae --out new", "run: expected one of --model vae, got fmvae"),
        ("free-bits distorted --out new", "run: expected one without --distortion"),
        ("collapsed sizes", "run: expected factors without labels and of one size"),
        ("averages nowhere", "nowhere"),
        ("averages fmvae --learning-rate -1", "learning_rate: expected a number > 0, got -1.0"),
        ("averages fmvae --decays 1", "argument --decays: expected a number between 0 and 1, got 1"),
        (
            "averages fmvae --iterations 0",
            "argument --iterations: expected a number between 0",
        ),
        ("free-bits vae --nats -1 --out new", "argument --nats: expected a number between 0 and inf, got -1"),
        ("free-bits vae --out smiley.npz", "out: expected a new folder, smiley.npz is there"),
    ],
)
def test_what_is_refused(variations, runs, monkeypatch, capsys, text, message):
    with pytest.raises(SystemExit) as stopped:
        call(variations, monkeypatch, runs, text)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (runs / "new").exists()
