"""The contract of commands: a new one is one module and its line in ``COMMANDS``."""

import importlib
import inspect
import pkgutil

import pytest
from jsonargparse import ArgumentParser

from pyro_fmvae.app import commands
from pyro_fmvae.app.commands import Command
from tests.small_runs import command, succeed


def test_every_command_is_registered():
    modules = [
        importlib.import_module(f"{commands.__name__}.{found.name}")
        for found in pkgutil.iter_modules(commands.__path__)
    ]
    found = {module.COMMAND.name for module in modules if hasattr(module, "COMMAND")}
    names = [command.name for command in commands.COMMANDS]
    assert found == set(names) and len(names) == len(found)


@pytest.mark.parametrize("known", commands.COMMANDS, ids=lambda known: known.name)
def test_arguments_are_those_of_the_function(known):
    parser = ArgumentParser()
    known.add_arguments(parser)
    arguments = {action.dest for action in parser._actions} - {"help"}
    assert arguments == set(inspect.signature(known.run).parameters)


def test_a_new_command_is_one_line(monkeypatch):
    def add_arguments(parser):
        parser.add_argument("word", type=int)
        parser.add_argument("--end-with", type=int, required=True)

    def twice(word, end_with):
        print(2 * word, end_with)
        return 0

    new = Command("twice", "print a number twice", "Print a number twice.", add_arguments, twice)
    monkeypatch.setattr(commands, "COMMANDS", (*commands.COMMANDS, new))
    assert succeed("twice", 4, "--end-with", 1) == "8 1\n"
    for arguments, message in (
        ((), "required: word, --end-with"),
        (("x", "--end-with", 1), "word: expected an integer, got 'x'"),
        ((4, "--end-with", "x"), "--end-with: expected an integer, got 'x'"),
    ):
        status, _, err = command("twice", *arguments)
        assert status == 2 and f"error: {message}" in err
