"""An autoguide: natural posteriors for the conjugate sites of any model, another guide for the rest."""

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.poutine as poutine
import scipy  # type: ignore[import-untyped]
import torch
from pyro.distributions import MultivariateStudentT
from pyro.infer.autoguide import AutoGuide, AutoNormal
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal, StudentT, transform_to

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.infer.conjugate_sites import ConjugateSites, check_priors, harmless_value
from pyro_fmvae.infer.elbo.lazy import device_of
from pyro_fmvae.infer.elbo.plain import as_module
from pyro_fmvae.infer.elbo.recognition import recognise_conjugacy
from pyro_fmvae.infer.elbo.structure import (
    OwnValues,
    Site,
    are_rows,
    check_same_points,
    frames_of,
    has_shorthand,
    sample_sites,
    unique_sites,
)
from pyro_fmvae.infer.elbo.trial_runs import FirstValues, at_first_values
from pyro_fmvae.infer.local_sites import LocalSearch, LocalSites, plates_of_points
from pyro_fmvae.infer.posteriors import (
    ConjugatePosterior,
    GivenParameters,
    PosteriorDict,
    check_shapes,
    param_statements,
)
from pyro_fmvae.infer.starts import start_at_clusters, start_at_known_states, start_mixture

# The part of an autoguide that samples what has no natural posterior, by another guide.


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


# Quantiles of the single numbers of a distribution.

_DRAWS = 4096
_LOGARITHMS = 700.0  # of a positive number, at most: exp of more has no float64
_HALVINGS = 64


def quantiles_of(q: Distribution, probabilities: Sequence[float]) -> Tensor:
    """Quantiles of each number of a distribution's values: [Q, *batch shape, *event shape].

    Exact for a Normal and a Student-t, and where torch has the distribution function of a positive number;
    else those of 4,096 draws.

    Args:
        q: in natural parameters or not.
        probabilities: Q numbers.

    Raises:
        ValueError: a number that is not between 0 and 1.
    """
    if not all(0 < p < 1 for p in probabilities):
        raise ValueError(f"quantiles: expected numbers between 0 and 1, got {list(probabilities)}")
    dtype = q.mean.dtype
    if isinstance(q, NaturalDistribution):
        dtype = q.dtype
        q = q.family.member(*q.standard)
    if isinstance(q, MultivariateNormal):
        q = Normal(q.mean, q.stddev)
    elif isinstance(q, MultivariateStudentT):
        q = StudentT(q.df.unsqueeze(-1), q.loc, q.scale_tril.norm(dim=-1))
    levels = torch.tensor(probabilities, dtype=torch.float64, device=q.mean.device)
    try:
        return _by_inversion(q, levels.view(-1, *[1] * len(q.batch_shape + q.event_shape))).to(dtype)
    except NotImplementedError:
        draws = q.sample(torch.Size([_DRAWS])).sort(0).values
        return draws[(levels * _DRAWS).long()].to(dtype)


def _by_inversion(q: Distribution, levels: Tensor) -> Tensor:
    """The inverse of the distribution function, by bisection if it has to be."""
    if isinstance(q, StudentT):
        standard = scipy.special.stdtrit(q.df.double().cpu().numpy(), levels.cpu().numpy())
        return q.loc + q.scale * torch.as_tensor(standard, device=levels.device)
    try:
        return q.icdf(levels)
    except NotImplementedError:
        if getattr(q.support, "lower_bound", None) != 0 or hasattr(q.support, "upper_bound"):
            raise
    upper = torch.full((len(levels), *q.batch_shape), _LOGARITHMS, dtype=levels.dtype, device=levels.device)
    lower = -upper
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2
        below = q.cdf(middle.exp()) < levels
        lower, upper = middle.where(below, lower), upper.where(below, middle)
    return upper.exp()


@torch.no_grad()
def medians_of_guide(guide: Any, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """See :meth:`AutoConjugate.median`."""
    found = {name: values.squeeze(0) for name, values in _of_sites(guide, [0.5], args, kwargs).items()}
    if guide.fallback is None:
        return found
    if not hasattr(guide.fallback, "median"):
        raise ValueError("fallback: a guide that has no median; take one of Pyro's, such as AutoNormal")
    return {**found, **guide.fallback.median(*args, **kwargs)}


@torch.no_grad()
def quantiles_of_guide(guide: Any, levels: list[float], args: Any, kwargs: Any) -> dict[str, Tensor]:
    """See :meth:`AutoConjugate.quantiles`."""
    found = _of_sites(guide, levels, args, kwargs)
    if guide.fallback is None:
        return found
    if not hasattr(guide.fallback, "quantiles"):
        kind = type(guide.fallback).__name__
        raise ValueError(f"fallback: {kind} has no quantiles; take AutoNormal")
    return {**found, **guide.fallback.quantiles(levels, *args, **kwargs)}


def _of_sites(guide: Any, levels: list[float], args: Any, kwargs: Any) -> dict[str, Tensor]:
    """Quantiles of the conjugate sites."""
    with poutine.block():
        guide(*args, **kwargs)  # posteriors, and the sites that Pyro's autoguides know, exist after a call
    return {name: quantiles_of(q, levels) for name, q in guide.marginals().items()}


SMOOTH = "write a smooth function in its place, such as torch.sigmoid or the probability of either side"


class AutoConjugate(WithFallback):
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
    then. Until then, posteriors and draws are those of the state; they need no data.

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
        joint: sites with one Normal posterior, so that it has the exact spread where they depend on each
            other: lists of names, such as ``[["mu", "theta"]]`` of a mean and the means of groups; or "auto"
            for all that are jointly Normal given the rest. Plates, trees and chains in one site may be of
            any size, other vectors of up to 256 numbers.
        strict: make a continuous site without a conjugate posterior an error, with the reason, in place of
            giving it to ``fallback``.

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
        joint: str | Sequence[Sequence[str]] = (),
        strict: bool = False,
    ) -> None:
        super().__init__()
        if not callable(model):
            raise ValueError(f"model: expected a function, got {type(model).__name__}; do not call it")
        if not count > 0:
            raise ValueError(f"count: expected a number > 0, got {count}")
        search = LocalSearch(plates_of_points(local), local_steps, local_tolerance, local_warm)
        self._model = (model,)  # in a tuple, so that the model does not become a submodule
        self._make_fallback = fallback
        self.count, self.structured, self.strict = count, structured, strict
        self._joint = joint
        self.posteriors = PosteriorDict()
        self._known = ConjugateSites()
        self._description: dict[str, Any] = {}
        self._loaded_kinds: dict[str, Any] = {}
        self._without_data: list[Any] = []
        self._search = search
        self._local_sites = LocalSites(model, {}, search)

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Find the conjugate sites and make their posteriors; arguments as for the model.

        With a state that was loaded, arguments without the data are enough to sample the sites of that state:
        nothing is found then.

        Raises:
            ValueError: the model has no conjugate site, or one inside a plate that is subsampled, or a prior
                outside the domain of its family, or a name twice; or a site of ``fallback`` is in a plate
                whose minibatch is not given by row numbers.
            NotImplementedError: a parent of a recognised site has no known conjugate posterior.
        """
        once = unique_sites("model", "Name each site once; make a plate once, enter it twice")
        given = GivenRows()
        with once, poutine.block(), InitMessenger(harmless_value), OwnValues(), given:
            trace = at_first_values(
                lambda first: poutine.trace(first(self._model[0])).get_trace(*args, **kwargs)
            )
        sites, known = sample_sites(trace), ConjugateSites()
        latent = [name for name, site in sites.items() if not site["is_observed"]]
        learnt = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "param"}
        model = GivenParameters(learnt)(FirstValues()(self._model[0]))  # they are no part of the guide
        is_loaded = bool(self._description) and not self._is_set_up
        if is_loaded and not set(latent) <= set(self._description["latent"]):
            if self._description["drawn"] and self._make_fallback is not None:
                rest = poutine.block(model, expose=self._description["drawn"])
                self.make_fallback(self._make_fallback, rest, args, kwargs)
            self._without_data = [*args, *kwargs.values()]
            return
        drawn: list[str] = []
        options = self.count, self.structured, self.local, self._joint
        if has_shorthand(sites.values()):
            self._take(known, known.add_shorthands(sites, self._model[0], args, kwargs, *options))
        else:
            check_priors(sites.values())
            loaded = self.posteriors.is_waiting
            found = recognise_conjugacy(self._model[0], args, kwargs, self.local)
            if self.strict and found.drawn:
                names = filter(found.drawn.__contains__, found.sites)
                reasons = "; ".join(f"site '{name}' ({found.drawn[name]})" for name in names)
                raise ValueError(f"strict: expected only sites with conjugate posteriors, got {reasons}")
            self._take(known, known.add_plain(found, *options))
            for name, reason in found.flat.items():
                warnings.warn(f"site '{name}': {reason}; {SMOOTH}", stacklevel=2)
            if found.drawn and self._make_fallback is not None:
                drawn = list(found.drawn)
                rest = poutine.block(model, hide=[*found.priors, *found.discrete, *found.leaves])
                inside = [found.sites[name] for name in drawn]
                plates = PlatesOfBatch.of(self._model[0], inside, given.found.keys())
                self.make_fallback(self._make_fallback, rest, args, kwargs, plates)
            self._is_set_up = True
            if not loaded and (self._make_fallback is not None or not found.drawn):
                with poutine.block():
                    start_at_known_states(self.posteriors, self._model[0], self, trace, args, kwargs)
        self._is_set_up, self._loaded_kinds = True, {}
        described = known.described(self.posteriors.items())
        self._description = {**described, "latent": latent, "drawn": drawn}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._description:
            letters = json.dumps(self._description, default=int).encode()
            destination[f"{prefix}description"] = torch.tensor(list(letters), dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take what the state says about its posteriors, until the first call with data finds them."""
        letters = state_dict.pop(f"{prefix}description", None)
        if letters is not None and not self._is_set_up:
            try:
                self._description = json.loads(bytes(letters.tolist()))
                self._known, self._loaded_kinds = ConjugateSites.of_description(self._description)
            except (KeyError, TypeError, AttributeError, StopIteration, RecursionError, ValueError) as error:
                raise ValueError(
                    f"description: expected that of an AutoConjugate in the state: {error}"
                ) from None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _take(self, known: ConjugateSites, posteriors: Mapping[str, ConjugatePosterior]) -> None:
        self._known = known
        self._local_sites = LocalSites(self._model[0], known.local, self._search)
        for name, posterior in posteriors.items():
            self.posteriors[name] = posterior

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every conjugate site; arguments as for the model. Returns the values by site name."""
        given = [*args, *kwargs.values()]
        if not self._is_set_up and not (given and _are_same(given, self._without_data)):
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
        for name, site in self._known.sites.items():
            with frames_of(site):
                marks = {"kept": True}  # one for each point of its plates
                values[name] = pyro.sample(name, self.distribution(name, values), infer=marks)
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
        posterior = self.posterior(name) if posteriors is None else posteriors[self._known.joint.owner(name)]
        try:
            found = self._known.joint.distribution(name, posterior(), values)
        except ValueError as error:
            raise type(error)(f"site '{name}': {error}") from None
        return found.to_event(self._known.sites[name]["event_dim"] - found.event_dim)

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the plates of data points whose latents get posteriors found anew."""
        return self._search.plates

    @property
    def natural_sites(self) -> list[str]:
        """Names of the conjugate sites, in the order of the model; none before the first call."""
        return list(self._known.sites)

    def infer(self, *args: Any, **kwargs: Any) -> dict[str, Distribution]:
        """The posteriors of the ``local`` latents of these points, which may be new ones, by name."""
        if not self._is_set_up:
            self.setup(*args, **kwargs)
        with torch.no_grad():
            return self._local_sites.posteriors(self._sample_global, args, kwargs)

    def marginal(self, name: str) -> Distribution:
        """A conjugate site's posterior distribution by itself: a Student-t for a location in a joint one."""
        return self._known.joint.marginal(name, self.posterior(name)())

    def marginals(self) -> dict[str, Distribution]:
        """:meth:`marginal` of every conjugate site, by name."""
        return {name: self.marginal(name) for name in self._known.sites}

    def posterior(self, name: str) -> ConjugatePosterior:
        """The posterior module of a site: ``posteriors[name]``, or, of a joint one, that of the location.

        Raises:
            KeyError: the site has no natural posterior, or the guide was neither called nor loaded yet.
        """
        owner = self._known.joint.owner(name)
        if owner in self._loaded_kinds and owner not in self.posteriors:
            return self.posteriors.waiting(owner, *self._loaded_kinds[owner])
        if owner not in self.posteriors:
            known = (
                f"those that have one are {list(self._known.sites)}"
                if self._is_set_up
                else "call the guide first"
            )
            raise KeyError(f"site '{name}' has no natural posterior: {known}")
        posterior = self.posteriors[owner]
        assert isinstance(posterior, ConjugatePosterior)
        return posterior

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior medians by site, of the site's shape; arguments as for the model.

        They are of each number by itself: those of probabilities need not add up to 1. Those of Normal, Gamma
        and inverse Gamma posteriors are exact, and of locations with a joint posterior; all others are of
        4,096 draws. Sites of ``fallback`` have the medians that it gives.

        Raises:
            ValueError: a ``fallback`` without medians, such as a function.
        """
        return medians_of_guide(self, args, kwargs)

    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior quantiles by site, [Q, *shape of the site], as exact as those of :meth:`median`.

        Args:
            quantiles: Q numbers in (0, 1).
            args, kwargs: as for the model.

        Raises:
            ValueError: a number outside (0, 1), or a ``fallback`` without quantiles, such as ``AutoDelta``.
        """
        return quantiles_of_guide(self, torch.as_tensor(quantiles).tolist(), args, kwargs)

    def seed(
        self, name: str, loc: Tensor, scale: Tensor, generator: torch.Generator, num_data: int | None = None
    ) -> None:
        """Start the components of a mixture afresh where encodings cluster: k-means++, then the exact update.

        The priors are the model's at the time of :meth:`setup`, or of the guide's first run.

        Args:
            name: of the site of the components' points, a ``Component`` say.
            loc, scale: mean and standard deviation of these points, ``[..., M, *event_shape]``, with the
                mixture's batch shape in front; the scale of observed points is 0.
            generator: source of the random numbers, on the CPU.
            num_data: N, the data points that the M stand for; M if None.

        Raises:
            ValueError: there is no such mixture, it shares its parents with others, or has another shape;
                :meth:`setup` did not run yet; or a posterior was replaced by another kind.
        """
        start_mixture(name, self._known, self.posterior, loc, scale, generator, num_data)

    def seed_clusters(
        self,
        assignment: str,
        points: Tensor | str,
        *args: Any,
        generator: torch.Generator | None = None,
        guide: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Start all posteriors afresh where points cluster: k-means++, then exact updates given the clusters.

        It works for any family. The clusters take the place of the assignment's probabilities, and every
        posterior becomes the conjugate one given these, in ten steps; posteriors that depend on each other
        move by turns. A model on a minibatch counts it for all of its data, as in a step. The remaining
        parameters of the guide stay as they are.

        The states of a ``HiddenMarkov`` are started in the same way, with each step as a point. Steps whose
        states are known start the first clusters, as in the guide's first call.

        Args:
            assignment: discrete site that chooses a point's component, or the site of a ``HiddenMarkov``. Its
                points are ``[*batch shape, T, *shape of a point]``.
            points: to be clustered, ``[*batch shape of the assignment, *shape of a point]``, or the name of
                the observed site whose data these are. Give encodings where the components are of a latent
                site. k-means weighs all coordinates alike: scale them first where their units differ.
            args, kwargs: as for the model, with the rows of ``points``.
            generator: source of k-means's random numbers, on the CPU; torch's own if None.
            guide: the whole guide, where this one is a part of it.

        Raises:
            ValueError: there is no such site, or it belongs to a chain or tree of discrete sites; points of
                another shape, or not finite; a whole guide without this one in it; or a posterior was
                replaced by another than a natural one.
        """
        whole = self if guide is None else guide
        start_at_clusters(self.posteriors, self._model[0], whole, assignment, points, args, kwargs, generator)


def _are_same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(a is b for a, b in zip(values, others, strict=True))
