"""Which of its own draws a guide goes on to use, as it does where q(y | z) depends on z."""

from collections.abc import Set
from typing import Any
from weakref import WeakKeyDictionary

import pyro.poutine as poutine
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.messenger import unwrap as without_handlers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.capture import memory_of, uncompiled
from pyro_fmvae.infer.placeholder import Unsampled
from pyro_fmvae.infer.structure import Program, sample_sites

_matters: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


def trace_guide(guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Set[str] | None]:
    """Run a guide; returns its trace, and the names of sites whose draws it uses in what comes after them.

    A use is an operation on the memory of a draw, or a distribution, scale or mask that holds it. Other
    threads are not seen. While uses are watched for, what ``torch.compile`` made runs as it was before.

    Returns:
        None in the place of the names if :func:`take_at_draws` found that they do not matter.
    """
    of_owner, name = _notes(guide)
    if not of_owner.get(name, True):
        return poutine.trace(guide).get_trace(*args, **kwargs), None
    uses = _Uses()
    with uncompiled(), _Operations(uses):
        trace = poutine.trace(uses(guide)).get_trace(*args, **kwargs)
    return trace, uses.names


def take_at_draws(program: Program, guide: Any, trace: Trace, used: Set[str] | None) -> None:
    """Settle which sites of a program enter at their draws, not by an expectation: ``program.drawn``.

    These are the sites in use among those that an expectation is taken over together, but for the last one;
    all of them where uses were not watched for. Where there are none such to watch, that is remembered.

    Args:
        program: what the guide's trace and the model's were recognised as.
        guide, trace, used: the guide, and what :func:`trace_guide` returned.

    Raises:
        ValueError: a site in use whose distribution has no reparameterised sampler.
    """
    sites = sample_sites(trace)
    followed: set[str] = set()
    for names in _together(program):
        in_order = [name for name in sites if name in names]
        followed.update(in_order[:-1])
    followed = {name for name in followed if not isinstance(sites[name]["value"], Unsampled)}
    of_owner, method = _notes(guide)
    of_owner[method] = bool(followed) or of_owner.get(method, False)
    fixed = {name for name in followed if not sites[name]["fn"].has_rsample}
    for name in sorted(fixed & (used or set())):
        raise ValueError(
            f"site '{name}': the guide uses its draw, and {type(unwrap(sites[name]['fn'])).__name__} has no "
            "reparameterised sampler"
        )
    program.drawn = frozenset(followed - fixed if used is None else followed & used)


def _together(program: Program) -> list[set[str]]:
    """The sites that have a part in the same expectation, for each mixture and whatever else has one."""
    together = [set(child.parents.values()) for child in program.integrated]
    for mixture in program.mixtures:
        names = {mixture.name, *mixture.parents.values()}
        for child in mixture.children:
            names |= {child.name, *child.parents.values()}
        together.append(names)
    return together


class _Uses(Messenger):
    """Remembers where in memory draws are, and the sites of those that were used."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._drawn: dict[int, set[str]] = {}
        self._kept: list[Tensor] = []  # so that no other tensor comes to lie there

    def look_at(self, *values: Any) -> None:
        """Take note of the draws among these, and in the containers among them."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self.names |= self._drawn.get(memory_of(value), set())

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if msg["infer"].get("_deterministic"):
            return
        self.look_at(vars(unwrap(msg["fn"])), msg["scale"], msg["mask"])
        if msg["is_observed"]:
            self.look_at(value)
        elif isinstance(value, Tensor) and not isinstance(value, Unsampled):
            self._drawn.setdefault(memory_of(value), set()).add(msg["name"])
            self._kept.append(value)


class _Operations(TorchDispatchMode):
    """Shows what operations are given."""

    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.uses._drawn:
            self.uses.look_at(args, kwargs)
        return func(*args, **(kwargs or {}))


def _notes(guide: Any) -> tuple[dict[str, bool], str]:
    """What is remembered of a guide's owner, and its name there: a method is a new object at every look."""
    function = without_handlers(guide)
    owner, name = getattr(function, "__self__", function), getattr(function, "__name__", "")
    try:
        return _matters.setdefault(owner, {}), name
    except TypeError:  # there are no weak references to it
        return {}, name
