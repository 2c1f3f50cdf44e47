"""Which of its own draws a guide goes on to use, as it does where q(y | z) depends on z."""

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger, unwrap
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.infer.capture import uncompiled
from pyro_fmvae.infer.placeholder import Unsampled

_GETTERS: tuple[Any, ...] = (
    *(Tensor.shape, Tensor.dtype, Tensor.device, Tensor.layout, Tensor.ndim),
    *(Tensor.requires_grad, Tensor.is_leaf, Tensor.grad_fn),
)
_OF_FORM = {*(getter.__get__ for getter in _GETTERS), Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__}

_known: WeakKeyDictionary[Any, dict[Hashable, frozenset[str]]] = WeakKeyDictionary()


def trace_guide(guide: Any, args: Any, kwargs: Any) -> tuple[Trace, frozenset[str]]:
    """Run a guide; returns its trace, and the names of sites whose draws it uses in what comes after them.

    Uses are watched for once for each form of the arguments (which of them are tensors, None, True or False)
    and of the attributes that are strings, None, True or False; what ``torch.compile`` made runs as it was
    before while they are. Nothing tells of uses inside a ``torch.autograd.Function`` or TorchScript.
    """
    owner, form = _owner(guide), _form(guide, args, kwargs)
    try:
        known = _known.setdefault(owner, {})
    except TypeError:  # there are no weak references to it
        known = {}
    if form in known:
        return poutine.trace(guide).get_trace(*args, **kwargs), known[form]
    uses = _Uses()
    with uncompiled(), uses.mode:
        trace = poutine.trace(uses(guide)).get_trace(*args, **kwargs)
    known[form] = frozenset(uses.names)
    return trace, known[form]


class _Uses(Messenger):
    """Remembers what is drawn, and while its mode is on, whose draws are handed to a function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = _Mode(self)
        self.names: set[str] = set()
        self.draws: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no other has their id

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if isinstance(value, Tensor) and not isinstance(value, Unsampled):
            self.draws[id(value)] = msg["name"], value


class _Mode(TorchFunctionMode):
    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _OF_FORM:
            draws = self.uses.draws
            self.uses.names |= {draws[id(x)][0] for x in tree_leaves((args, kwargs)) if id(x) in draws}
        return func(*args, **kwargs)


def _owner(guide: Any) -> Any:
    """What lives as long as a guide does: a method is a new object at every look."""
    function = unwrap(guide)
    return getattr(function, "__self__", function)


def _form(guide: Any, args: Any, kwargs: Any) -> Hashable:
    """What may decide which draws a guide uses, in so far as it is cheap to tell at every step."""
    owner = _owner(guide)
    owners = owner.modules() if isinstance(owner, torch.nn.Module) else (owner,)
    attributes = [
        item for own in owners for item in getattr(own, "__dict__", {}).items() if _decides(item[1])
    ]
    arguments = [value if _decides(value) else type(value) for value in tree_leaves((args, kwargs))]
    name = getattr(unwrap(guide), "__name__", "")
    return name, len(args), tuple(kwargs), tuple(arguments), tuple(attributes)


def _decides(value: Any) -> bool:
    return value is None or value is True or value is False or type(value) is str
