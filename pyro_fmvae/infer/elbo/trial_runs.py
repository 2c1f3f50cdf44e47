"""Runs of a model with numbers at all of its sites: what a run without them does not show.

A discrete site is summed out for each point of its plates by itself: its values lie in a dimension of their
own. A model that computes across points, as by ``z.sum()``, or that asks for a value, cannot be run in this
way. So the first call of a structure also runs the model on a few points, with a real value for each: the
log-densities must equal those of the enumerated run at these values. The same run finds drawn sites whose
gradient is stopped by a step function.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any
from weakref import WeakKeyDictionary

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import transform_to
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_fmvae.infer.elbo.lazy import (
    CONSTANTS,
    NUMBER_WANTED,
    Lazy,
    Sampled,
    asked_by_a_distribution,
    device_of,
    dtype_of,
    in_words,
    shapes_of,
    uncompiled,
)
from pyro_fmvae.infer.elbo.structure import (
    Enumerated,
    Site,
    enum_dim,
    is_discrete,
    is_latent,
    sample_sites,
    unmasked,
    values_of,
)

_FREE_SCALE = 0.1  # of random values of sites, on the real line that their supports are mapped from
_FEW = (
    11,
    5,
)  # points that are tried of one plate, of each of several: primes, so that few shifts are the whole
_MOST = 1000  # points that are tried where the arguments can't be cut
_CLOSE = 1e-3  # an enumerated run and others round differently
_SAME = 32  # units in the last place by which runs of the same shapes may differ
_STEPS = {
    "round",
    "floor",
    "ceil",
    "trunc",
    "fix",
    "sign",
    "sgn",
    "heaviside",
    "floor_divide",
    "floordiv",
    "rfloordiv",
}
"""Functions whose slope is 0 in torch. Others without one, such as comparisons, need no gradients."""


class FirstValues(Messenger):
    """Gives discrete sites the first value of their support, one for all points of their plates.

    What a model picks by it, such as ``precisions[z]``, is then of one point, too. Shorthands get one for
    each point.

    Args:
        each: whether all sites get one for each point.
    """

    def __init__(self, each: bool = False) -> None:
        super().__init__()
        self._each = each

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["done"] and is_discrete(msg) and msg["fn"].has_enumerate_support:
            first = msg["fn"].enumerate_support(expand=False)[0]
            each = self._each or hasattr(msg["fn"], "parents")
            msg["value"], msg["done"] = first.expand(msg["fn"].shape()) if each else first, True


def at_first_values(run: Callable[[FirstValues], Trace]) -> Trace:
    """A trace at the first values of discrete sites, also of a model that needs one for each point.

    Args:
        run: makes the trace under a handler.
    """
    try:
        return run(FirstValues())
    except Exception:  # an index of points, say, which a trial refuses by name
        return run(FirstValues(each=True))


class GivenValues(Messenger):
    """Gives latent sites of continuous values: those in a table, and harmless random ones to all others.

    Args:
        values: by name. Sites in ``lazy`` get values that are not there.
        lazy: names of sites.
    """

    def __init__(self, values: Mapping[str, Tensor], lazy: Mapping[str, Site] | None = None) -> None:
        super().__init__()
        self._values, self._lazy = values, lazy or {}

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if msg["done"] or not is_latent(msg) or is_discrete(msg):
            return
        if name in self._lazy:
            site = self._lazy[name]
            value = site["value"]
            origin = Sampled(name, site["fn"].support)
            msg["value"] = Lazy.make(value.shape, value.dtype, value.device, origin)
        elif name in self._values:
            msg["value"] = self._values[name]
        else:
            transform = transform_to(msg["fn"].support)
            free = torch.randn(transform.inverse_shape(msg["fn"].shape()), dtype=dtype_of(msg["fn"]))
            msg["value"] = transform(_FREE_SCALE * free.to(device_of(msg["fn"])))
        msg["done"] = True


class _EachItsOwn(Messenger):
    """Gives the points of discrete sites values of their own, and notes their numbers in the support.

    Args:
        number: gives numbers of values for counts of points [plates] and the number of values, K.
    """

    def __init__(self, number: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self._number = number
        self.numbers: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["done"] or not is_discrete(msg):
            return
        fn = msg["fn"]
        support = fn.enumerate_support(expand=False)
        count = torch.zeros(fn.batch_shape, dtype=torch.int64, device=support.device)
        for weight, size in enumerate(reversed(fn.batch_shape), 1):
            steps = torch.arange(size, device=support.device)
            count = count + weight * steps.view(-1, *[1] * (weight - 1))
        numbers = self._number(count, len(support))
        self.numbers[msg["name"]] = numbers
        msg["value"] = support.reshape(len(support), *fn.event_shape)[numbers]
        msg["done"] = True


_Numbers = Callable[[Tensor, int], Tensor]
_VALUES: list[_Numbers] = [
    lambda count, size: (-1 - count) % size,
    lambda count, size: torch.zeros_like(count),
    lambda count, size: torch.full_like(count, size - 1),
]
"""Values in no order, and the first and the last for all points."""


def _but_the_first(numbers: _Numbers) -> _Numbers:
    """Give the same values, but the next one for the first point, where there are plates."""
    return lambda count, size: (numbers(count, size) + (count == 0) * bool(count.dim())) % size


class _Followed(TorchFunctionMode):
    """Follows what is computed from the values of sites.

    Args:
        discrete: names of the sites that nothing may ask for their numbers.

    Attributes:
        asked: name of a site → the function that asked for a number of it, in words.
        flat: name of a site → a function of it without slopes, in words.
        lost: name of an enumerated site → a function whose result has fewer numbers than the site has values.
        failed: the sites whose values the function that failed was given.
    """

    def __init__(self, discrete: Iterable[str]) -> None:
        super().__init__()
        self._discrete = frozenset(discrete)
        self._sites: Any = WeakTensorKeyDictionary()
        self.asked: dict[str, str] = {}
        self.flat: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self.failed: frozenset[str] = frozenset()

    def sites(self, *values: Any) -> frozenset[str]:
        """Names of the sites that values were computed from."""
        known = (self._sites.get(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
        return frozenset().union(*filter(None, known))

    def note(self, value: Tensor, names: frozenset[str]) -> None:
        self._sites[value] = self._sites.get(value, frozenset()) | names

    def note_site(self, site: Site) -> None:
        """Note the value of a site, and how many values it is enumerated over."""
        self.note(site["value"], frozenset([site["name"]]))
        if enum_dim(site) is not None:
            self._counts[site["name"]] = values_of(site)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = self.sites(args, kwargs)
        if not names:
            return func(*args, **kwargs)
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in CONSTANTS:
            return func(*args, **kwargs)
        checked = asked_by_a_distribution()
        if name in NUMBER_WANTED and not checked:
            self.asked.update((each, in_words(name)) for each in names if each not in self.asked)
            if names & self._discrete:
                raise _AskedError
        sloped = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
        try:
            result = func(*args, **kwargs)
        except Exception:
            self.failed = names
            raise
        changed = args[:1] if name == "__setitem__" or (name.endswith("_") and name[-2:] != "__") else ()
        results = [x for x in tree_leaves((result, changed)) if isinstance(x, Tensor)]
        for each in results:
            self.note(each, names)
            if not checked:
                lost = (site for site in names if each.numel() < self._counts.get(site, 0))
                self.lost.update((site, in_words(name)) for site in lost if site not in self.lost)
        flat = name.strip("_") in _STEPS or not any(each.requires_grad for each in results)
        if results and flat and not checked:
            for site in self.sites(sloped):
                self.flat.setdefault(site, in_words(name))
        return result


class _AskedError(Exception):
    """A program asked for a number of a site that is summed out."""


class NotByPointError(ValueError):
    """A model's discrete sites can't be summed out point by point.

    The message has one line: Pyro adds the shapes of a trace to others, which say nothing here.
    """

    def __str__(self) -> str:
        return super().__str__().partition("\n")[0]


class _Noted(Messenger):
    """Notes the values of latent sites."""

    def __init__(self, uses: _Followed) -> None:
        super().__init__()
        self._uses = uses

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_latent(msg):
            self._uses.note_site(msg)


class _Trial:
    """A program that runs with numbers at all of its sites.

    Args:
        model, args, kwargs: the program.
        sites: of a run of it, by name.
    """

    def __init__(self, model: Any, args: Any, kwargs: Any, sites: Mapping[str, Site]) -> None:
        self._program = model, args, kwargs
        self._sites = sites
        self.discrete = [name for name, site in sites.items() if is_discrete(site)]
        frames = [frame for site in sites.values() for frame in site["cond_indep_stack"] if frame.vectorized]
        self.plates = max((-frame.dim for frame in frames), default=0)

    def on_few_points(self, look: Callable[["_Trial", dict[str, Tensor]], Any]) -> Any:
        """The result of a look at a trial and values of its continuous sites; None if it does not run.

        The trial is of few points where the arguments can be cut, and of all points elsewhere.
        """
        with torch.random.fork_rng(devices=[]), uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sizes in (self._large(), set[int]()):
                try:
                    trial = self._cut(sizes)
                    return look(trial, trial.values)
                except NotByPointError:
                    raise
                except Exception:  # the run that is not tried has the message
                    continue
        return None

    def _large(self) -> set[int]:
        """Sizes of the plates that are cut: those of discrete sites, or else those of data."""
        owners = [self._sites[name] for name in self.discrete] or [
            site for site in self._sites.values() if site["is_observed"]
        ]
        frames = (frame for site in owners for frame in site["cond_indep_stack"] if frame.vectorized)
        return {frame.size for frame in frames if frame.size > max(_FEW)}

    def _cut(self, sizes: set[int]) -> "_Trial":
        """The trial with arguments of few points in the place of some sizes.

        Raises:
            ValueError: plates do not have the sizes of arguments.
        """
        most = _FEW[len(sizes) > 1]

        def few(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value[tuple(slice(most if size in sizes else None) for size in value.shape)]

        model, args, kwargs = self._program
        cut = _Trial(model, tree_map(few, args), tree_map(few, kwargs), self._sites)
        cut._sites = sample_sites(at_first_values(lambda first: cut.trace({}, first)))
        frames = (frame for site in cut._sites.values() for frame in site["cond_indep_stack"])
        if any(frame.vectorized and frame.size in sizes for frame in frames):
            raise ValueError("plates do not have the sizes of arguments")
        return cut

    @property
    def values(self) -> dict[str, Tensor]:
        """Values of the continuous sites, random ones."""
        latent = {name: site for name, site in self._sites.items() if is_latent(site)}
        return {name: site["value"] for name, site in latent.items() if not is_discrete(site)}

    def beside_the_first(self, name: str, density: Tensor) -> Tensor:
        """Where the log-densities of a site are in all plates of a discrete site, at their first points.

        Args:
            name: of the site.
            density: its log-densities [plates].

        Returns:
            Booleans of that shape.
        """
        plates = {frame.name for frame in self._sites[name]["cond_indep_stack"]}
        first = torch.zeros(density.shape, dtype=torch.bool, device=density.device)
        for each in self.discrete:
            frames = [frame for frame in self._sites[each]["cond_indep_stack"] if frame.vectorized]
            if not frames or not plates.issuperset(frame.name for frame in frames):
                continue
            index = [slice(None)] * density.dim()
            for frame in frames:
                index[frame.dim] = slice(1)
            first[tuple(index)] = True
        return first

    @property
    def points(self) -> int:
        """The most points that a discrete site has."""
        return max(self._sites[name]["fn"].batch_shape.numel() for name in self.discrete)

    def trace(self, values: Mapping[str, Tensor], *handlers: Any) -> Trace:
        """A run with values of continuous sites, random ones where there are none."""
        model, args, kwargs = self._program
        with poutine.block(), GivenValues(values), ExitStack() as stack:
            for handler in handlers:
                stack.enter_context(handler)
            return poutine.trace(model).get_trace(*args, **kwargs)

    def at(self, numbers: "_EachItsOwn", values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log-densities [plates] of all sites, at values of discrete sites too."""
        sites = sample_sites(self.trace(values, numbers))
        return {name: _density(site) for name, site in sites.items()}

    def enumerated(self, values: Mapping[str, Tensor], uses: _Followed) -> dict[str, Site]:
        enumeration = EnumMessenger(first_available_dim=-1 - self.plates)
        return sample_sites(self.trace(values, enumeration, Enumerated(), _Noted(uses), uses))


def _tables(sites: Mapping[str, Site], uses: _Followed) -> dict[str, Tensor]:
    """Log-densities [enumerated dimensions..., plates] of the sites of an enumerated run."""
    with uses:
        return {name: _density(site) for name, site in sites.items()}


_checked: Any = WeakKeyDictionary()
"""Model → the shapes of arguments that it was checked with, by its guide for instance."""


def check_discrete(model: Any, args: Any, kwargs: Any, sites: Mapping[str, Site]) -> None:
    """Refuse a model whose discrete sites can't be summed out point by point.

    Args:
        model, args, kwargs: the program.
        sites: of a run of it, by name.

    Raises:
        NotByPointError: a site depends on values of a discrete site at other points, or at points of another
            plate, or Python asks for them. The message names the site.
    """
    trial = _Trial(model, args, kwargs, sites)
    if not trial.discrete:
        return
    try:
        checked = _checked.setdefault(model, set())
    except TypeError:  # a model without a hash
        checked = set()
    structure = torch.get_default_dtype(), shapes_of((args, kwargs))
    if structure not in checked:
        with torch.no_grad():
            trial.on_few_points(_check)
        checked.add(structure)


def _check(trial: _Trial, values: dict[str, Tensor]) -> None:
    uses = _Followed(trial.discrete)
    try:
        sites = trial.enumerated(values, uses)
    except _AskedError:
        name = next(name for name in trial.discrete if name in uses.asked)
        raise NotByPointError(
            f"site '{name}': the model asks for its value (for {uses.asked[name]}), but it is summed out, "
            "with all of its values in one tensor; compute with the tensor, as in locs[z] or "
            "torch.where(z == 1, a, b)"
        ) from None
    except Exception as error:
        trial.at(_EachItsOwn(_VALUES[-1]), values)  # if this fails, too, enumeration is not to blame
        name = next((name for name in trial.discrete if name in uses.failed), trial.discrete[-1])
        raise NotByPointError(
            f"site '{name}': it is summed out, with its values in a dimension on the left of its plates, and "
            f"the model fails there ({str(error).splitlines()[0]}); {_ALONE}"
        ) from None
    tables = _tables(sites, uses)
    ids = {
        site["infer"]["_dim_to_id"][dim]: name
        for name, site in sites.items()
        if (dim := enum_dim(site)) is not None
    }
    owners = {}
    for name, table in tables.items():
        known = sites[name]["infer"]["_dim_to_id"]
        shape = sites[name]["fn"].batch_shape
        strange = [dim for dim in range(-len(shape), -trial.plates) if shape[dim] > 1 and dim not in known]
        for each in uses.sites(table) & set(trial.discrete) if strange else ():
            raise NotByPointError(
                f"site '{each}': it is summed out, with its values in dimension {enum_dim(sites[each])}, "
                f"left of all plates, but '{name}' has the batch shape {tuple(shape)}; compute with {each} "
                f"itself, as in torch.arange(size) < {each}, not with {each}[..., None]"
            )
        dims = [dim for dim in range(-table.dim(), -trial.plates) if table.shape[dim] > 1]
        owners[name] = {dim: ids[known[dim]] for dim in dims}
        for owner in owners[name].values():
            _check_plates(sites[name], sites[owner])
    for number in _VALUES if trial.points <= _MOST else ():
        own, other = _EachItsOwn(number), _EachItsOwn(_but_the_first(number))
        found, changed = trial.at(own, values), trial.at(other, values)
        for name, table in tables.items():
            wanted = _at(table, {dim: own.numbers[each] for dim, each in owners[name].items()}, trial.plates)
            rest = ~trial.beside_the_first(name, found[name])
            if _is_close(wanted, found[name]) and _is_same(changed[name][rest], found[name][rest]):
                continue
            again = (trial.at(own, values)[name] for _ in range(3))
            if all(_is_same(each, found[name]) for each in again):  # else the model itself draws numbers
                used = uses.sites(table) & set(trial.discrete)
                _mixed(name, [*sorted(used - set(owners[name].values())), *sorted(used), *trial.discrete])
    for name, function in uses.lost.items():
        raise NotByPointError(
            f"site '{name}': the model computes across its values (by {function}), but it is summed out for "
            f"each point by itself; {_ALONE}"
        )


_ALONE = (
    "compute with the value of each point alone, as in locs[z], or draw them one by one, by ConjugateGibbs"
)


def _mixed(name: str, discrete: list[str]) -> None:
    raise NotByPointError(
        f"site '{discrete[0]}': '{name}' depends on its values at several points together, as by a sum, a "
        "mean, a sort or a roll over its plate, but it is summed out for each point by itself; "
        f"{_ALONE}"
    )


def _check_plates(site: Site, owner: Site) -> None:
    """Refuse a site that lies outside of a plate of a discrete site that it depends on."""
    inside = {frame.name: frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    for frame in owner["cond_indep_stack"]:
        if not frame.vectorized or frame.name in inside:
            continue
        other = next((name for name, dim in inside.items() if dim == frame.dim), None)
        where = f"in plate '{other}'" if other else "outside of it"
        raise NotByPointError(
            f"site '{site['name']}': it depends on the discrete site '{owner['name']}' in plate "
            f"'{frame.name}', but lies {where}; make the plate once, as data = pyro.plate('{frame.name}', "
            "size), and enter it twice"
        )


def _at(table: Tensor, numbers: Mapping[int, Tensor], plates: int) -> Tensor:
    """A table [enumerated dimensions..., plates] at the numbers of the values of each point.

    Args:
        table: of log-densities.
        numbers: of values of the site that has a dimension, by that dimension.
        plates: the number of dimensions that plates take.
    """
    index = []
    for dim in range(-table.dim(), 0):
        if dim >= -plates:
            index.append(torch.arange(table.shape[dim], device=table.device).view(-1, *[1] * (-dim - 1)))
        else:
            index.append(numbers.get(dim, torch.zeros((), dtype=torch.int64, device=table.device)))
    return table[tuple(index)] if index else table


def _is_close(a: Tensor, b: Tensor) -> bool:
    try:
        a, b = torch.broadcast_tensors(a, b)
        return torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
    except RuntimeError:  # of other shapes
        return False


def _is_same(a: Tensor, b: Tensor) -> bool:
    """True if numbers of one shape are the same up to rounding."""
    close = _SAME * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=close, atol=close, equal_nan=True)


def without_slopes(
    model: Any, args: Any, kwargs: Any, sites: Mapping[str, Site], drawn: Collection[str]
) -> dict[str, str]:
    """Sites that are drawn, but whose draws have no gradient from a site that depends on them.

    Args:
        model, args, kwargs: the program.
        sites: of a run of it, by name.
        drawn: names of sites of continuous values.

    Returns:
        Name of a site → why it gets no gradient, in words.
    """
    if not drawn:
        return {}

    def look(trial: _Trial, values: dict[str, Tensor]) -> dict[str, str]:
        leaves = {name: values[name].detach().clone().requires_grad_() for name in drawn}
        uses, reached, found = _Followed(()), set(), dict[str, str]()
        sites = trial.enumerated({**values, **leaves}, uses)
        for name, table in _tables(sites, uses).items():
            for each in (uses.sites(table) & leaves.keys()) - {name}:
                slope = None
                if table.requires_grad:
                    total = table.sum()
                    with suppress(RuntimeError):  # torch has no derivative of heaviside
                        slope = torch.autograd.grad(
                            total, leaves[each], allow_unused=True, retain_graph=True
                        )[0]
                if slope is not None and slope.any():
                    reached.add(each)
                elif each in uses.flat:
                    found.setdefault(
                        each, f"{uses.flat[each]} passes no gradient on, so '{name}' does not move it"
                    )
        for each, function in uses.asked.items():
            if each in leaves.keys() - reached:
                found.setdefault(
                    each, f"{function} passes no gradient on, so nothing that depends on it moves it"
                )
        return found

    with torch.enable_grad():
        found: dict[str, str] | None = _Trial(model, args, kwargs, sites).on_few_points(look)
    return found or {}


def _density(site: Site) -> Tensor:
    """The log-density of a site, 0 where it is masked out."""
    value = unmasked(site) if site["is_observed"] else site["value"]
    density, mask = site["fn"].log_prob(value), site["mask"]
    return density if mask is None else torch.where(torch.as_tensor(mask), density, 0.0)
