"""Stand-ins for values that ``TraceConjugate_ELBO`` integrates over instead of drawing them."""

from typing import Any

import torch
from pyro.distributions import Categorical
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._pytree import tree_map

from pyro_fmvae.distributions import Assignment, NaturalDirichlet, NaturalNormalGamma
from pyro_fmvae.distributions.expected_log_prob import unwrap

_CONCRETE = {"__bool__", "__int__", "__float__", "__index__", "__array__", "item", "tolist", "numpy"}


class Unsampled(Tensor):
    """A value that was never drawn. It has a shape and a dtype; whatever is computed from it is poisoned.

    A floating-point result of any operation is NaN throughout, an integer or boolean one is :class:`Unsampled` again, and
    asking for a number raises. So a use that the ELBO did not recognise cannot bias the loss: it makes it NaN.
    """

    @classmethod
    def like(cls, shape: torch.Size, dtype: torch.dtype) -> "Unsampled":
        """A placeholder of the given shape, NaN if floating."""
        fill = torch.nan if dtype.is_floating_point else 0
        return torch.full((1,), fill, dtype=dtype).expand(shape).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` on plain tensors and poison what comes out."""
        if getattr(func, "__name__", "") in _CONCRETE:
            raise RuntimeError(
                "a conjugate or enumerated site has no value here: TraceConjugate_ELBO integrates over it in closed form, so "
                "the model may not branch on it"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return tree_map(_poison, func(*args, **(kwargs or {})))


def _poison(result: Any) -> Any:
    if not isinstance(result, Tensor):
        return result
    if result.is_floating_point():
        return torch.full_like(result, torch.nan)
    return result.as_subclass(Unsampled)


class PlaceholderMessenger(Messenger):
    """Puts placeholders in the place of natural posteriors and of assignments that are not observed."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[str] = []

    def _pyro_sample(self, msg: Any) -> None:
        if msg["done"] or msg["is_observed"]:
            return
        fn = unwrap(msg["fn"])
        if isinstance(fn, NaturalNormalGamma | NaturalDirichlet):
            dtype = fn.dtype
        elif isinstance(fn, Assignment | Categorical):
            dtype = torch.int64
        else:
            return
        msg["value"] = Unsampled.like(msg["fn"].shape(), dtype)
        msg["done"] = True
        self.replaced.append(msg["name"])
