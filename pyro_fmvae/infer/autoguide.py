"""An autoguide: natural posteriors for the conjugate sites of any model, another guide for the rest."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import MixtureComponent, NaturalDistribution
from pyro_fmvae.infer.elbo.enumerated import is_discrete, is_latent
from pyro_fmvae.infer.elbo.frames import frames_of
from pyro_fmvae.infer.elbo.kind import has_shorthand
from pyro_fmvae.infer.elbo.own_values import OwnValues
from pyro_fmvae.infer.elbo.recognition import Recognised, recognise_conjugacy
from pyro_fmvae.infer.elbo.structure import Site, sample_sites
from pyro_fmvae.infer.elbo.unique_sites import unique_sites
from pyro_fmvae.infer.fallback import WithFallback
from pyro_fmvae.infer.first_run import NO_MIXTURE, check_priors, check_whole, harmless_value
from pyro_fmvae.infer.joint_sites import JointSites, Starts
from pyro_fmvae.infer.local_search import LocalSearch, plates_of_points
from pyro_fmvae.infer.local_sites import LocalSites, local_sites
from pyro_fmvae.infer.parameters import GivenParameters, param_statements
from pyro_fmvae.infer.posteriors import (
    ConjugatePosterior,
    NaturalPosterior,
    PosteriorDict,
    natural_prior,
    random_posterior,
)
from pyro_fmvae.infer.quantiles import WithQuantiles
from pyro_fmvae.infer.starts import WithStarts


class AutoConjugate(WithQuantiles, WithStarts, WithFallback):
    """Natural posteriors for every conjugate site of a model, and another guide for its other sites.

    With a model in Pyro's own distributions it is a whole guide::

        guide = AutoConjugate(model)
        svi = ConjugateSVI(model, guide, NaturalGradient(1.0, adam), TraceConjugate_ELBO())

    The family of each posterior is found by what the model computes; ``TraceConjugate_ELBO().plan(model,
    guide, x)`` prints which. Sites without one are left to ``fallback``, discrete sites to the ELBO.

    In a model with shorthands, posteriors are made for the parents of assignments and components and for
    plain conjugate sites beside them, and ``fallback`` is not used. There, and with ``fallback=None``, call
    it first in a guide, with the arguments of the model. The guide then samples the remaining sites, and may
    enter the model's plates itself, since this creates none::

        class Guide(nn.Module):
            def __init__(self):
                super().__init__()
                self.conjugate = AutoConjugate(model)
                self.encoder = Encoder()

            def forward(self, x):
                self.conjugate(x)
                ...  # pyro.sample("z", ...)

    Parameters exist after the first call, or after :meth:`setup`. A state that was loaded before takes effect
    then.

    Args:
        model: the model, whole: posteriors are made for its conjugate sites alone.
        count: pseudo-observations behind the random initial posteriors, > 0. :meth:`seed_clusters` and
            :meth:`seed` give mixtures better starting points.
        fallback: makes the guide of all other sites from a model in which the rest is hidden: a class such as
            ``AutoNormal`` or a function; None to leave them out.
        local: names of plates of data points. Conjugate latents in them get posteriors that are found anew in
            each call, for the points of this batch, and are not kept: those of the topics of documents in
            latent Dirichlet allocation, say. :meth:`infer` has them for other points.
        local_steps: passes of coordinate ascent that find them, at most.
        local_tolerance: in nats. A point's passes end after one that moved its posteriors by less, in KL
            divergence, whatever other points are in its batch. Points of several plates end together.
        local_warm: start at the posterior of a point's last visit. It is kept for all N points, by the row
            numbers that the plate has as its ``subsample``, but not saved with the guide.
        structured: give a location and its precision a joint posterior where the model allows it, for a
            tighter bound: where the location has a prior such as ``Normal(m, (s * precision) ** -0.5)``.

    Attributes:
        fallback: that guide; None if it has nothing to do, or before the first call.
        structured: as given.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        count: float = 10.0,
        fallback: Callable[[Callable[..., Any]], Callable[..., Any]] | None = AutoNormal,
        *,
        local: Collection[str] = (),
        local_steps: int = 10,
        local_tolerance: float = 0.0,
        local_warm: bool = False,
        structured: bool = False,
    ) -> None:
        super().__init__()
        if not callable(model):
            raise ValueError(f"model: expected a function, got {type(model).__name__}; do not call it")
        if not count > 0:
            raise ValueError(f"count: expected a number > 0, got {count}")
        search = LocalSearch(plates_of_points(local), local_steps, local_tolerance, local_warm)
        self._model = (model,)  # in a tuple, so that the model does not become a submodule
        self._make_fallback = fallback
        self.count, self.structured = count, structured
        self.posteriors = PosteriorDict()
        self._sites: dict[str, Site] = {}
        self._priors: dict[str, NaturalDistribution] = {}
        self._mixtures: dict[str, tuple[str, str, torch.Size]] = {}
        self._joint = JointSites({})
        self._search = search
        self._local_sites = LocalSites(model, {}, search)

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Find the conjugate sites and make their posteriors; arguments as for the model.

        Raises:
            ValueError: the model has no conjugate site, or one inside a plate that is subsampled, or a prior
                outside the domain of its family, or a name twice.
            NotImplementedError: a parent of a recognised site has no known conjugate posterior.
        """
        once = unique_sites("model", "Give every site and every plate a name of its own")
        with once, poutine.block(), InitMessenger(harmless_value), OwnValues():
            trace = poutine.trace(self._model[0]).get_trace(*args, **kwargs)
        sites = sample_sites(trace)
        if not has_shorthand(sites.values()):
            check_priors(sites.values())
            learnt = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "param"}
            self._set_up_plain(
                recognise_conjugacy(self._model[0], args, kwargs, self.local), learnt, args, kwargs
            )
        else:
            self._set_up_shorthands(sites, args, kwargs)
        self._is_set_up = True

    def _set_up_shorthands(self, sites: dict[str, Site], args: Any, kwargs: Any) -> None:
        owners = {id(site["value"]): name for name, site in sites.items()}
        wanted = {
            owners.get(id(getattr(site["fn"], argument)))
            for site in sites.values()
            for argument in getattr(site["fn"], "parents", ())
            if argument != "assignment"
        }
        for name, site in sites.items():
            if name in wanted and not site["is_observed"]:
                check_whole(site)
                try:
                    self._priors[name] = natural_prior(site["fn"])
                except (NotImplementedError, ValueError) as error:
                    raise type(error)(f"site '{name}': {error}") from None
                self.posteriors[name] = random_posterior(site["fn"], self.count)
                self._sites[name] = {
                    "cond_indep_stack": site["cond_indep_stack"],
                    "event_dim": site["fn"].event_dim,
                }
        known = {n: s["value"] for n, s in sites.items() if n in self._sites or _is_component(s)}
        others = [n for n, s in sites.items() if is_latent(s) and not has_shorthand([s]) and n not in known]
        if others and None not in wanted:
            self._add_plain(
                recognise_conjugacy(poutine.condition(self._model[0], data=known), args, kwargs, self.local)
            )
        for name, site in sites.items():
            fn = site["fn"]
            if isinstance(fn, MixtureComponent):
                assignment = sites.get(owners.get(id(fn.assignment), ""), {}).get("fn")
                weights = owners.get(id(getattr(assignment, "weights", None)))
                components = owners.get(id(getattr(fn, fn.parents[0])))
                if weights in self._sites and components in self._sites:
                    self._mixtures[name] = weights, components, fn.event_shape
        if not self._sites:
            raise ValueError(NO_MIXTURE)

    def _add_plain(self, found: Recognised) -> None:
        starts: Starts = {}
        local = local_sites(found, self.local)
        for name, prior in found.priors.items():
            if name in local:
                continue
            starts[name] = type(prior), prior.family.scattered_start(prior.natural, self.count, None)
            self._priors[name] = prior
            site = found.sites[name]
            self._sites[name] = {
                "cond_indep_stack": site["cond_indep_stack"],
                "event_dim": site["fn"].event_dim,
            }
        self._local_sites = LocalSites(self._model[0], local, self._search)
        joint = found.joint if self.structured else {}
        self._joint = JointSites({name: pair for name, pair in joint.items() if name in starts})
        for name, start in self._joint.join(starts).items():
            self.posteriors[name] = NaturalPosterior(*start)

    def _set_up_plain(
        self, found: Recognised, learnt: dict[str, Tensor], args: Iterable[Any], kwargs: dict[str, Any]
    ) -> None:
        self._add_plain(found)
        if found.drawn and self._make_fallback is not None:
            rest = GivenParameters(learnt)(self._model[0])  # they are no part of the guide
            rest = poutine.block(rest, hide=[*found.priors, *found.discrete, *found.leaves])
            self.make_fallback(self._make_fallback, rest, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every conjugate site; arguments as for the model. Returns the values by site name."""
        if not self._is_set_up:
            self.setup(*args, **kwargs)
        param_statements("AutoConjugate", self)
        if not self._local_sites:
            return self._sample_global(*args, **kwargs)
        run = poutine.trace(self._sample_global)
        values: dict[str, Tensor] = run(*args, **kwargs)
        return values | self._local_sites.sample(self._sample_global, run.trace, args, kwargs)

    def _sample_global(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site but latents of single data points."""
        values: dict[str, Tensor] = {}
        for name, site in self._sites.items():
            with frames_of(site):
                values[name] = pyro.sample(name, self.distribution(name, values))
        return values | self.sample_fallback(args, kwargs)

    def distribution(
        self, name: str, values: Mapping[str, Tensor], posteriors: PosteriorDict | None = None
    ) -> Distribution:
        """The distribution that a conjugate site is sampled from.

        Args:
            name: of the site.
            values: of the sites before it: a location with a joint posterior depends on its precision.
            posteriors: to be used in the place of the guide's own.
        """
        posterior = self.posterior(name) if posteriors is None else posteriors[self._joint.owner(name)]
        try:
            found = self._joint.distribution(name, posterior(), values)
        except ValueError as error:
            raise type(error)(f"site '{name}': {error}") from None
        return found.to_event(self._sites[name]["event_dim"] - found.event_dim)

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the plates of data points whose latents get posteriors found anew."""
        return self._search.plates

    @property
    def natural_sites(self) -> list[str]:
        """Names of the conjugate sites, in the order of the model; none before the first call."""
        return list(self._sites)

    def infer(self, *args: Any, **kwargs: Any) -> dict[str, Distribution]:
        """The posteriors of the ``local`` latents of these points, which may be new ones, by name."""
        if not self._is_set_up:
            self.setup(*args, **kwargs)
        with torch.no_grad():
            return self._local_sites.posteriors(self._sample_global, args, kwargs)

    def marginal(self, name: str) -> Distribution:
        """A conjugate site's posterior distribution by itself: a Student-t for a location in a joint one."""
        return self._joint.marginal(name, self.posterior(name)())

    def marginals(self) -> dict[str, Distribution]:
        """:meth:`marginal` of every conjugate site, by name."""
        return {name: self.marginal(name) for name in self._sites}

    def posterior(self, name: str) -> ConjugatePosterior:
        """The posterior module of a site: ``posteriors[name]``, or, of a joint one, that of the location.

        Raises:
            KeyError: the site has no natural posterior, or the guide was not called yet.
        """
        owner = self._joint.owner(name)
        if owner not in self.posteriors:
            known = (
                f"those that have one are {list(self._sites)}" if self._is_set_up else "call the guide first"
            )
            raise KeyError(f"site '{name}' has no natural posterior: {known}")
        posterior = self.posteriors[owner]
        assert isinstance(posterior, ConjugatePosterior)
        return posterior


def _is_component(site: Site) -> bool:
    return has_shorthand([site]) and not is_discrete(site)
