"""The one place where a program's kind is found out: written with this library's shorthands, or plain.

A shorthand is a distribution that remembers its parents, such as ``Assignment``. Programs in which all that
is integrated or summed out belongs to shorthands have the fast path of
:mod:`pyro_fmvae.infer.elbo.shorthand_structure`. Those where something else is, too, take the way of plain
programs as a whole, :mod:`pyro_fmvae.infer.elbo.plain`, which has the shorthands' formulas as well. All
others, such as a plain VAE, need neither, and take the first path.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

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
        self._plates: dict[tuple[Any, ...], int] = {}
        self._identities: dict[Hashable, bool] = {}
        self._whole: dict[tuple[Any, ...], dict[str, Tensor]] = {}

    def run(
        self, model: Any, guide: Any, args: Any, kwargs: Any, max_plate_nesting: float, key: tuple[Any, ...]
    ) -> Run:
        """Run a program in the way of its kind.

        Args:
            model, guide, args, kwargs: the program.
            max_plate_nesting: what plates may be checked against; a plain program's are counted.
            key: functions that the program is remembered by; of one without a hash, a method.

        Raises:
            ValueError: a program that is not of a recognised shape; the message names the site.
        """
        key = tuple(program if isinstance(program, Hashable) else program.__call__ for program in key)
        if key not in self._plates:
            random_state, stored = torch.get_rng_state(), len(pyro.get_param_store())
            seen, failure = Seen(), None
            try:
                with seen, _registrations() as made:
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
            if not made and len(pyro.get_param_store()) == stored:
                torch.set_rng_state(random_state)  # else the draws that made parameters would come once more
            if len(self._plates) > _MOST_PROGRAMS:
                oldest = next(iter(self._plates))
                del self._plates[oldest]
                self._whole.pop(oldest, None)
        while True:
            plates = self._plates[key]
            points = self._whole.setdefault(key, {})
            program, trace = run_plain(model, guide, args, kwargs, plates, self._identities, points)
            deepest = _deepest(program.model, trace)
            if deepest <= plates:
                return program, trace
            self._plates[key] = deepest


@contextmanager
def _registrations() -> Iterator[list[str]]:
    """Names of the parameters that modules are given inside."""
    names: list[str] = []
    handle = register_module_parameter_registration_hook(lambda module, name, value: names.append(name))
    try:
        yield names
    finally:
        handle.remove()


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
        self._sites: list[tuple[str, Any, Any]] = []  # with the values, so that no other comes to lie there
        self._discrete: set[str] = set()
        self._observed: list[Any] = []  # values, which may be computed from sites: obs=x - loc

    def _pyro_post_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        self._sites.append((msg["name"], fn, msg["value"]))
        if msg["is_observed"] and not hasattr(fn, "parents"):
            self._observed.append(msg["value"])
        if not hasattr(fn, "parents") and is_discrete(msg) and msg["fn"].has_enumerate_support:
            self._discrete.add(msg["name"])

    @property
    def possible(self) -> set[str]:
        """Names of the sites to be integrated or summed out that belong to no shorthand."""
        names = self._discrete | {n for n, fn, _ in self._sites if isinstance(fn, NaturalDistribution)}
        shorthands = [(name, fn) for name, fn, _ in self._sites if hasattr(fn, "parents")]
        names -= {name for name, _ in shorthands}
        owners = self._owners() if names else {}
        for _, fn in shorthands:
            for argument in fn.parents:
                taken = _owner(getattr(fn, argument), owners)
                names -= taken - self._discrete if argument == "assignment" else taken
        return names

    @property
    def outside(self) -> set[str]:
        """The possible ones that are discrete or that another site depends on."""
        possible = self.possible
        if not possible:
            return possible
        owners = self._owners()
        used = set[str]().union(*(_owner(value, {}) for value in self._observed))
        for _, fn, _ in self._sites:
            if not hasattr(fn, "parents"):
                used.update(*(_owner(part, owners) for _, part in held(fn)))
        return possible & (self._discrete | used)

    def _owners(self) -> dict[int, str]:
        """Identity of a value → the name of the first site that had it."""
        return {id(value): name for name, _, value in reversed(self._sites)}


def _owner(value: Any, owners: Mapping[int, str]) -> set[str]:
    """The sites that a value is from, as far as it tells."""
    if isinstance(value, Lazy):
        return sites_of(value)
    known = owners.get(id(value), getattr(value, "site", None))
    return set() if known is None else {known}
