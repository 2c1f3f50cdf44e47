"""The part of an autoguide that samples what has no natural posterior, by another guide."""

from collections.abc import Callable, Iterable
from typing import Any

import pyro
import pyro.poutine as poutine
from torch import Tensor, nn

from pyro_fmvae.infer.elbo.program_modules import as_module
from pyro_fmvae.infer.elbo.structure import sample_sites
from pyro_fmvae.infer.posteriors import check_shapes


class WithFallback(nn.Module):
    """A guide that may have another one for its other sites, made after the state was loaded or before.

    Attributes:
        fallback: that guide; None if there is none yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallback: Any = None
        self._waiting: dict[str, Tensor] = {}
        self._is_set_up = False

    def make_fallback(
        self,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        model: Callable[..., Any],
        args: Iterable[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Make the guide of the other sites, with the state that was loaded for it.

        Args:
            make: makes it from a model.
            model: has no other sites than these.
            args, kwargs: of the model.

        Raises:
            ValueError: the state has another shape.
        """
        with _own_parameters():
            self.fallback = as_module("fallback", make(model))
            if self._waiting:
                with poutine.block():  # Pyro's autoguides have parameters after their first call
                    self.fallback(*args, **kwargs)
                check_shapes("fallback", self.fallback, self._waiting)
                self.fallback.load_state_dict(self._waiting)
                self._waiting = {}

    def sample_fallback(self, args: Iterable[Any], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        """Sample the fallback's sites, if there is one; their values by name."""
        if self.fallback is None:
            return {}
        run = poutine.trace(self.fallback)
        with _own_parameters():
            values = run(*args, **kwargs)
        if isinstance(values, dict):  # as of Pyro's autoguides
            return values
        return {name: site["value"] for name, site in sample_sites(run.trace).items()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Keep the state of a fallback that is not there yet; nothing is loaded if a shape differs."""
        start = f"{prefix}fallback."
        if self.fallback is None and not self._is_set_up:
            names = [name for name in state_dict if name.startswith(start)]
            self._waiting = {
                name.removeprefix(start): state_dict.pop(name).detach().clone() for name in names
            }
        if self.fallback is not None:
            check_shapes("fallback", self.fallback, state_dict, start)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({f"{prefix}fallback.{name}": value for name, value in self._waiting.items()})


def _own_parameters() -> Any:
    """Keep a Pyro module's parameters out of the global store, where a second program could find them."""
    return pyro.settings.context(module_local_params=True)
