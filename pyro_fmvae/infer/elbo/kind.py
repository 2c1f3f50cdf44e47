"""The one place where a program's kind is found out: written with this library's shorthands, or plain.

A shorthand is a distribution that remembers its parents, such as ``Assignment``. Programs with any have the
fast path of :mod:`pyro_fmvae.infer.elbo.structure`. Programs without, in which something is to be integrated
or summed out, are plain: :mod:`pyro_fmvae.infer.elbo.plain`. All others, such as a plain VAE, need neither,
and take the first path.
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
from pyro_fmvae.infer.elbo.enumerated import is_discrete
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
            before, random_state, seen = _parameters(model, guide), torch.get_rng_state(), _Seen()
            try:
                with seen:
                    result = run_shorthand(model, guide, args, kwargs, max_plate_nesting)
            except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError):
                if not seen.plain:
                    raise
            else:
                if not seen.plain:
                    return result
            self._plates[key] = plates_of(model, guide, args, kwargs)
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


class _Seen(Messenger):
    """Takes note of the kinds of sites."""

    def __init__(self) -> None:
        super().__init__()
        self._shorthand = self._to_integrate = False

    @property
    def plain(self) -> bool:
        """True if there is something to be integrated or summed out, and no shorthand."""
        return self._to_integrate and not self._shorthand

    def _pyro_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        self._shorthand |= has_shorthand([msg])
        self._to_integrate |= isinstance(fn, NaturalDistribution) or (
            is_discrete(msg) and msg["fn"].has_enumerate_support
        )
