"""Latents of single data points, whose posteriors are found anew for each batch by coordinate ascent."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.natural_distribution import event_dim_of
from pyro_fmvae.infer.elbo.frames import frames_of, subsamples
from pyro_fmvae.infer.elbo.plain import FirstValues, Undrawn, without_discrete
from pyro_fmvae.infer.elbo.recognition import Recognised
from pyro_fmvae.infer.elbo.structure import Site, sample_sites
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import TraceConjugate_ELBO


@dataclass
class LocalSite:
    """A latent of single data points.

    Attributes:
        kind: class of its natural posteriors.
        start: λ that coordinate ascent starts from, [..., P], of size 1 in the plates of points.
        events: dimensions of an event beyond those of the family.
    """

    kind: type[NaturalDistribution]
    start: Tensor
    events: int

    @classmethod
    def of(cls, site: Site, prior: NaturalDistribution, plates: Collection[str]) -> "LocalSite":
        """The site of a first run, with its prior [..., P] and the names of the plates of points."""
        start, batch = prior.natural, len(site["fn"].batch_shape)
        for frame in site["cond_indep_stack"]:
            if frame.name in plates and frame.vectorized:
                start = start.narrow(batch + frame.dim, 0, 1)
        return cls(type(prior), start.clone(), site["fn"].event_dim - event_dim_of(prior.family))

    def distribution(self, natural: Tensor) -> Any:
        """The posterior at λ [..., P], of the site's event shape."""
        posterior: Any = self.kind(natural)
        return posterior.to_event(self.events)


class LocalSites:
    """The latents of single data points in a model.

    Args:
        model: the program.
        sites: by name, in the order of the model.
        steps: passes of coordinate ascent over all of them, Hoffman et al. (2013), Stochastic variational
            inference, Figure 4.
    """

    def __init__(self, model: Callable[..., Any], sites: dict[str, LocalSite], steps: int) -> None:
        self._model = (model,)
        self._sites, self._steps = sites, steps
        self._elbo = TraceConjugate_ELBO()
        self._others: Callable[..., Any] = dict
        self._now: dict[str, tuple[Site, Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._sites)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """The whole guide, with the posteriors of the present pass."""
        self._others(*args, **kwargs)
        for name, now in self._now.items():
            self._sample(name, *now)

    def solve(
        self, others: Callable[..., dict[str, Tensor]], args: Any, kwargs: Any
    ) -> dict[str, tuple[Site, Tensor]]:
        """Site and λ [..., P] of each latent of a batch, given the posteriors of all other sites.

        Args:
            others: samples all other sites of the guide.
            args, kwargs: of the model.

        Raises:
            ValueError: the model draws the minibatch itself.
        """
        self._others = others
        with poutine.block():
            self._now = self._starts(self._sites_of(args, kwargs))
            for _ in range(self._steps):
                for name in self._sites:
                    self._ascend(name, args, kwargs)
        found, self._now = self._now, {}
        return found

    def sample(self, others: Callable[..., dict[str, Tensor]], args: Any, kwargs: Any) -> dict[str, Tensor]:
        """Sample the latents of a batch from their posteriors, as constants; see :meth:`solve`."""
        return {name: self._sample(name, *now) for name, now in self.solve(others, args, kwargs).items()}

    def posteriors(
        self, others: Callable[..., dict[str, Tensor]], args: Any, kwargs: Any
    ) -> dict[str, Distribution]:
        """The posteriors of the latents of a batch, by name; see :meth:`solve`."""
        solved = self.solve(others, args, kwargs).items()
        return {name: self._sites[name].distribution(natural) for name, (_, natural) in solved}

    def _sites_of(self, args: Any, kwargs: Any) -> dict[str, Site]:
        """The sites of this batch, from a run of the model without their values."""
        with Undrawn():
            given = without_discrete(poutine.trace(self._others).get_trace(*args, **kwargs))
        with FirstValues(), Undrawn(leaves=True):
            program = poutine.trace(poutine.replay(self._model[0], trace=given))
            trace = program.get_trace(*args, **kwargs)
        for name, site in subsamples(trace).nodes.items():
            if site["fn"].subsample_size not in (None, site["fn"].size):
                raise ValueError(
                    f"local: plate '{name}' draws its minibatch in the model; give it one, by subsample=batch"
                )
        return sample_sites(trace)

    def _starts(self, sites: dict[str, Site]) -> dict[str, tuple[Site, Tensor]]:
        starts = {}
        for name, local in self._sites.items():
            batch = sites[name]["value"].shape[: local.start.dim() - 1]
            starts[name] = sites[name], local.start.expand(*batch, -1)
        return starts

    def _ascend(self, name: str, args: Any, kwargs: Any) -> None:
        """Give a site its posterior given those of all others: a natural-gradient step of rate 1."""
        site, natural = self._now[name]
        with torch.enable_grad():
            natural = natural.detach().requires_grad_()
            self._now[name] = site, natural
            loss = self._elbo.differentiable_loss(self._model[0], self, *args, **kwargs)
            (gradient,) = torch.autograd.grad(loss, natural)
        self._now[name] = site, natural.detach() - gradient

    def _sample(self, name: str, site: Site, natural: Tensor) -> Tensor:
        frames = site["cond_indep_stack"]
        scale = prod((frame.full_size or frame.size) / frame.size for frame in frames if frame.vectorized)
        with frames_of(site), poutine.scale(scale=scale):
            return pyro.sample(name, self._sites[name].distribution(natural))


def local_sites(found: Recognised, plates: Collection[str]) -> dict[str, LocalSite]:
    """The conjugate latents in plates of points, by name.

    Raises:
        ValueError: a latent in them is not conjugate, or there is none.
    """
    inside = [
        name
        for name, site in found.sites.items()
        if any(frame.name in plates for frame in site["cond_indep_stack"])
    ]
    drawn = next((name for name in found.drawn if name in inside), None)
    if drawn is not None:
        raise ValueError(
            f"local: expected conjugate latents in the plates {list(plates)}, but '{drawn}' is none: "
            f"{found.drawn[drawn]}"
        )
    local = {
        name: LocalSite.of(found.sites[name], prior, plates)
        for name, prior in found.priors.items()
        if name in inside
    }
    if plates and not local:
        raise ValueError(
            f"local: expected conjugate latents in the plates {list(plates)}, but there is no latent"
        )
    return local


def check_plates(local: Collection[str], local_steps: int) -> None:
    """Refuse arguments of an autoguide that are no names of plates, or no number of passes."""
    if isinstance(local, str):
        raise ValueError(f"local: expected a list of names of plates, got '{local}'; write ['{local}']")
    if not local_steps > 0:
        raise ValueError(f"local_steps: expected a number > 0, got {local_steps}")
