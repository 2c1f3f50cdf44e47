"""Facts that a recorded program takes for granted about objects besides its arguments."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_fmvae.capture.guards.hooks import Hooks, refuse_hooks_on_sums
from pyro_fmvae.capture.guards.outside import attributes
from pyro_fmvae.capture.guards.places import Observed, Place, Trail
from pyro_fmvae.capture.recording import Recording
from pyro_fmvae.capture.refusals import CaptureError
from pyro_fmvae.infer.elbo.operations import memory_of

_Fact = tuple[Mapping[Any, Any], Any, Any]


class Assumptions:
    """Modules, variables and Pyro's parameter store as they are when a program is recorded.

    Make it before the recording, call :meth:`check` after it, and ask :meth:`hold` before every replay. What
    the recorded run changes itself (a counter, say) is watched no longer.

    Args:
        modules: their parameters, buffers, submodules, attributes, modes, hooks and ``forward`` are watched;
            so are those of all modules below them.
        names: parameters in Pyro's store to watch; others may be among them.
        places: variables and attributes to watch.

    Attributes:
        tensors: parameters and buffers of the modules.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], names: Iterable[str], places: Iterable[Place] = ()
    ) -> None:
        self._facts: list[_Fact] = []
        places = list(places)
        self.tensors: list[Tensor] = []
        parts = dict.fromkeys(part for whole in modules for part in whole.modules())
        known = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]  # no Python in those
        for module in known:
            self._add(vars(module), vars(module).keys() & {"training"})  # a compiled one asks that inside it
            places += attributes(module)
            for held in (module._parameters, module._buffers, module._modules):
                self._add(held, held)
            held_tensors = (*module._parameters.values(), *module._buffers.values())
            self.tensors += [tensor for tensor in held_tensors if tensor is not None]
        self._containers: list[tuple[Observed, Collection[Trail]]]
        self._values: list[tuple[Callable[[Any], Any], Any, Any, Observed]]
        self._watch((each, ()) for each in {each.key: each for each in map(Observed, places)}.values())
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}
        tensors = dict.fromkeys((*self.tensors, *self._stored.values()))
        self._kinds = [(tensor, *_kind(tensor)) for tensor in tensors]
        self._hooks = Hooks(known, tensors)

    def _add(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        self._facts += [(holder, key, holder[key]) for key in keys]

    def _watch(self, observed: Iterable[tuple[Observed, Collection[Trail]]]) -> None:
        """Watch places, each but for the trails to what may change; those without contents go faster."""
        self._containers, self._values = [], []
        for each, free in observed:
            if each.changeable:
                self._containers.append((each, free))
            else:
                self._values.append((each.holder.get, each.name, each.then, each))

    def refuse_hooks(self, learnt: Iterable[Tensor]) -> None:
        """Refuse hooks that would take a step of their own once a gradient is there.

        Args:
            learnt: parameters of the program, besides those of the modules.

        Raises:
            CaptureError: a parameter has a hook of ``register_post_accumulate_grad_hook``.
        """
        refuse_hooks_on_sums([*learnt, *self.tensors])

    def check(self, recording: Recording) -> None:
        """Watch the tensors of a recording too, and no longer what the recorded run has changed.

        Raises:
            CaptureError: the program replaces a parameter, a buffer or a tensor that it reads, or changes a
                module's mode or hooks: replays would not.
        """
        read = {memory_of(tensor) for tensor in recording.state}
        kept = []
        for each in (*(each for each, _ in self._containers), *(each for *_, each in self._values)):
            changes = each.changes()
            if changes and isinstance(each.then, Tensor) and memory_of(each.then) in read:
                raise CaptureError(
                    f"the step cannot be captured: it reads '{each.name}' and puts another tensor in its "
                    "place. Make it a buffer that is changed in place (by copy_, say), or pass eager=True"
                )
            if () not in changes:
                kept.append((each, changes))
        self._watch(kept)
        if not self.hold():
            raise CaptureError(
                "the step cannot be captured: the program puts another tensor in the place of a parameter or "
                "buffer, or changes a module's mode or hooks. Change tensors in place (by copy_, say), or "
                "pass eager=True"
            )
        known = {id(tensor) for tensor, *_ in self._kinds}
        found = [tensor for tensor in recording.state if id(tensor) not in known and memory_of(tensor)]
        self._kinds += [(tensor, *_kind(tensor)) for tensor in found]

    def hold(self) -> bool:
        """True if everything is as it was."""
        for holder, key, value in self._facts:
            if holder.get(key) is not value:
                return False
        for get, name, then, each in self._values:
            if get(name) is not then and not each.holds():
                return False
        if not all(each.holds(but) for each, but in self._containers):
            return False
        for tensor, place, trainable, strides, shape in self._kinds:
            if tensor.data_ptr() != place or tensor.requires_grad != trainable:
                return False
            if tensor.stride() != strides or tensor.shape != shape:
                return False
        if not self._hooks.hold():
            return False
        if self._stored:
            store = dict(pyro.get_param_store().named_parameters())
            return all(store.get(name) is value for name, value in self._stored.items())
        return True


def _kind(tensor: Tensor) -> tuple[int, bool, tuple[int, ...], torch.Size]:
    """Address of a tensor's values, if it is learnt, its strides and shape: ``t.data = …`` changes these.

    Programs take strides and shape for granted, and a part of a matrix may have its address.
    """
    return tensor.data_ptr(), tensor.requires_grad, tensor.stride(), tensor.shape
