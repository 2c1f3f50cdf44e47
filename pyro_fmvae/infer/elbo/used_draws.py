"""Draws that a guide itself goes on to use, as it does where q(y | z) depends on z."""

from collections.abc import Set
from contextlib import ExitStack
from typing import Any

import pyro.poutine as poutine
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.lazy import Lazy
from pyro_fmvae.infer.elbo.operations import memory_of, uncompiled
from pyro_fmvae.infer.elbo.placeholder import Unsampled
from pyro_fmvae.infer.elbo.structure import Structure, sample_sites
from pyro_fmvae.infer.elbo.unique_sites import unique_sites

_OF_A_FALLBACK = (
    "The fallback of an AutoConjugate samples every site without a natural posterior, in the model's plates: "
    "give it fallback=None where the rest of the guide does so"
)


def trace_guide(guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Set[str]]:
    """Run a guide; returns its trace, and the names of sites whose draws it uses later.

    A use is an operation on the memory of a draw, or a distribution, scale or mask that holds it. Other
    threads are not seen. From the first draw on, compiled functions run as they were before compilation.
    """
    with ExitStack() as watching, unique_sites("guide", _OF_A_FALLBACK):
        uses = _Uses(watching)
        trace = poutine.trace(uses(guide)).get_trace(*args, **kwargs)
    return trace, uses.names


def in_order(model: Trace, guide: Trace, name: str) -> bool:
    """True if whatever precedes a site in the model precedes it in the guide."""
    before = list(sample_sites(model))
    before = before[: before.index(name)]
    in_guide = list(sample_sites(guide))
    return set(before).isdisjoint(in_guide[in_guide.index(name) :])


def take_at_draws(program: Structure, guide: Trace, used: Set[str]) -> None:
    """Set ``program.drawn``: the sites that enter at their draws, not by an expectation.

    These are the sites in use among those under one expectation, except for the last of them.

    Args:
        program: the structure of the guide's trace and the model's.
        guide, used: the results of :func:`trace_guide`.

    Raises:
        ValueError: such a site whose distribution has no reparameterised sampler.
    """
    sites = sample_sites(guide)
    for names in _together(program):
        in_order = [name for name in sites if name in names]
        program.drawn |= used & set(in_order[:-1])
    for name in sorted(program.drawn):
        q = sites[name]["fn"]
        if not q.has_rsample:
            raise ValueError(
                f"site '{name}': the guide uses its draw, and {type(unwrap(q)).__name__} has no "
                "reparameterised sampler; give it a distribution that has_rsample"
            )


def _together(program: Structure) -> list[set[str]]:
    """The sites that have a part in the same expectation, for each mixture and whatever else has one."""
    together = [set(child.parents.values()) for child in program.integrated]
    for mixture in program.mixtures:
        names = {mixture.name, *mixture.parents.values()}
        for child in mixture.children:
            names |= {child.name, *child.parents.values()}
        together.append(names)
    return together


class _Uses(Messenger):
    """Records where in memory draws are, and the sites whose draws were used.

    Args:
        watching: closed when the guide ends.
    """

    def __init__(self, watching: ExitStack) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._watching = watching
        self._drawn: dict[int, set[str]] = {}
        self._kept: list[Tensor] = []  # so that no other tensor comes to lie there

    def look_at(self, *values: Any) -> None:
        """Take note of the draws among these, and in the containers among them."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and not isinstance(value, Lazy):
                self.names |= self._drawn.get(memory_of(value), set())

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if msg["infer"].get("_deterministic") or type(msg["fn"]).__name__ == "_Subsample":
            return
        self.look_at(vars(unwrap(msg["fn"])), msg["scale"], msg["mask"])
        if msg["is_observed"]:
            self.look_at(value)
        elif isinstance(value, Tensor) and not isinstance(value, Unsampled | Lazy):
            if not self._drawn:  # before there is a draw, there is nothing to watch for
                self._watching.enter_context(uncompiled())
                self._watching.enter_context(_Operations(self))
            self._drawn.setdefault(memory_of(value), set()).add(msg["name"])
            self._kept.append(value)


class _Operations(TorchDispatchMode):
    """Shows the arguments of operations."""

    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.uses.look_at(args, kwargs)
        return func(*args, **(kwargs or {}))
