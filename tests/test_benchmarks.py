"""The comparison in examples/benchmarks: are the programs in it right, and the scripts well behaved?"""

import argparse
import copy
import json
import math
import os
import shutil
import statistics
import weakref
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.data import Split
from pyro_fmvae.infer import TraceConjugate_ELBO
from tests.scripts import imported

BENCHMARKS = Path(__file__).resolve().parent.parent / "examples" / "benchmarks"
MODULES = (
    "bare_methods",
    "contest",
    "disentanglement",
    "enumerated_methods",
    "estimators",
    "hidden_markov",
    "number_of_components",
    "peak_memory",
    "peers",
    "plain_programs",
    "ragged",
    "scaling",
    "spot_checks",
    "start",
    "step",
    "step_methods",
    "step_plot",
    "topics",
)
CPU = torch.device("cpu")
SIGMAS = 4.5

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def b():
    """The modules of the folder, which import each other by their bare names, as scripts do."""
    with imported(BENCHMARKS, MODULES) as modules:
        yield modules


@pytest.fixture
def small(b):
    """A model of two factors that are far from their prior, and as many images as it knows of."""
    setting = b.start.Setting(2, 2, 3, 5)
    torch.manual_seed(1)
    return b.start.make_model("mlp", setting, num_data=5), b.start.random_images(5, seed=2)


def estimate(elbo, model, guide, x, runs):
    """Mean of the loss, and its standard error."""
    with pyro.validation_enabled(False):
        values = [elbo.loss(model, guide, x) for _ in range(runs)]
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(runs)


def assert_equal_in_expectation(one, other):
    assert abs(one[0] - other[0]) <= SIGMAS * math.hypot(one[1], other[1])


# --- the bounds of the plain programs


@pytest.mark.slow
def test_the_bound_with_the_assignment_in_the_guide_is_the_librarys(b, small):
    model, x = small
    exact = TraceConjugate_ELBO().loss(model.prior_model, model.prior_guide, x)
    program = b.plain_programs.AssignmentInGuide(model, prior_only=True)
    theirs = estimate(program.elbo(), program.model, program.guide, x, 800)
    assert theirs[1] < 0.01 * exact
    assert_equal_in_expectation(theirs, (exact, 0.0))


@pytest.mark.slow
def test_the_bound_with_the_assignment_in_the_model_is_tighter(b, small):
    model, x = small
    exact = TraceConjugate_ELBO().loss(model.prior_model, model.prior_guide, x)
    program = b.plain_programs.AssignmentInModel(model, prior_only=True)
    loss, error = estimate(program.elbo(), program.model, program.guide, x, 800)
    assert loss + SIGMAS * error < exact


@pytest.mark.slow
def test_the_mixtures_density_gives_the_bound_with_the_assignment_in_the_model(b, small):
    model, x = small
    programs = (b.plain_programs.AssignmentInModel, b.plain_programs.MixtureDensity)
    bounds = []
    for program in (kind(model, prior_only=True) for kind in programs):
        bounds.append(estimate(program.elbo(), program.model, program.guide, x, 800))
    assert_equal_in_expectation(*bounds)


def test_the_whole_program_has_the_librarys_bound(b, small):
    model, x = small
    ours = estimate(TraceConjugate_ELBO(), model.model, model.guide, x, 100)
    program = b.plain_programs.AssignmentInGuide(model)
    theirs = estimate(program.elbo(), program.model, program.guide, x, 200)
    assert theirs[1] < 0.01 * ours[0]
    assert_equal_in_expectation(ours, theirs)


def test_responsibilities_are_those_of_equation_5(b, small):
    model, x = small
    program = b.plain_programs.AssignmentInGuide(model)
    with torch.no_grad():
        mean, std = (t.unflatten(-1, (2, 2)).transpose(0, 1) for t in model.encoder(x))
    ours = torch.stack(model.responsibilities(x))
    assert_close(program.posterior.responsibilities(mean, std).softmax(-1), ours)


def test_a_posterior_in_standard_parameters_comes_back_as_it_was(b, small):
    model, _ = small
    other = copy.deepcopy(model)
    posterior = b.plain_programs.StandardPosterior(model)
    (group,), (target,) = model.factor_groups(), other.factor_groups()
    target.set_natural(2 * group.weights.natural_value(), group.loc_precision.natural_value() * 2)
    posterior.write_to(other)
    assert_close(target.weights.natural_value(), group.weights.natural_value(), rtol=1e-5, atol=1e-5)
    assert_close(
        target.loc_precision.natural_value(), group.loc_precision.natural_value(), rtol=1e-5, atol=1e-5
    )


# --- the methods


def test_methods_are_chosen_by_parts_of_their_names(b):
    choose = b.step_methods.choose
    assert [method.name for method in choose("vae,-compiled,-graph")] == ["vae"]
    assert all("compiled" not in method.name for method in choose("-compiled"))
    assert {method.name for method in choose("vae,captured")} > {"vae", "captured compiled"}
    for text in ("vae,nothing", "vae,-vae"):
        with pytest.raises(argparse.ArgumentTypeError):
            choose(text)


def test_adam_by_hand_is_adam(b, small):
    model, x = small[0].double(), small[1].double()
    models = model, copy.deepcopy(model)
    networks = b.bare_methods.Networks(models[1])

    def loss(encoded):
        return b.bare_methods.plain_loss(encoded, model.num_data), ()

    whole = b.bare_methods.whole_step(networks, loss, 1e-2)
    learner = b.bare_methods.vae(models[0], b.start.Rates(networks=1e-2))
    for step in (learner.step, whole):
        torch.manual_seed(0)
        for _ in range(5):
            step(x)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(one, other)


def test_the_closed_form_by_hand_is_the_librarys(b):
    model = b.start.make_model("mlp", b.start.Setting(2, 2, 3, 5), num_data=20)
    x = b.start.random_images(5, 0)
    models = model, copy.deepcopy(model)
    methods = [next(m for m in b.step_methods.METHODS if part in m.name) for part in ("by hand", "(eager)")]
    before = model.factor_groups()[0].counts().clone()
    for method, contender in zip(methods, models, strict=True):
        method.make(contender, b.start.Rates(natural=0.3)).step(x)
    (one,), (other,) = (contender.factor_groups() for contender in models)
    assert (one.counts() - before).abs().max() > 0.1
    assert_close(one.counts(), other.counts(), rtol=1e-5, atol=1e-5)
    assert_close(one.loc_precision.natural_value(), other.loc_precision.natural_value(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["by hand", "SVI", "captured", "the model", "the guide", "Mixture"])
def test_a_method_learns_and_hands_over_what_it_learnt(b, part):
    setting = b.start.Setting(1, 2, 3, 20)
    torch.manual_seed(0)
    model = b.start.make_model("mlp", setting, num_data=20)
    x = b.start.random_images(20, 0)
    method = next(method for method in b.step_methods.METHODS if part in method.name)
    counts = model.factor_groups()[0].counts().clone()
    elbo = TraceConjugate_ELBO()
    with pyro.validation_enabled(False):
        before = elbo.loss(model.model, model.guide, x)
        learner = method.make(model, b.start.Rates(1e-2, 1e-2, 0.1))
        losses = [float(learner.step(x)) for _ in range(30)]
        learner.write_back()
        after = elbo.loss(model.model, model.guide, x)
    assert all(map(math.isfinite, losses))
    assert after < before
    assert not torch.allclose(model.factor_groups()[0].counts(), counts)


# --- time and memory


class PeakMemory(TorchDispatchMode):
    """Follows every tensor storage that operations make, until it is released."""

    def __init__(self):
        super().__init__()
        self.in_use = self.peak = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._known.update(storages((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        for storage in storages(result) - set(self._known):
            self._known.add(storage)
            self.in_use += storage.nbytes()
            weakref.finalize(storage, self._release, storage.nbytes())
        self.peak = max(self.peak, self.in_use)
        return result

    def _release(self, size):
        self.in_use -= size


def storages(tree):
    return {leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


@pytest.mark.parametrize("part", ["vae", "by hand", "SVI", "the model"])
def test_peak_memory_is_that_of_the_tensors(b, part):
    model = b.start.make_model("mlp", b.start.Setting(1, 16, 64, 64))
    method = next(method for method in b.step_methods.METHODS if part in method.name)
    step, x = method.make(model, b.start.Rates()).step, b.start.random_images(64, 0)
    with pyro.validation_enabled(False):
        step(x)
        measured = b.peak_memory.peak_mb(lambda: step(x), CPU)
        with PeakMemory() as memory:
            step(x)
    assert_close(measured, memory.peak / 1e6, rtol=0.02, atol=0.0)


def test_slow_methods_take_single_steps_and_sit_out_rounds(b, monkeypatch):
    now, taken = 0.0, {"fast": 0, "slow": 0}

    def step(name, seconds):
        def run(x):
            nonlocal now
            taken[name] += 1
            now += seconds
            return 0.0

        return run

    monkeypatch.setattr(b.contest, "BUDGET_MS", 1000.0)
    contestants = [
        b.contest.Contestant(name, step(name, s), CPU, clock=lambda: now)
        for name, s in (("fast", 1e-3), ("slow", 0.03))
    ]
    b.contest.take_turns(contestants, [torch.zeros(1)], steps=100)
    fast, slow = (contestant.blocks for contestant in contestants)
    assert len(fast) == 50 and len(slow) == 25
    assert taken == {"fast": 3 + 1 + 50 * (2 + 1), "slow": 3 + 1 + 25}
    assert contestants[1].ratio(contestants[0]) == pytest.approx((30, 30, 30))


# --- the scripts


def records(script, capsys, *arguments):
    script.main([*arguments, "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_step_prints_one_record_for_each_method(b, capsys, tmp_path):
    found = records(
        b.step, capsys, "--methods=-compiled", "--net", "mlp", "--setting", "2,3,4,8", "--steps", "2",
        "--plot", str(tmp_path / "step.png"),
    )  # fmt: skip
    assert {"captured", "TraceEnum (assignment in the model)"} < {record["method"] for record in found}
    keys = ["method", "net", *"IDKB", "ms", "ratio", "ratio_quartiles", "peak_mb", "rounds", "floor"]
    for record in found:
        assert list(record) == keys
        assert [record[size] for size in "IDKB"] == [2, 3, 4, 8]
        assert record["ms"] > 0 and record["ratio"] > 0 and record["peak_mb"] > 0
        assert record["floor"] == "vae"
    assert found[0]["ratio"] == 1.0
    assert is_picture(tmp_path / "step.png")


def test_step_skips_what_would_take_too_much_memory(b, capsys):
    arguments = ("--net", "mlp", "--setting", "1,8,64,64", "--steps", "1", "--limit-mb", "1")
    one, other = records(b.step, capsys, "--methods=vae,the model,-compiled", *arguments)
    assert one["method"] == "vae" and "skipped" not in one
    assert other["skipped"] == "would take about 1 MB, more than 1"


@pytest.mark.slow  # two methods are compiled: about half a minute on one core
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
def test_compiled_methods_run(b, capsys):
    methods = "--methods=vae compiled,captured compiled,-step,-bfloat16"
    found = records(b.step, capsys, methods, "--net", "mlp", "--setting", "1,3,4,8", "--steps", "1")
    assert len(found) == 2
    assert all(math.isfinite(record["ms"]) for record in found)


def test_estimators_prints_noise_curves_and_what_was_reached(b, capsys, tmp_path):
    found = records(
        b.estimators, capsys, "--points", "100", "--setting", "1,2,3,20", "--pretrain", "5", "--draws", "5",
        "--steps", "4", "--seconds", "0", "--every", "2", "--methods=captured,the guide,-compiled",
        "--plot", str(tmp_path / "estimators.png"),
    )  # fmt: skip
    by_measure = {
        measure: [r for r in found if r["measure"] == measure]
        for measure in ("gradient", "training", "reached")
    }
    assert by_measure["gradient"][0]["relative"] == 1.0
    assert len(by_measure["gradient"]) == 4
    assert [record["step"] for record in by_measure["training"]] == [0, 0, 2, 2, 4, 4]
    first, second, *_ = by_measure["training"]
    assert math.isclose(first["elbo"], second["elbo"], abs_tol=1e-3)  # the same start
    for record in by_measure["reached"]:
        assert record["elbo_at_steps"] <= record["collapsed_at_steps"] + 1e-3
        assert record["elbo_at_seconds"] == first["elbo"] and len(record["used_components"]) == 1
    assert is_picture(tmp_path / "estimators.png")


def test_scaling_stops_at_the_limit(b, capsys, tmp_path):
    found = records(
        b.scaling, capsys, "--components", "2,32", "--factors", "1,4", "--steps", "1", "--limit-mb", "5",
        "--methods", "captured,TraceEnum (assignment in the model)", "--plot", str(tmp_path / "scaling.png"),
    )  # fmt: skip
    assert [(r["varied"], r["I"], r["K"]) for r in found[::2]] == [
        ("K", 1, 2),
        ("K", 1, 32),
        ("I", 1, 64),
        ("I", 4, 64),
    ]
    assert all(r["ms"] > 0 and r["peak_mb"] > 0 for r in found[::2])
    assert "more than 5" in found[3]["skipped"] and "more than 5" in found[7]["skipped"]
    assert is_picture(tmp_path / "scaling.png")


@pytest.mark.slow
def test_ragged_compares_with_the_largest_the_smallest_and_a_plain_vae(b, capsys, tmp_path):
    found = records(
        b.ragged, capsys, "--factors", "2,2,5", "--dim", "3", "--batch-size", "4", "--batch-size", "8",
        "--steps", "2", "--plot", str(tmp_path / "ragged.png"),
    )  # fmt: skip
    assert [(r["B"], r["factors"]) for r in found] == [
        (size, factors) for size in (4, 8) for factors in ([2, 2, 5], [5, 5, 5], [2, 2, 2], [])
    ]
    for record in found:
        assert record["ms"] > 0 and record["ratio"] > 0 and record["peak_mb"] > 0
        low, high = record["ragged_quartiles"]
        assert low <= record["ragged"] <= high
    assert all(r["ragged"] == 1.0 for r in found if r["method"] == "ragged")
    assert all(r["ratio"] == 1.0 for r in found if r["method"] == "plain VAE")
    assert is_picture(tmp_path / "ragged.png")


def test_number_of_components_is_counted_beside_scikit_learns(b, capsys):
    found = records(
        b.number_of_components, capsys, "--true", "3", "--seeds", "0,1", "--dim", "2", "--points", "150",
        "--spread", "20", "--truncation", "5",
    )  # fmt: skip
    assert [(r["seed"], r["method"]) for r in found] == [
        (seed, method) for seed in (0, 1) for method in ("auto", "scikit-learn")
    ]
    assert all(r["found"] == 3 and r["nmi"] == 1.0 for r in found if r["method"] == "auto")
    assert all(r["seconds"] >= 0 and 3 <= r["found"] <= 5 and r["nmi"] > 0.8 for r in found)


def test_spot_checks_compares_steps_with_and_without_one(b, capsys):
    found = records(b.spot_checks, capsys, "--nets", "mlp", "--setting", "2,3,4,8", "--steps", "2")
    assert [(r["net"], r["steps"]) for r in found] == [("mlp", "unchecked"), ("mlp", "checked at every step")]
    assert found[0]["ratio"] == 1.0 and found[0]["share"] == 0.0
    assert found[1]["share"] == pytest.approx((found[1]["ratio"] - 1) / 10, abs=1e-4)


def test_ragged_contestants_start_from_the_same_networks(b):
    start = b.ragged.make_networks("mlp", 6, b.start.IMAGE)
    one, other = (b.ragged.seeded(start, factors, 2, seed=0) for factors in ((2, 2, 5), (5, 5, 5)))
    for ours, theirs in zip(one.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert ours is not theirs and torch.equal(ours, theirs)
    assert one.num_components == (2, 2, 5) and one.dim == other.dim == 2


def test_topics_passes_by_turns(b, capsys, monkeypatch):
    monkeypatch.setattr(b.topics, "WORDS", 30)
    b.topics.main(["--documents=60", "--topics=3", "--passes=2", "--steps=2", "--warm"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["pass"], r["method"]) for r in found] == [
        (number, name) for number in (1, 2) for name in ("ours", "scikit-learn")
    ]
    assert all(0 < r["perplexity"] < 60 and r["seconds"] > 0 for r in found)


def test_topics_perplexity_is_that_of_the_words_in_even_topics(b):
    counts = np.array([[2, 0, 1, 1]])
    assert b.topics.perplexity(np.ones((3, 4)), counts, counts) == pytest.approx(4.0)


def test_hidden_markov_starts_all_methods_at_the_same_posteriors(b, capsys):
    pytest.importorskip("hmmlearn.vhmm")
    b.hidden_markov.main(["--sequences=3", "--length=6", "--states=2", "--rounds=1", "--fit=2"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["method"] for record in found] == [
        "ours", "ours, captured", "hmmlearn", "hmmlearn, scaling"
    ]  # fmt: skip
    for record in found:
        assert record["bound"] == pytest.approx(found[0]["bound"], abs=1e-6)
        assert record["seconds"] > 0 and record["ratio"] > 0


def test_dimensions_that_each_tell_of_one_property_are_disentangled(b):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (2000, 3))
    apart = 4.0 * labels + 0.3 * rng.normal(size=labels.shape)
    noise = rng.normal(size=(2000, 2))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    whole = np.concatenate([apart, noise], 1)
    halves = slice(None, 1000), slice(1000, None)
    one, mixed = (
        b.disentanglement.scores(*[b.disentanglement.by_dimension(x[rows], labels[rows]) for rows in halves])
        for x in (whole, whole @ turn)
    )
    assert min(one) > 0.95
    assert max(mixed[:3]) < 0.75  # dimensions tell of several properties, from which all can be read
    assert mixed[3] > 0.95


@pytest.mark.parametrize("method", ["beta", "tc", "factor"])
def test_each_loss_trains_an_encoder(b, method):
    x = torch.rand(40, 6, 5) < 0.4
    split = Split(x, torch.zeros(40, 1, dtype=torch.int64))
    data = argparse.Namespace(train=split, event_shape=(6, 5))
    encoder = b.disentanglement.trained(method, data, 3, seed=0, steps=3)
    other = b.disentanglement.trained(method, data, 3, seed=0, steps=3)
    found = b.disentanglement.of_means(encoder, split)
    assert found.latents.shape == (40, 3, 1) and np.isfinite(found.latents).all()
    assert np.array_equal(found.latents, b.disentanglement.of_means(other, split).latents)
