"""Objects of a user's own classes that the program's functions read: a change is captured anew."""

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.capture.captured import CLOSE, EXACT, Plain, assert_twins


class Annealer:
    """A weight that grows with the steps: an attribute, behind a property."""

    def __init__(self):
        self.steps, self.unread = 2, 0

    @property
    def beta(self):
        """The weight."""
        return self.steps / 4

    def scaled(self, mean):
        """A method that the program calls."""
        return self.beta * mean


class Slots:
    __slots__ = ("sd", "unread")

    def __init__(self):
        self.sd, self.unread = 1.0, 0


class Prior:
    sd = 1.0


@dataclass
class Likelihood:
    sd: float = 1.0


class Config:
    """Objects within objects."""

    def __init__(self):
        self.prior, self.levels, self.likelihood = Prior(), [Prior()], Likelihood()
        self.annealer, self.slots = Annealer(), Slots()
        self.table, self.unread = torch.ones(3), 0


def body(program, z, x):
    config = program.config
    mean = config.annealer.scaled(program.decoder(z)) + config.slots.sd + config.likelihood.sd
    return mean * config.prior.sd + config.levels[0].sd * config.table


def make():
    program = Plain(body, nn.Linear(2, 3))
    program.config = Config()
    return program


def behind_a_property(config, step):
    config.annealer.steps = 2 + step // 2


def in_slots(config, step):
    config.slots.sd = 1.0 + step // 2


def of_an_object_in_an_object(config, step):
    config.prior.sd = 1.0 + step // 2


def of_an_object_in_a_list(config, step):
    config.levels[0].sd = 1.0 + step // 2


def of_a_class(config, step):
    Prior.sd = 1.0 + step // 2


def of_a_dataclass(config, step):
    config.likelihood.sd = 1.0 + step // 2


def of_a_class_that_computes(config, step):
    if step % 2 == 0:
        Annealer.scaled = lambda self, mean, step=step: mean * step


def of_an_object_that_computes(config, step):
    if step % 2 == 0:
        config.annealer.scaled = lambda mean: mean * step


def memory_of_a_tensor(config, step):
    if step % 2 == 0:
        config.table.data = torch.full((3,), 1.0 + step // 2)


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(Prior, "sd", 1.0)
    monkeypatch.setattr(Annealer, "scaled", Annealer.scaled)
    caplog.set_level(logging.INFO, "pyro_fmvae")
    return caplog


def captures(log):
    return sum(record.getMessage().startswith("captured the step") for record in log.records)


@pytest.mark.parametrize(
    "change",
    [
        behind_a_property,
        in_slots,
        of_an_object_in_an_object,
        of_an_object_in_a_list,
        of_a_class,
        of_a_dataclass,
        of_a_class_that_computes,
        of_an_object_that_computes,
        memory_of_a_tensor,
    ],
)
def test_attributes(change, log):
    def between(step, svi, program):
        change(program.config, step)
        program.config.unread = program.config.slots.unread = program.config.annealer.unread = step

    assert_twins(make, [(torch.randn(6, 3),)] * 8, EXACT, between=between)
    assert captures(log) == 4


@pytest.mark.parametrize("compile", [False, True])
def test_another_view_of_the_same_memory(compile, log):
    """The address stays, but a compiled program takes the strides for granted."""

    def between(step, svi, program):
        memory = torch.arange(1.0, 10.0).reshape(3, 3)
        if step == 0:
            program.memory, program.config.table.data = memory, memory[0]
        if step == 3:
            program.config.table.data = program.memory[:, 0]

    tolerance = CLOSE if compile else EXACT
    assert_twins(make, [(torch.randn(6, 3),)] * 6, tolerance, between=between, compile=compile)
    assert captures(log) == 2


class Cache:
    """Keeps what it has computed once."""

    def __init__(self):
        self.table = None

    def mean(self, z):
        if self.table is None:
            self.table = torch.full((3,), 2.0)
        return z * self.table


def test_what_is_computed_once_and_kept(log):
    """A tensor that the first run makes is no tensor that every run replaces; another one is noticed."""

    def make():
        program = Plain(lambda program, z, x: program.cache.mean(program.decoder(z)))
        program.cache = Cache()
        return program

    def between(step, svi, program):
        if step == 4:
            program.cache.table = torch.full((3,), 3.0)

    assert_twins(make, [(torch.randn(6, 3),)] * 8, EXACT, between=between)
    assert captures(log) == 2
