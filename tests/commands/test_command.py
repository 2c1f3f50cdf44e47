"""The contract of commands: a new one is one module and its line in ``COMMANDS``."""

import importlib
import inspect
import pkgutil

import pytest
from jsonargparse import ArgumentParser

from pyro_fmvae import commands


def test_every_command_is_registered():
    modules = [
        importlib.import_module(f"{commands.__name__}.{found.name}")
        for found in pkgutil.iter_modules(commands.__path__)
    ]
    found = {module.COMMAND.name for module in modules if hasattr(module, "COMMAND")}
    names = [command.name for command in commands.COMMANDS]
    assert found == set(names) and len(names) == len(found)


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
def test_arguments_are_those_of_the_function(command):
    parser = ArgumentParser()
    command.add_arguments(parser)
    arguments = {action.dest for action in parser._actions} - {"help"}
    assert arguments == set(inspect.signature(command.run).parameters)
    assert command.help[0].islower() and command.description.endswith((".", ")"))
