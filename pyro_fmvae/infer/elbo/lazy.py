"""Values that are not there: they have a shape and a dtype, and know what they were computed from.

Hoffman, Johnson and Tran (2018), Autoconj: recognizing and exploiting conjugacy without a domain-specific
language, trace a program in this way. :mod:`pyro_fmvae.infer.elbo.expansion` reads what was recorded.
"""

import sys
from collections.abc import Hashable, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions.constraints import Constraint
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from pyro_fmvae.infer.elbo.operations import NUMBER_WANTED

_SHAPE = {"size", "dim", "numel", "ndimension", "is_floating_point", "is_complex", "__len__", "element_size"}
_VIEWS = {"T", "mT"}
_CONSTANTS = {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full", "new_tensor"}
_LIKE_ANOTHER = {"type_as", "expand_as", "view_as", "reshape_as", "to"}
_TORCH_NAMES = {"axis": "dim", "keepdims": "keepdim"}
TRUTH_VALUE = "a truth value"
"""What a branch needs, in words."""
_COPIES = {
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten._to_copy.default,
}
_MOST_OUTPUTS = 10_000  # whose shapes are remembered
_known_outputs: dict[Hashable, tuple[list[Any], TreeSpec]] = {}


class NeedsValueError(ValueError):
    """A program uses values that are not there in a way that has no closed form.

    Attributes:
        sites: names of the sites whose values are needed.
        use: the function that needs them, in words.
    """

    sites: Set[str] = frozenset()
    use = ""

    @classmethod
    def of(cls, sites: Set[str], use: str) -> "NeedsValueError":
        """The error for sites that are used in a way."""
        error = cls(
            f"site '{min(sites, default='?')}': its value is needed (for {use}), but TraceConjugate_ELBO "
            "integrates over it in closed form and never draws it: a program may not branch on it, write it "
            "into a tensor, nor use it in a way that has no expectation in closed form. Let "
            "AutoConjugate(model) choose its distribution in the guide; or give it a natural posterior of a "
            "family that has this expectation, or any other distribution, which is then drawn"
        )
        error.sites, error.use = sites, use
        return error

    def first(self) -> "NeedsValueError":
        """The error that was raised first, where Pyro has raised it anew to add the shapes of a trace."""
        error: BaseException = self
        while isinstance(error.__cause__, NeedsValueError):
            error = error.__cause__
        assert isinstance(error, NeedsValueError)
        return error


class Sampled(NamedTuple):
    """The origin of a value: a sample site, with the support of its distribution."""

    name: str
    support: Constraint


class Computed(NamedTuple):
    """The origin of a value: a function of others.

    Args:
        name: of the function.
        function, args, kwargs: the call.
        output: the number of this value among the outputs.
        known: the tensors among the arguments, each with the number of its changes in place so far.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int = 0
    known: tuple[tuple[Tensor, int], ...] = ()

    def holds(self) -> bool:
        """True if no tensor among the arguments was changed in place since the call."""
        return all(_changes(tensor) == then for tensor, then in self.known)


class Lazy(Tensor):
    """A value with a shape, a dtype and a device but no numbers; ``origin`` tells how it came to be.

    Functions of it are recorded, not computed. Whatever asks it for a number, or writes it into another
    tensor, raises a :class:`NeedsValueError`. Checks of the arguments of distributions pass.
    """

    origin: Sampled | Computed

    @staticmethod
    def make(
        shape: torch.Size, dtype: torch.dtype, device: torch.device, origin: Sampled | Computed
    ) -> "Lazy":
        """A value of a given origin."""
        new: Lazy = Tensor._make_wrapper_subclass(Lazy, shape, dtype=dtype, device=device)
        new.origin = origin
        return new

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call."""
        args, kwargs = _in_torch_terms(args, kwargs or {})
        name = func.__name__
        is_property = name == "__get__"
        if is_property:
            name = func.__self__.__name__
        if name in _SHAPE or (is_property and name not in _VIEWS):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "__bool__" and _asked_by_a_distribution():
            return True
        in_place = (name.endswith("_") and not name.endswith("__")) or "out" in kwargs
        if name in NUMBER_WANTED or name == "__setitem__" or in_place:
            raise NeedsValueError.of(sites_of((args, kwargs)), _in_words(name))
        if name == "broadcast_tensors":
            tensors = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
            return tuple(tensor.expand(shape) for tensor in tensors)
        if name in _CONSTANTS or (name in _LIKE_ANOTHER and not isinstance(args[0], Lazy)):
            return func(*tree_map(_unwritten, args), **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        device = next(tensor.device for tensor in tensors if isinstance(tensor, Lazy))
        known = tuple((tensor, _changes(tensor)) for tensor in tensors if not isinstance(tensor, Lazy))
        with torch._C.DisableTorchFunctionSubclass():
            try:
                leaves, spec = _outputs(func, args, kwargs)
            except NotImplementedError:  # a shape that depends on numbers
                raise NeedsValueError.of(sites_of((args, kwargs)), _in_words(name)) from None
        calls = (Computed(name, func, args, kwargs, number, known) for number in range(len(leaves)))
        values = [
            cls.make(leaf.shape, leaf.dtype, device, call) if isinstance(leaf, Tensor) else leaf
            for leaf, call in zip(leaves, calls, strict=True)
        ]
        return tree_unflatten(values, spec)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Handle a copy; anything else that comes past ``__torch_function__`` needs numbers."""
        kwargs = kwargs or {}
        if func in _COPIES:
            source = args[0]
            origin = Computed("clone", torch.clone, (source,), {})
            return cls.make(source.shape, kwargs.get("dtype") or source.dtype, source.device, origin)
        raise NeedsValueError.of(sites_of((args, kwargs)), _in_words(str(func)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({self.origin.name}, {tuple(self.shape)})"


def _changes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _in_torch_terms(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with NumPy's names in torch's words, and operands by position."""
    kwargs = {_TORCH_NAMES.get(name, name): value for name, value in kwargs.items()}
    for number, names in enumerate((("input", "self"), ("other", "exponent"))):
        for name in names:
            if name in kwargs and len(args) == number:
                args = (*args, kwargs.pop(name))
    return args, kwargs


def _in_words(name: str) -> str:
    return TRUTH_VALUE if name == "__bool__" else f"'{name.strip('_')}'"


def _asked_by_a_distribution() -> bool:
    """True where a distribution checks its arguments: there are no numbers to be found out of range."""
    asking = sys._getframe(2).f_globals.get("__name__", "")
    return asking.startswith(("torch.distributions", "pyro.distributions"))


def _outputs(func: Any, args: Any, kwargs: Any) -> tuple[list[Any], TreeSpec]:
    """Results of a function, flattened, with tensors that have no numbers.

    Found out once for arguments of the same shapes: a step makes each call anew, and torch takes longer over
    a shape than over small numbers.
    """
    key = (func, torch.get_default_dtype(), _shapes((args, kwargs)))
    if key not in _known_outputs:
        if len(_known_outputs) >= _MOST_OUTPUTS:
            _known_outputs.clear()
        on_meta = _at_position if func.__name__ == "__getitem__" else _on_meta
        result = func(*tree_map(on_meta, args), **tree_map(on_meta, kwargs))
        _known_outputs[key] = tree_flatten(result)
    return _known_outputs[key]


def _shapes(value: Any) -> Hashable:
    """Arguments, with shapes and types in the place of tensors."""
    if isinstance(value, Tensor | np.ndarray):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return (type(value), *map(_shapes, value))
    if isinstance(value, dict):
        return tuple((name, _shapes(each)) for name, each in value.items())
    return type(value), repr(value)


def _on_meta(value: Any) -> Any:
    """A value that only shapes are asked of."""
    if isinstance(value, Lazy):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _at_position(value: Any) -> Any:
    """A value of an index that only shapes are asked of: a position in a tensor may be any one."""
    is_position = isinstance(value, Tensor) and value.dim() == 0 and value.dtype in (torch.int64, torch.int32)
    return 0 if is_position and not isinstance(value, Lazy) else _on_meta(value)


def _unwritten(value: Any) -> Any:
    """A tensor in the place of a value that is not there, on its own device."""
    return (
        torch.empty(value.shape, dtype=value.dtype, device=value.device) if isinstance(value, Lazy) else value
    )


def is_lazy(*values: Any) -> bool:
    """True if any of these, or of what is in the containers among them, is a :class:`Lazy`."""
    return any(isinstance(leaf, Lazy) for leaf in tree_leaves(values))


def sites_of(values: Any) -> set[str]:
    """The names of the sites that values were computed from."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Lazy)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        origin = value.origin
        if isinstance(origin, Sampled):
            found.add(origin.name)
        else:
            waiting += [leaf for leaf in tree_leaves((origin.args, origin.kwargs)) if isinstance(leaf, Lazy)]
    return found
