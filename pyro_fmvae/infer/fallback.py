"""The part of an autoguide that samples what has no natural posterior, by another guide."""

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import transform_to

from pyro_fmvae.infer.elbo.density import device_of
from pyro_fmvae.infer.elbo.frames import are_rows, check_same_points
from pyro_fmvae.infer.elbo.program_modules import as_module
from pyro_fmvae.infer.elbo.structure import Site, sample_sites
from pyro_fmvae.infer.elbo.trial_runs import FirstValues
from pyro_fmvae.infer.posteriors import check_shapes


class GivenRows(Messenger):
    """Notes what plates are given as ``subsample=``.

    Args:
        wanted: names of plates; the run ends when all of them are there. None: it does not.

    Attributes:
        found: by plate.
    """

    def __init__(self, wanted: Set[str] | None = None) -> None:
        super().__init__()
        self._wanted, self.found = wanted, dict[str, Any]()

    def _pyro_sample(self, msg: Any) -> None:
        if type(msg["fn"]).__name__ == "_Subsample" and msg["value"] is not None:
            self.found[msg["name"]] = msg["value"]
        if self._wanted is not None and self._wanted <= self.found.keys():
            raise _AllFoundError


class _AllFoundError(Exception):
    """Ends a run."""


@dataclass
class PlatesOfBatch:
    """The plates of the model's own batch, for a guide that has parameters for each of N points.

    Pyro's autoguides draw rows of their own otherwise, whatever the model has as ``subsample=``.

    Attributes:
        model: the model.
        sites: name of a plate that the model gives its rows → a site in it.
        whole: see :func:`check_same_points`.
    """

    model: Callable[..., Any]
    sites: Mapping[str, Site]
    whole: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Callable[..., Any], sites: Iterable[Site], given: Set[str]) -> "PlatesOfBatch | None":
        """Return the plates of sites that are given rows; None if there are none."""
        frames = [(frame, site) for site in sites for frame in site["cond_indep_stack"]]
        inside = {frame.name: site for frame, site in frames if frame.vectorized and frame.name in given}
        return cls(model, inside) if inside else None

    def __call__(self, *args: Any, **kwargs: Any) -> list[pyro.plate]:
        """The plates; those of all data in order are left to the guide.

        Raises:
            ValueError: a batch that is not given by row numbers, or all points in another order.
        """
        given = GivenRows(self.sites.keys())
        values = InitMessenger(_zero), FirstValues()
        with suppress(_AllFoundError), torch.no_grad(), poutine.block(), values[0], values[1], given:
            self.model(*args, **kwargs)
        plates = []
        for name, site in self.sites.items():
            (frame,) = (frame for frame in site["cond_indep_stack"] if frame.name == name)
            size, rows = frame.full_size or frame.size, given.found.get(name)
            if rows is None:
                continue
            if are_rows(rows, size):
                plates.append(_PlateOfRows(name, size, subsample=rows, dim=frame.dim))
            elif len(rows) != size:
                raise ValueError(
                    f"site '{site['name']}': plate '{name}' has data as its subsample, so that the guide, "
                    f"which has parameters for each of {size} points, can't tell which of them these are; "
                    f"give it row numbers, subsample=rows, or, if '{site['name']}' is conjugate, write "
                    f"AutoConjugate(model, local=['{name}'])"
                )
            else:
                check_same_points(site["name"], name, rows, self.whole)
        return plates


def _zero(site: Site) -> Tensor:
    """A value in the support of a site: that of 0 on the real line that it is mapped from."""
    fn = site["fn"]
    transform = transform_to(fn.support)
    value: Tensor = transform(torch.zeros(transform.inverse_shape(fn.shape()), device=device_of(fn)))
    return value


class _PlateOfRows(pyro.plate):
    """A plate that takes parameters in the order of its rows, also where these are all rows."""

    def _postprocess_message(self, msg: Any) -> None:
        super()._postprocess_message(msg)
        events = msg["kwargs"].get("event_dim")
        if msg["type"] == "param" and events is not None and self.subsample_size == self.size:
            msg["value"] = msg["value"].index_select(self.dim - events, self._indices)


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
        plates: Callable[..., list[pyro.plate]] | None = None,
    ) -> None:
        """Make the guide of the other sites, with the state that was loaded for it.

        Args:
            make: makes it from a model.
            model: has no other sites than these.
            args, kwargs: of the model.
            plates: makes the plates of a batch from the arguments of the model; see :class:`PlatesOfBatch`.

        Raises:
            ValueError: the state has another shape.
        """
        with _own_parameters():
            if self.fallback is None:
                self.fallback = as_module("fallback", make(model))
            if isinstance(self.fallback, AutoGuide) and self.fallback.create_plates is None:
                self.fallback.create_plates = plates
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
