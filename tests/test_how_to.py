"""The pages of questions: commands that they name exist, and so do the messages."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from pyro_fmvae.app.commands import all_commands
from pyro_fmvae.app.commands.parser import Parser

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = re.findall(r"`pyro-fmvae ([^`]+)`", (ROOT / "docs/start/how-to.md").read_text(encoding="utf-8"))
ERRORS = re.findall(r"^```text\n(.+)\n```$", (ROOT / "docs/start/faq.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_has_its_options(text):
    name, *arguments = shlex.split(text)
    (command,) = (one for one in all_commands([name, *arguments]) if one.name == name)
    parser = Parser()
    command.add_arguments(parser)
    parser.parse_args(arguments)


@pytest.fixture(scope="module")
def texts():
    """Every string of the package, neighbouring parts joined and what is filled in as one sign."""
    found = []
    for path in (ROOT / "pyro_fmvae").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_there_are_commands_and_errors():
    assert len(COMMANDS) > 12 and len(ERRORS) > 10


@pytest.mark.parametrize("message", ERRORS)
def test_a_message_is_one_of_the_package(message, texts):
    whole = [part.strip(" '") for part in message.split("…")]
    longest = max(whole, key=len)
    assert len(longest) > 15 and longest in texts
