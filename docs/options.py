"""Sphinx extension that lists the options of a command as its own parser declares them.

``{options} evaluate`` in a page becomes the arguments of ``pyro-fmvae evaluate``, ``{options} train --model
vae`` those that the model adds, and ``{options} shared`` those that every command takes.
"""

import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from pyro_fmvae.app.cli import build_parser

SHARED = ("--max-memory", "--debug", "--rank-timeout")
HIDDEN = ("--help", "--help-all", "--print_config")


def arguments(command):
    """Title of the parser's group, flags, text and default of each argument of a command."""
    parser = build_parser(command)
    (choices,) = (action.choices for action in parser._actions if hasattr(action, "add_subcommand"))
    for group in choices[command[0]]._action_groups:
        for action in group._group_actions:
            flags = action.option_strings or [action.dest.upper()]
            if action.help == "==SUPPRESS==" or flags[-1] in HIDDEN:
                continue
            value = action.default
            value = ",".join(map(str, value)) if isinstance(value, tuple) else value
            said = value not in (None, "") and value is not False and "default:" not in action.help
            yield group.title, flags, action.help, f" (default: {value})" if said else ""


class Options(SphinxDirective):
    """A list of a command's arguments, each with an anchor such as ``train-labels``."""

    required_arguments, optional_arguments = 1, 2

    def run(self):
        name, *model = self.arguments
        listed = nodes.definition_list(classes=["options"])
        for title, flags, text, default in arguments(["evaluate"] if name == "shared" else self.arguments):
            own = title.startswith("options of ") and title != "options of all models"
            if own != bool(model) or (flags[-1] in SHARED) != (name == "shared"):
                continue
            anchor = nodes.make_id("-".join([name, *model[1:], flags[-1].lstrip("-")]))
            term = nodes.term("", "", nodes.literal("", ", ".join(flags)), ids=[anchor])
            said = re.split(r"(--[a-z][a-z-]*)", text[0].upper() + text[1:] + default)  # flags at odd places
            parts = [nodes.literal("", part) if at % 2 else nodes.Text(part) for at, part in enumerate(said)]
            body = nodes.definition("", nodes.paragraph("", "", *parts))
            listed += nodes.definition_list_item("", term, body)
        return [listed]


def setup(app):
    app.add_directive("options", Options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
