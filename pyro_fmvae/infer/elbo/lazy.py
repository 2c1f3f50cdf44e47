"""Values that are not there: they have a shape and a dtype, and know what they were computed from.

Hoffman, Johnson and Tran (2018), Autoconj: recognizing and exploiting conjugacy without a domain-specific
language, trace a program in this way. :mod:`pyro_fmvae.infer.elbo.expansion` reads what was recorded.
"""

import sys
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.distributions.constraints import Constraint
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

# Seeing single tensor operations: which memory they work on, and as they were written, not compiled.

NUMBER_WANTED = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"} | {
    "__contains__",
    "__array__",
    "__array_interface__",
    "__dlpack__",
}
"""Names of functions that ask a tensor for its numbers."""
_ALIASES = {
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "subtract": "sub",
    "__rsub__": "rsub",
    "__mul__": "mul",
    "__rmul__": "mul",
    "multiply": "mul",
    "__truediv__": "div",
    "divide": "div",
    "true_divide": "div",
    "__rtruediv__": "rdiv",
    "__rdiv__": "rdiv",
    "__pow__": "pow",
    "ger": "outer",
    "clip": "clamp",
    "clamp_min": "clamp",
    "__neg__": "neg",
    "negative": "neg",
    "__matmul__": "matmul",
    "__rmatmul__": "rmatmul",
    "mv": "matmul",
    "mm": "matmul",
    "dot": "matmul",
    "bmm": "matmul",
}


def memory_of(value: Any) -> int:
    """An identifier of the memory that a tensor's values are in; 0 for anything else."""
    strided = isinstance(value, Tensor) and value.layout == torch.strided
    return value.untyped_storage()._cdata if strided else 0


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions and modules as they were before ``torch.compile``."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:  # takes a second to import, and nothing was compiled without it
        yield
        return
    traced = dynamo.config.patch(error_on_nested_fx_trace=False)
    with dynamo.set_stance("force_eager"), traced:  # torch 2.6 would compile in a rehearsal
        yield


# Stand-ins for values that ``TraceConjugate_ELBO`` integrates over instead of drawing them.


_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device)

_GIVES_SHAPE = {*(getter.__get__ for getter in _GETTERS), Tensor.dim, Tensor.size}


class Unsampled(Tensor):
    """A value that was never drawn. It has a shape and a dtype but no numbers, and so have its functions.

    A use that the ELBO did not recognise therefore cannot bias the loss silently. Asking for a number raises
    an error that names the site: a branch does, the check of a distribution's arguments, and the loss itself.
    So does writing the value into another tensor.
    """

    site: str

    @classmethod
    def like(cls, shape: torch.Size, dtype: torch.dtype, site: str) -> "Unsampled":
        """A placeholder of the given shape for the value of a site: NaN, or an impossible index."""
        return _mark(torch.full((), _poison_of(dtype), dtype=dtype).expand(shape), site)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` on plain tensors, and mark its results."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _GIVES_SHAPE:
                return func(*args, **kwargs)
            inputs = tree_leaves((args, kwargs))
            site = next((x.site for x in inputs if isinstance(x, Unsampled) and hasattr(x, "site")), "?")
            others = [x for x in inputs if isinstance(x, Tensor) and not isinstance(x, Unsampled)]
            versions = [x._version for x in others]
            needed = getattr(func, "__name__", "") in NUMBER_WANTED
            if not needed:
                device = next((x.device for x in others), None)
                args, kwargs = tree_map(partial(_harmless, device=device), (args, kwargs))
                result = func(*args, **kwargs)
            if needed or versions != [x._version for x in others]:
                raise ValueError(
                    f"site '{site}': its value is needed, but TraceConjugate_ELBO integrates over it in "
                    "closed form and never draws it: a program may not branch on it, write it into a tensor, "
                    "nor build a distribution from it, except of a class that register_expected_log_prob "
                    "knows. A posterior in standard parameters (to_standard) is drawn. A program without an "
                    "Assignment or a Component may compute with it"
                )
            return tree_map(lambda value: _poison(value, site), result)


def _harmless(value: Any, device: torch.device | None) -> Any:
    """A plain tensor beside the others while an operation runs, with indices of 0, so that it succeeds."""
    if not isinstance(value, Unsampled):
        return value
    number = _poison_of(value.dtype) if value.is_floating_point() else 0
    return torch.full((), number, dtype=value.dtype, device=device or value.device).expand(value.shape)


def _mark(tensor: Tensor, site: str) -> Unsampled:
    marked = tensor.as_subclass(Unsampled)
    marked.site = site
    return marked


def _poison_of(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _poison(value: Any, site: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _mark(torch.full_like(value, _poison_of(value.dtype)), site)


def missing_in_guide(name: str, plain: bool = False) -> str:
    """The message for a latent site of a model, written with shorthands or plain, that the guide lacks."""
    advice = (
        "AutoConjugate(model) samples every site, unless it has fallback=None"
        if plain
        else "AutoConjugate samples a site if an Assignment or a component is given its very value: the mean "
        "and the precision of a Component are one site of a NormalGamma"
    )
    return (
        f"site '{name}': it is neither observed nor in the guide, and nothing integrates over it; sample it "
        f"in the guide. ({advice})"
    )


_SHAPE = {"size", "dim", "numel", "ndimension", "is_floating_point", "is_complex", "__len__", "element_size"}
_VIEWS = {"T", "mT"}
CONSTANTS = {
    *("ones_like", "zeros_like", "full_like", "empty_like"),
    *("new_ones", "new_zeros", "new_full", "new_empty", "new_tensor"),
}
"""Functions that use no numbers of a tensor."""
_LIKE_ANOTHER = {"type_as", "expand_as", "view_as", "reshape_as", "to"}
_IN_PLACE = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
    "__ipow__": "pow",
    "__setitem__": "setitem",
}
"""Statements that change a tensor in place → the function that returns the changed one."""
_TORCH_NAMES = {"axis": "dim", "keepdims": "keepdim"}
TRUTH_VALUE = "a truth value"
"""What a branch needs, in words."""
_COPIES = {
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten._to_copy.default,
}
_SHAPED = {"expand", "__getitem__", "unsqueeze", "squeeze", "reshape", "view"}
_MOST_OUTPUTS = 10_000  # whose shapes are remembered
_known_outputs: dict[Hashable, tuple[list[Any], list[bool], TreeSpec]] = {}


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
    tensor, raises a :class:`NeedsValueError`. Checks of the arguments of distributions pass. A value that was
    computed into memory of its own may be changed in place until something else is computed from it.
    """

    origin: Sampled | Computed
    may_change = False

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
        if name == "__bool__" and asked_by_a_distribution():
            return True
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        if in_place and isinstance(args[0], Lazy) and args[0].may_change and "out" not in kwargs:
            return args[0]._changed(func, args[1:], kwargs)
        if name in NUMBER_WANTED or in_place or "out" in kwargs:
            raise NeedsValueError.of(sites_of((args, kwargs)), in_words(name))
        if name in ("__getitem__", *_IN_PLACE):
            args = args[0], _by_numbers(args[1]), *args[2:]
        if name == "broadcast_tensors":
            tensors = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
            return tuple(tensor.expand(shape) for tensor in tensors)
        if name in CONSTANTS or (name in _LIKE_ANOTHER and not isinstance(args[0], Lazy)):
            return func(*tree_map(_unwritten, args), **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        lazy = [tensor for tensor in tensors if isinstance(tensor, Lazy)]
        device = lazy[0].device
        known = tuple((tensor, _changes(tensor)) for tensor in tensors if not isinstance(tensor, Lazy))
        with torch._C.DisableTorchFunctionSubclass():
            try:
                leaves, own, spec = _outputs(func, args, kwargs)
            except NotImplementedError:  # a shape that depends on numbers
                raise NeedsValueError.of(sites_of((args, kwargs)), in_words(name)) from None
        values = list(leaves)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                call = Computed(name, func, args, kwargs, number, known)
                values[number] = cls.make(leaf.shape, leaf.dtype, device, call)
                values[number].may_change = own[number]
        for tensor in lazy:
            tensor.may_change = False
        return tree_unflatten(values, spec)

    def _changed(self, func: Any, args: Any, kwargs: Any) -> "Lazy":
        """This value, after a change in place: what it was before is a value of its own."""
        before = Lazy.make(self.shape, self.dtype, self.device, self.origin)
        args, kwargs = tree_map(lambda value: before if value is self else value, (args, kwargs))
        after = Lazy.__torch_function__(_out_of_place(func), (), (before, *args), kwargs)
        if (after.shape, after.dtype) != (self.shape, self.dtype):
            raise NeedsValueError.of(sites_of(self), in_words(func.__name__))
        self.origin = after.origin
        return self

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
        raise NeedsValueError.of(sites_of((args, kwargs)), in_words(str(func)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({self.origin.name}, {tuple(self.shape)})"


@cache  # the same function each time, which outputs are remembered by
def _out_of_place(func: Any) -> Callable[..., Tensor]:
    """A function that changes a tensor in place as one that returns the changed tensor."""

    @wraps(func)
    def on_copy(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = x.clone()
        func(copy, *args, **kwargs)
        return copy

    on_copy.__name__ = _IN_PLACE.get(func.__name__, func.__name__.removesuffix("_"))
    return on_copy


def _by_numbers(index: Any) -> Any:
    """An index with the numbers of elements in the place of masks."""
    if not isinstance(index, tuple):
        return _by_numbers((index,)) if isinstance(index, Tensor) and index.dtype == torch.bool else index
    parts: list[Any] = []
    for part in index:
        is_mask = isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() > 0
        parts += part.nonzero().unbind(1) if is_mask else [part]
    return tuple(parts)


def _changes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _in_torch_terms(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with NumPy's names in torch's words, and operands by position."""
    kwargs = {
        _TORCH_NAMES.get(name, name): value
        for name, value in kwargs.items()
        if name != "out" or value is not None
    }
    for number, names in enumerate((("input", "self"), ("other", "exponent"))):
        for name in names:
            if name in kwargs and len(args) == number:
                args = (*args, kwargs.pop(name))
    return args, kwargs


def in_words(name: str) -> str:
    """A function's name for a message."""
    return TRUTH_VALUE if name == "__bool__" else f"'{name.strip('_')}'"


def asked_by_a_distribution() -> bool:
    """True where a distribution checks its arguments: there are no numbers to be found out of range."""
    asking = sys._getframe(2).f_globals.get("__name__", "")
    return asking.startswith(("torch.distributions", "pyro.distributions", "pyro_fmvae.distributions"))


def _outputs(func: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[bool], TreeSpec]:
    """Results of a function, flattened, as tensors without numbers, and which have memory of their own.

    Found out once for arguments of the same shapes: a step makes each call anew, and torch takes longer over
    a shape than over small numbers.
    """
    key = (func, torch.get_default_dtype(), shapes_of((args, kwargs)))
    if key not in _known_outputs:
        if len(_known_outputs) >= _MOST_OUTPUTS:
            _known_outputs.clear()
        on_meta = _at_position if func.__name__ == "__getitem__" else _on_meta
        given = tree_map(on_meta, (args, kwargs))
        leaves, spec = tree_flatten(func(*given[0], **given[1]))
        shared = {memory_of(leaf) for leaf in tree_leaves(given)}
        _known_outputs[key] = leaves, [memory_of(leaf) not in shared for leaf in leaves], spec
    return _known_outputs[key]


def shapes_of(value: Any) -> Hashable:
    """Arguments, with shapes and types in the place of tensors."""
    if isinstance(value, Tensor | np.ndarray):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return (type(value), *map(shapes_of, value))
    if isinstance(value, dict):
        return tuple((name, shapes_of(each)) for name, each in value.items())
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
    return {origin.name for origin in _origins(values) if isinstance(origin, Sampled)}


def functions_of(values: Any) -> set[str]:
    """The names of the functions that values were computed by, copies with other shapes left out."""
    return {origin.name for origin in _origins(values) if isinstance(origin, Computed)} - _SHAPED


def _origins(values: Any) -> Iterator[Sampled | Computed]:
    visited: set[int] = set()
    waiting = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Lazy)]
    while waiting:
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        yield value.origin
        if isinstance(value.origin, Computed):
            inside = tree_leaves((value.origin.args, value.origin.kwargs))
            waiting += [leaf for leaf in inside if isinstance(leaf, Lazy)]


def name_of(call: Computed) -> str:
    """One name for a function, its method and its operator."""
    return _ALIASES.get(call.name, call.name)


def has_lazy_arguments(fn: Distribution) -> bool:
    """True if a distribution, or one inside of it, was made from values that are not there."""
    return is_lazy(list(held(fn)))


def lazy_sites(fn: Distribution) -> set[str]:
    """Names of the sites without values that a distribution was made from."""
    return sites_of(list(held(fn)))


def device_of(fn: Distribution) -> torch.device:
    """The device of a distribution's parameters; the CPU if it has no tensors."""
    return next((part.device for _, part in held(fn) if isinstance(part, Tensor)), torch.device("cpu"))


def dtype_of(fn: Distribution) -> torch.dtype:
    """The floating-point type of a distribution's parameters; torch's default if it has none."""
    dtypes = (part.dtype for _, part in held(fn) if isinstance(part, Tensor))
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.get_default_dtype())


def held(fn: Distribution | Transform, around: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Attributes of a distribution, and of those and the transforms inside of it, by name.

    Args:
        fn: a distribution or a transform.
        around: identities of those that it is inside of: a transform and its inverse have each other.
    """
    for name, value in vars(fn).items():
        for part in value if isinstance(value, list) else [value]:  # of transforms
            if not isinstance(part, Distribution | Transform):
                yield name, part
            elif id(part) not in around:
                yield from held(part, around | {id(fn)})
