"""Stand-ins for values that ``TraceConjugate_ELBO`` integrates over instead of drawing them."""

from functools import partial
from typing import Any

import torch
from pyro.distributions import Categorical
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pyro_fmvae.distributions import Assignment, NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.operations import NUMBER_WANTED

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device)
_SHAPE = {*(getter.__get__ for getter in _GETTERS), Tensor.dim, Tensor.size}


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
            if func in _SHAPE:
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


class PlaceholderMessenger(Messenger):
    """Replaces draws from natural posteriors, and from discrete sites that are not observed, by placeholders.

    Raises:
        ValueError: a child of an assignment would have to be drawn from the model.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if msg["done"] or msg["is_observed"]:
            return
        fn = unwrap(msg["fn"])
        if isinstance(fn, NaturalDistribution):
            dtype = fn.dtype
        elif isinstance(fn, Assignment | Categorical):
            dtype = torch.int64
        elif isinstance(fn, torch.distributions.Bernoulli) or hasattr(fn, "superposed_variance"):
            dtype = fn.mean.dtype
        elif is_imputed(msg):
            dtype = torch.get_default_dtype()
        elif hasattr(fn, "parents"):
            raise ValueError(missing_in_guide(msg["name"]))
        else:
            return
        msg["value"] = Unsampled.like(msg["fn"].shape(), dtype, msg["name"])
        msg["done"] = True


def is_imputed(site: Any) -> bool:
    """True for what ``obs_mask=`` leaves unobserved at a site with recognised parents."""
    return hasattr(unwrap(site["fn"]), "parents") and site["name"].endswith("_unobserved")


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
