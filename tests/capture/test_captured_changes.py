"""What may change between captured steps, outside of parameters and data."""

import logging
from functools import partial
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CaptureError
from pyro_fmvae.distributions import (
    Assignment,
    Component,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
    NormalGamma,
)
from pyro_fmvae.infer import TraceConjugate_ELBO
from tests.capture.captured import EXACT, Methods, Plain, a_toy, assert_twins, plainly, svi_for, trained
from tests.infer.programs import Toy, natural_components, natural_weights
from tests.models.small import binary_data, small_model


def captures(caplog):
    """How many steps were captured so far."""
    return sum(record.getMessage().startswith("captured the step") for record in caplog.records)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "pyro_fmvae")
    return caplog


class Kept(nn.Module):
    """A mixture whose guide samples from distributions that were made once, and remember their E[t]."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Linear(2, 3)
        self.weights = NaturalParameter(natural_weights(1, 3)[0, 0])
        self.components = NaturalParameter(natural_components(1, 3, 2)[0])
        kept = NaturalDirichlet(self.weights), NaturalNormalGamma(self.components)
        self.natural = nn.ParameterDict({"weights": self.weights, "components": self.components})

        def model(x):
            pyro.module("decoder", self.decoder)
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
            with pyro.plate("components", 3):
                component = pyro.sample("component", NormalGamma(torch.zeros(2), 1.0, 0.1, 0.1))
            with pyro.plate("data", 20, subsample=x):
                assignment = pyro.sample("assignment", Assignment(weights))
                z = pyro.sample("z", Component(component, assignment))
                pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

        def guide(x):
            pyro.module("encoder", self.encoder)
            pyro.module("natural", self.natural)
            pyro.sample("weights", kept[0])
            with pyro.plate("components", 3):
                pyro.sample("component", kept[1])
            loc, log_scale = self.encoder(x).chunk(2, -1)
            with pyro.plate("data", 20, subsample=x):
                pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))

        self.model, self.guide, self.kept = model, guide, kept


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("looked_at", [False, True])
def test_distributions_that_are_kept_remember_nothing_of_the_capture(recompute, looked_at):
    """Their E[t] belongs to one value of λ: it is no constant of a program, nor is a program's theirs."""

    def between(step, svi, program):
        if looked_at:
            for each in program.kept:
                each.expected_stats()

    svi = assert_twins(Kept, [(torch.randn(6, 3),)] * 8, between=between, recompute=recompute)
    for each in svi.model.__closure__[-1].cell_contents.kept:
        assert_close(each.expected_stats(), each.family.expected_stats(each.natural), **EXACT)


def from_an_attribute(program, z, x):
    return program.decoder(z) @ program.doubled


def test_refuses_what_was_computed_from_parameters_before_the_step():
    program = Plain(from_an_attribute)
    program.doubled = 2 * program.decoder.weight @ program.decoder.weight.mT
    closure = Plain(lambda p, z, x: p.decoder(z) @ kept)
    kept = closure.decoder.weight @ closure.decoder.weight.mT
    for each in (program, closure):
        before = [p.detach().clone() for p in each.parameters()]
        with pytest.raises(CaptureError, match=r"shape \[3, 3\] was computed from parameters before"):
            svi_for(each).step(torch.randn(6, 3))
        assert all(map(torch.equal, before, each.parameters()))


def test_what_was_computed_and_detached_is_a_constant():
    def make():
        program = Plain(from_an_attribute)
        program.doubled = (program.decoder.weight @ program.decoder.weight.mT).detach()
        return program

    assert_twins(make, [(torch.randn(6, 3),)] * 5, EXACT)


class Weighted(Methods):
    """Methods with plain attributes that the model reads."""

    def __init__(self):
        super().__init__()
        self.beta, self.table, self.kind, self.count = 1.0, torch.zeros(3), "mean", 0
        self.flag = None
        self.decoder = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))

    def model(self, x):
        """As it was, scaled and shifted by the attributes."""
        shift = getattr(x, self.kind)() + self.table + (0.0 if self.flag is None else 1.0)
        with poutine.scale(scale=self.beta):
            super().model(x + shift)


def beta(program, step):
    program.beta = 1.0 + step // 2


def table(program, step):
    program.table = torch.full((3,), float(step))


def table_in_place(program, step):
    program.table.fill_(step)


def kind(program, step):
    program.kind = ("mean", "sum")[step // 2 % 2]


def flag(program, step):
    program.flag = (None, True)[step // 2 % 2]


def dropout(program, step):
    program.decoder[1].p = (0.5, 0.1)[step // 2 % 2]


@pytest.mark.parametrize(
    ("change", "times"), [(beta, 4), (table, 8), (table_in_place, 1), (kind, 4), (flag, 4), (dropout, 4)]
)
def test_attributes_of_modules(change, times, log):
    def between(step, svi, program):
        change(program, step)

    assert_twins(Weighted, [(torch.randn(6, 3),)] * 8, EXACT, between=between)
    assert captures(log) == times


class Whole(nn.Module):
    """A model without a forward: what programs that are no modules call by its methods."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
        self.beta = 1.0

    def decode(self, z):
        """The mean of x."""
        return self.beta * self.decoder(z)


class Functions(nn.Module):
    """Plain functions over a module, a number and an object; only the functions are given to SVI."""

    def __init__(self):
        super().__init__()
        self.whole, self.level, self.settings = Whole(), 1.0, SimpleNamespace(level=1.0)
        whole, level, settings = self.whole, 1.0, self.settings

        def model(x):
            pyro.module("whole", whole)
            with pyro.plate("data", 20, subsample=x, dim=-1):
                z = pyro.sample("z", dist.Normal(torch.zeros(2), settings.level).to_event(1))
                pyro.sample("x", dist.Normal(level * whole.decode(z), 1.0).to_event(1), obs=x)

        def guide(x):
            pyro.module("whole", whole)
            loc, log_scale = whole.encoder(x).chunk(2, -1)
            with pyro.plate("data", 20, subsample=x, dim=-1):
                pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))

        def set_level(value):
            nonlocal level
            level = value

        self.model, self.guide, self.set_level = model, guide, set_level


def attribute_of_a_module_that_is_not_called(program, step):
    program.whole.beta = 1.0 + step // 2


def mode_of_a_module_that_is_not_called(program, step):
    program.whole.train(step % 4 < 2)


def variable_of_a_closure(program, step):
    program.set_level(1.0 + step // 2)


def object_in_a_closure(program, step):
    program.settings.level = 1.0 + step // 2


@pytest.mark.parametrize(
    "change",
    [
        attribute_of_a_module_that_is_not_called,
        mode_of_a_module_that_is_not_called,
        variable_of_a_closure,
        object_in_a_closure,
    ],
)
def test_what_functions_see(change, log):
    def between(step, svi, program):
        change(program, step)

    assert_twins(Functions, [(torch.randn(6, 3),)] * 8, EXACT, between=between)
    assert captures(log) == 4


LEVEL = 1.0


def raised(mean):
    return mean * LEVEL


def test_what_functions_among_the_arguments_see(monkeypatch, log):
    def between(step, *_):
        monkeypatch.setitem(globals(), "LEVEL", 1.0 + step // 2)

    def make():
        return Plain(lambda program, z, x, function: function(program.decoder(z)))

    assert_twins(make, [(torch.randn(6, 3), raised)] * 8, EXACT, between=between)
    assert captures(log) == 4


def test_parameters_that_are_frozen_and_thawed(log):
    def between(step, svi, program):
        if step:
            pyro.get_param_store()._params["sd"].requires_grad_(step % 4 < 2)

    make = partial(Plain, plainly, scale=True)
    assert_twins(make, [(torch.randn(6, 3),)] * 8, EXACT, between=between)
    assert captures(log) == 4


class Trainer:
    """A program and its training in one object, which counts its steps."""

    def __init__(self, program):
        self.program, self.history, self.steps, self.beta = program, [], 0, 1.0
        self.svi = svi_for(self)

    def model(self, x):
        """As the program's, with a number."""
        with poutine.scale(scale=self.beta):
            self.program.model(x)

    def guide(self, x):
        """The program's."""
        self.program.guide(x)

    def train(self, batches):
        for x in batches:
            self.history.append(self.svi.step(x))
            self.steps += 1


class Helping(Trainer):
    """A trainer whose model reads its number in a method, a property and another function."""

    @property
    def doubled(self):
        """Twice the number."""
        return 2 * self.beta

    def helped(self, x):
        """As the program's, with a number and a function."""
        with poutine.scale(scale=self.doubled * FACTOR()):
            self.program.model(x)

    def model(self, x):
        """By a method."""
        self.helped(x)


def one():
    return 1.0


FACTOR = one


def test_methods_properties_and_functions_that_are_replaced(log, monkeypatch):
    trainer, batches = Helping(Plain(plainly)), [torch.randn(6, 3)]
    trainer.train(batches * 2)
    trainer.beta = 2.0
    trainer.train(batches * 2)
    assert captures(log) == 2
    monkeypatch.setitem(globals(), "FACTOR", lambda: 3.0)
    trainer.train(batches * 2)
    assert captures(log) == 3


def test_what_the_model_does_not_read_may_change(log):
    trainer, batches = Trainer(Plain(plainly)), [torch.randn(6, 3)] * 6
    trainer.train(batches)
    assert captures(log) == 1
    trainer.beta = 2.0
    trainer.train(batches)
    assert captures(log) == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_modules():
    assert_twins(lambda: Plain(plainly, torch.jit.script(nn.Linear(2, 3))), [(torch.randn(6, 3),)] * 5, EXACT)


def test_data_from_a_closure():
    class Batches(nn.Module):
        def __init__(self):
            super().__init__()
            self.program = Plain(plainly)
            self.batch = x = torch.randn(6, 3)

            def take(value):
                nonlocal x
                x = value

            self.take = take
            self.model, self.guide = (lambda: self.program.model(x)), (lambda: self.program.guide(x))

    def between(step, svi, program):
        program.take(program.batch + step // 2)

    assert_twins(Batches, [()] * 6, EXACT, between=between)


class Averaging(nn.Linear):
    """Keeps a running mean of its inputs in an attribute that is no buffer."""

    def __init__(self, in_place):
        super().__init__(2, 3)
        self.in_place, self.mean = in_place, torch.zeros(())

    def forward(self, z):
        size = z.detach().abs().mean()
        if self.in_place:
            self.mean.mul_(0.9).add_(size)
        else:
            self.mean = 0.9 * self.mean + size
        return super().forward(z) * (1 + 0.1 * self.mean)


def test_tensors_changed_in_place_need_not_be_buffers():
    programs = []

    def make():
        programs.append(Plain(plainly, Averaging(in_place=True)))
        return programs[-1]

    assert_twins(make, [(torch.randn(6, 3),)] * 6, EXACT)
    eager, captured = (program.decoder.mean for program in programs)
    assert_close(captured, eager, **EXACT)


def test_refuses_to_read_an_attribute_that_is_another_tensor_each_time():
    svi = svi_for(Plain(plainly, Averaging(in_place=False)))
    with pytest.raises(CaptureError, match="it reads 'mean' and puts another tensor in its place"):
        for _ in range(2):
            svi.step(torch.randn(6, 3))


class Counting(nn.Linear):
    def forward(self, z):
        self.calls = getattr(self, "calls", 0) + 1
        self.seen = z.detach()
        return super().forward(z)


def test_attributes_that_the_program_changes_itself(log):
    decoder = Counting(2, 3)
    decoder.calls, decoder.seen = 0, None
    svi, x = svi_for(Plain(plainly, decoder)), torch.randn(6, 3)
    for _ in range(5):
        svi.step(x)
    assert captures(log) == 1
    assert 1 <= decoder.calls <= 3


def other_optimiser(svi, program):
    svi.optim = svi_for(program, partial(torch.optim.SGD, lr=1e-3), rate=0.9).optim


def other_elbo(svi, program):
    svi.elbo = svi.loss = TraceConjugate_ELBO(kl_weight=0.1)


def other_model(svi, program):
    model = svi.model

    def louder(x):
        with poutine.scale(scale=3.0):
            model(x)

    svi.model = louder


def other_guide(svi, program):
    guide = svi.guide
    svi.guide = lambda x: guide(0.5 * x)


@pytest.mark.parametrize("change", [other_optimiser, other_elbo, other_model, other_guide])
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide:UserWarning")
def test_other_parts_of_the_inference(change):
    def between(step, svi, program):
        if step == 3:
            change(svi, program)

    svi = assert_twins(a_toy(), [(torch.bernoulli(torch.full((6, 5), 0.5)),)] * 6, between=between)
    assert len(svi._steps) == 2


def test_a_number_that_changes_at_each_step(log):
    """Each is captured, and the eighth says so, once for those shapes."""
    x = torch.randn(6, 3)
    batches = [(x[: 6 - step % 2], 0.1 * step) for step in range(22)]
    svi = assert_twins(lambda: Plain(lambda p, z, x, shift: p.decoder(z) + shift), batches, EXACT)
    assert len(svi._steps) == 8
    assert captures(log) == 22
    warnings = [record for record in log.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # two shapes
    assert all("captured 8 times" in record.getMessage() for record in warnings)
    assert log.records.index(warnings[0]) == 14  # after seven captures of six points, and seven of five


def test_different_shapes_are_nothing_to_warn_of(log):
    svi, x = svi_for(Plain(plainly)), torch.randn(20, 3)
    for size in (*range(1, 13), *range(1, 3)):
        svi.step(x[:size])
    assert all(record.levelno == logging.INFO for record in log.records)


def test_handlers_around_a_step():
    x = torch.bernoulli(torch.full((6, 5), 0.5))
    runs = []
    for eager in (True, False):
        pyro.set_rng_seed(1)
        toy = Toy()
        svi, losses = svi_for(toy, eager=eager), []
        for step in range(8):
            if step % 2:
                with poutine.scale(scale=0.5):
                    losses.append(svi.step(x))
            else:
                losses.append(svi.step(x))
        runs.append((losses, toy))
    assert_close(torch.tensor(runs[1][0]), torch.tensor(runs[0][0]), rtol=1e-9, atol=0)
    for p, q in zip(runs[0][1].parameters(), runs[1][1].parameters(), strict=True):
        assert_close(p, q, rtol=1e-9, atol=1e-9)
    assert runs[0][0][1] < 0.8 * runs[0][0][0]


@pytest.mark.parametrize("between_steps", [False, True])
def test_stray_gradients(between_steps):
    """Of a parameter that the program states, but has no use for: they count once, as in eager steps."""

    def make():
        program = Methods()
        program.decoder.unused = nn.Parameter(torch.ones(2))
        return program

    def between(step, svi, program):
        if step == 0 or between_steps:
            program.decoder.unused.grad = torch.full((2,), 1.0 + step)

    svi = assert_twins(make, [(torch.randn(6, 3),)] * 3, EXACT, between=between)
    unused = svi.model.__self__.decoder.unused
    assert unused.grad is None
    assert len(trained(make, [(torch.randn(6, 3),)] * 3)[1]) == 5


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_autocast_around_a_step(single_precision, first, recompute, log):
    """It is part of what is recorded, and casts nothing of what is replayed."""
    x, runs = binary_data(12), []
    for eager, around in ((True, True), (False, True), (True, False)):
        pyro.set_rng_seed(1)
        model = small_model()
        svi, losses = svi_for(model, eager=eager, recompute=recompute), []
        losses += [svi.step(x) for _ in range(first)]
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            losses += [svi.step(x) for _ in range(4)]
        losses += [svi.step(x) for _ in range(2)]
        runs.append((torch.tensor(losses), model))
    (eager, model), (captured, other), (plain, _) = runs
    assert_close(captured, eager, rtol=1e-5, atol=0)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(q, p, rtol=1e-4, atol=1e-4)
    assert (plain - eager).abs().max() > 1e-4 * plain.abs().max()
    assert captures(log) == 2


def test_precision_of_products(log):
    """It decides in which type the expected log-densities are multiplied."""
    model, x = small_model(), binary_data(12)
    svi = svi_for(model)
    svi.step(x)
    try:
        torch.set_float32_matmul_precision("high")
        svi.step(x)
    finally:
        torch.set_float32_matmul_precision("highest")
    svi.step(x)
    assert captures(log) == 2
