"""The one place where a program's kind is found out: written with this library's shorthands, or plain.

A shorthand is a distribution that remembers its parents, such as ``Assignment``. Programs in which all that
is integrated or summed out belongs to shorthands have the fast path of
:mod:`pyro_fmvae.infer.elbo.structure`. Those where something else is, too, take the way of plain programs
as a whole, :mod:`pyro_fmvae.infer.elbo.plain`, which has the shorthands' formulas as well. All others, such
as a plain VAE, need neither, and take the first path.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import pyro
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.density import held
from pyro_fmvae.infer.elbo.enumerated import is_discrete
from pyro_fmvae.infer.elbo.lazy import Lazy, sites_of
from pyro_fmvae.infer.elbo.plain import PlainProgram, plates_of, run_plain
from pyro_fmvae.infer.elbo.shorthand import run_shorthand
from pyro_fmvae.infer.elbo.structure import Site, Structure, sample_sites

_MOST_PROGRAMS = 16  # remembered at a time: a program that is made anew for each step is forgotten
Run = tuple[Structure | PlainProgram, Trace]


class Kinds:
    """Remembers which programs are plain, and what was found out about them."""

    def __init__(self) -> None:
        self._plates: dict[tuple[Any, Any], int] = {}
        self._identities: dict[Hashable, bool] = {}

    def run(
        self, model: Any, guide: Any, args: Any, kwargs: Any, max_plate_nesting: float, key: tuple[Any, Any]
    ) -> Run:
        """Run a program in the way of its kind.

        Args:
            model, guide, args, kwargs: the program.
            max_plate_nesting: what plates may be checked against; a plain program's are counted.
            key: what the program is remembered by.

        Raises:
            ValueError: a program that is not of a recognised shape; the message names the site.
        """
        if key not in self._plates:
            before, random_state = _parameters(model, guide), torch.get_rng_state()
            seen, failure = Seen(), None
            try:
                with seen:
                    result = run_shorthand(model, guide, args, kwargs, max_plate_nesting)
            except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
                if not seen.possible:
                    raise
                failure = error
            if failure is None and not seen.outside:
                return result
            whole = Seen()
            plates = plates_of(model, guide, args, kwargs, whole)
            if failure is not None and not whole.outside:  # sites that come after the failure take it
                raise failure
            self._plates[key] = plates
            if _parameters(model, guide) == before:  # else the draws that made them would come once more
                torch.set_rng_state(random_state)
            if len(self._plates) > _MOST_PROGRAMS:
                del self._plates[next(iter(self._plates))]
        while True:
            plates = self._plates[key]
            program, trace = run_plain(model, guide, args, kwargs, plates, self._identities)
            deepest = _deepest(program.model, trace)
            if deepest <= plates:
                return program, trace
            self._plates[key] = deepest


def _parameters(*programs: Any) -> int:
    """Number of parameters in Pyro's store and in modules."""
    modules = [program for program in programs if isinstance(program, nn.Module)]
    return len(pyro.get_param_store()) + sum(len(list(module.parameters())) for module in modules)


def _deepest(*traces: Trace) -> int:
    frames = [
        frame
        for trace in traces
        for site in sample_sites(trace).values()
        for frame in site["cond_indep_stack"]
        if frame.vectorized
    ]
    return max((-frame.dim for frame in frames), default=0)


def has_shorthand(sites: Iterable[Site]) -> bool:
    """True if any of a model's sites has a distribution that remembers its parents."""
    return any(hasattr(unwrap(site["fn"]), "parents") for site in sites)


def check_options(elbo: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that only programs of shorthands have.

    Args:
        elbo: whose attributes they are.
        options: name → the value that leaves it out.

    Raises:
        ValueError: one has another value.
    """
    for name, value in options.items():
        given = getattr(elbo, name)
        if isinstance(given, Tensor) or given != value:
            raise ValueError(
                f"{name}: expected {value} for a program of Pyro's own distributions; leave it out, or write "
                "the program with Assignment and Component, which have it"
            )


class Seen(Messenger):
    """Takes note of what is to be integrated or summed out, and of what shorthands take of it."""

    def __init__(self) -> None:
        super().__init__()
        self._natural: set[str] = set()
        self._discrete: set[str] = set()
        self._shorthands: set[str] = set()
        self._taken: set[str] = set()
        self._used: set[str] = set()
        self._values: dict[int, tuple[str, Any]] = {}  # with the values, so that no other comes to lie there

    @property
    def possible(self) -> set[str]:
        """Names of the sites to be integrated or summed out that belong to no shorthand."""
        return (self._natural | self._discrete) - self._shorthands - self._taken

    @property
    def outside(self) -> set[str]:
        """The possible ones that are discrete or that another site depends on."""
        return self.possible & (self._discrete | self._used)

    def _pyro_post_sample(self, msg: Any) -> None:
        fn, name, value = unwrap(msg["fn"]), msg["name"], msg["value"]
        self._values[id(value)] = name, value
        if not hasattr(fn, "parents"):
            self._used |= set().union(*map(self._names, held(fn)))
        else:
            self._shorthands.add(name)
            for argument in fn.parents:
                names = self._names(getattr(fn, argument))
                self._taken |= names - self._discrete if argument == "assignment" else names
        if isinstance(fn, NaturalDistribution):
            self._natural.add(name)
        elif name not in self._shorthands and is_discrete(msg) and msg["fn"].has_enumerate_support:
            self._discrete.add(name)

    def _names(self, value: Any) -> set[str]:
        """The sites that a value is from, as far as it tells."""
        if isinstance(value, Lazy):
            return sites_of(value)
        known = self._values.get(id(value), (getattr(value, "site", None), None))[0]
        return set() if known is None else {known}
