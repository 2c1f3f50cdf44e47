"""The table of plain Pyro programs, each with what is known about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro.poutine as poutine
from pyro.infer.autoguide import AutoDelta

from pyro_fmvae.infer import AutoConjugate
from tests.infer.plain.oracles import Posteriors


@dataclass
class Program:
    """A model, its arguments, and what is known about it.

    Attributes:
        model: the program.
        plan: the treatment of each site.
        data: makes the arguments.
        make_guide: makes the guide from the model.
        twin: a program of the same meaning whose bound is found by brute force; the model itself as a rule.
        evidence: log p(data) as a function of the arguments; one step with rate 1 has to reach it.
        update: the posteriors after a step with rate 1 as a function of those before and the arguments,
            derived by hand; sites may be left out.
    """

    model: Callable[..., Any]
    plan: dict[str, str]
    data: Callable[[], Any]
    make_guide: Callable[[Any], Any]
    twin: Callable[..., Any]
    evidence: Callable[..., Any] | None = None
    update: Callable[..., Posteriors] | None = None

    @property
    def name(self) -> str:
        return self.model.__name__

    def arguments(self) -> tuple[Any, ...]:
        """The model's arguments."""
        data = self.data()
        return data if isinstance(data, tuple) else (data,)

    def setup(self) -> tuple[tuple[Any, ...], Any]:
        """The arguments, and a guide with posteriors that are not the best ones."""
        args, guide = self.arguments(), self.make_guide(self.model)
        with poutine.block():
            guide(*args)
        return args, guide

    def known_evidence(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.evidence = function
        return function

    def known_update(self, function: Callable[..., Posteriors]) -> Callable[..., Posteriors]:
        self.update = function
        return function


PROGRAMS: dict[str, Program] = {}


def autoguide(model: Any) -> AutoConjugate:
    """Natural posteriors, and fixed points for the sites that have none."""
    return AutoConjugate(model, fallback=AutoDelta)


def program(
    data: Callable[[], Any], guide: Callable[[Any], Any] = autoguide, twin: Any = None, **plan: str
) -> Callable[[Any], Program]:
    """Decorates the model of a program in the table.

    Args:
        data: makes its arguments: one, or a tuple of them.
        guide: makes the guide.
        twin: see :class:`Program`.
        plan: sites by their treatment: ``exact="w, locs", summed_out="a", observed="x"``.
    """

    def register(model: Any) -> Program:
        sites = {site: how.replace("_", " ") for how, names in plan.items() for site in names.split(", ")}
        entry = Program(model, sites, data, guide, twin or model)
        PROGRAMS[entry.name] = entry
        return entry

    return register
