"""Programs of this library's shorthands: their structure, their tables and their terms."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import Categorical
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot
from torch.nn.modules.module import register_module_parameter_registration_hook

from pyro_fmvae.distributions import (
    Assignment,
    Label,
    MixtureComponent,
    NaturalDistribution,
    expected_log_prob,
)
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.infer.elbo.distribution_checks import (
    check_components,
    check_distribution,
    check_label,
    check_masks,
    check_observed,
    check_shapes,
    take_masks,
    watch_missing,
)
from pyro_fmvae.infer.elbo.lazy import Lazy, Unsampled, held, missing_in_guide, sites_of
from pyro_fmvae.infer.elbo.plain import (
    PlainProgram,
    Posterior,
    expectation,
    plates_of,
    run_plain,
    take_at_draws,
    trace_guide,
    with_gradient_divided,
)
from pyro_fmvae.infer.elbo.structure import (
    Child,
    MixtureSites,
    OwnValues,
    Role,
    Site,
    Structure,
    Term,
    auxiliary_sites,
    is_discrete,
    sample_sites,
    total,
)

# Constants among the parents of a program: what ``poutine.do``, a ``pyro.param`` or a plain tensor sets.
#
# A parent that no site returned, but that has numbers, is a point mass. Each gets a node in the model's trace
# under the name of the child and the argument, so that it is looked up like any other parent.


def add_constants(model: Trace, sites: dict[str, Site], owners: dict[int, str]) -> None:
    """Give the constant parents of assignments and of components nodes in the model's trace.

    Args:
        model: the trace of the model.
        sites: its sample sites.
        owners: name of the site of a value, by the identity of the value; the constants' are added.
    """
    for name, site in sites.items():
        fn = site["fn"]
        dims = {"weights": 1} if isinstance(fn, Assignment) else {}
        if isinstance(fn, MixtureComponent):
            dims = {fn.parents[0]: fn.parameter_dim}
            if _is_constant(fn.assignment, owners):
                _add_assignment(model, f"{name}.assignment", site, owners)
        for argument, event_dim in dims.items():
            value = getattr(fn, argument)
            if _is_constant(value, owners):
                owners[id(value)] = _add(model, f"{name}.{argument}", value, event_dim)


def _is_constant(value: Tensor, owners: dict[int, str]) -> bool:
    return id(value) not in owners and not isinstance(value, Unsampled)


def _add(model: Trace, name: str, value: Tensor, event_dim: int) -> str:
    fn, plain = dist.Delta(value, event_dim=event_dim), {"scale": 1.0, "mask": None, "cond_indep_stack": ()}
    model.add_node(name, name=name, type="constant", fn=fn, value=value, is_observed=True, infer={}, **plain)
    return name


def _add_assignment(model: Trace, name: str, site: Site, owners: dict[int, str]) -> None:
    """An assignment to the components that are given, with a probability of 1 for each."""
    component = site["fn"]
    if component.assignment.is_floating_point():
        raise ValueError(f"site '{site['name']}': expected integers as its assignment, got floating point")
    parameter = getattr(component, component.parents[0])
    weights = torch.ones(parameter.shape[-1 - component.parameter_dim], device=parameter.device)
    owners[id(weights)] = _add(model, f"{name}.weights", weights, 1)
    fn, value = Assignment(weights).expand(component.batch_shape), component.assignment
    owners[id(value)] = name
    like = {key: site[key] for key in ("scale", "mask", "cond_indep_stack")}
    model.add_node(name, name=name, type="constant", fn=fn, value=value, is_observed=False, infer={}, **like)


# The structure of a program of shorthands, read off its traces.
#
# Recognition goes by the class of the distribution at a site and by the identity of the tensors that it was
# given: ``replay`` hands the guide's very tensors to the model, so a parent that *is* a site's value belongs
# to that site, and a parent that was derived from one does not. Under
# :class:`pyro_fmvae.infer.elbo.structure.OwnValues` that holds of observed values, too.


def recognise(model: Trace, guide: Trace) -> Structure:
    """Read the structure off a model's trace that was replayed against a guide's.

    Raises:
        ValueError: a program that is not of a recognised shape; the message names the site and the argument.
    """
    sites, guide_sites = sample_sites(model), sample_sites(guide)
    owners: dict[int, str] = {}
    for name, site in sites.items():
        owners.setdefault(id(site["value"]), name)
    add_constants(model, sites, owners)
    parents = {**sites, **{name: node for name, node in model.nodes.items() if node["type"] == "constant"}}
    mixtures = {
        name: MixtureSites(name, _conjugate_parents(site, owners, parents))
        for name, site in parents.items()
        if isinstance(site["fn"], Assignment)
    }
    program = Structure(model, [], [], [], [], [])
    for site in sites.values():
        _check_class(site, owners, mixtures)
    for name, site in sites.items():
        if site["is_observed"]:
            check_observed(site)
        if name in guide_sites:
            check_shapes(site, guide_sites[name])
        if name in mixtures:
            continue
        if not site["is_observed"] and name not in guide_sites:
            if is_imputed(site):
                continue  # it integrates to 1
            plain = not any(hasattr(unwrap(each["fn"]), "parents") for each in sites.values())
            raise ValueError(missing_in_guide(name, plain))
        if "assignment" in getattr(site["fn"], "parents", ()):
            _attach(site, owners, parents, mixtures)
        elif hasattr(site["fn"], "parents"):
            program.integrated.append(_integrated(site, owners, parents))
        elif site["is_observed"]:
            program.observed.append(name)
        else:
            program.latents.append(name)
    program.mixtures = [  # an assignment that nothing hangs on integrates to 1
        mixture
        for name, mixture in mixtures.items()
        if mixture.children or name in guide_sites or parents[name]["is_observed"]
    ]
    program.auxiliary = auxiliary_sites(guide_sites, sites)
    return program


def _check_class(site: Site, owners: dict[int, str], mixtures: dict[str, MixtureSites]) -> None:
    """Raise an error if a site with parents is wrapped, or a child of a mixture has no assignment."""
    name, fn = site["name"], site["fn"]
    check_distribution(site)
    if "assignment" in getattr(fn, "parents", ()):
        assignment = _owner(site, "assignment", owners)
        if assignment not in mixtures:
            raise ValueError(
                f"site '{name}': argument 'assignment' is the value of '{assignment}', which is no "
                "Assignment; give it that of a pyro.sample(name, Assignment(weights))"
            )


def _attach(
    site: Site, owners: dict[int, str], sites: dict[str, Site], mixtures: dict[str, MixtureSites]
) -> None:
    """Add a site to the mixture of its assignment, which :func:`_check_class` has checked."""
    name, assignment = site["name"], _owner(site, "assignment", owners)
    assignment_fn = sites[assignment]["fn"]
    _check_plates(site, sites[assignment])
    if isinstance(site["fn"], Label) and site["is_observed"]:
        check_label(name, site["value"])
    parents = _conjugate_parents(site, owners, sites)
    for argument, parent in parents.items():
        check_components(site, argument, sites[parent], assignment, assignment_fn.num_components)
    mixtures[assignment].children.append(Child(name, parents))


def _check_plates(child: Site, assignment: Site) -> None:
    """Raise a ValueError unless a child lies in its assignment's plates, and in plates of its own at most.

    Plates of its own hold views of a point, which share its assignment.
    """
    shape, shared = child["fn"].batch_shape, assignment["fn"].batch_shape
    own = {frame.dim for frame in child["cond_indep_stack"] if frame.vectorized}
    own -= {frame.dim for frame in assignment["cond_indep_stack"] if frame.vectorized}
    sizes = (*[1] * (len(shape) - len(shared)), *shared)
    differ = [dim for dim in range(-len(shape), 0) if shape[dim] != sizes[dim]]
    if len(shape) >= len(shared) and all(dim in own and sizes[dim] == 1 for dim in differ):
        return
    raise ValueError(
        f"site '{child['name']}': its batch shape {tuple(shape)} is not that of its assignment "
        f"'{assignment['name']}', {tuple(shared)}; put both into the same plates, or views of a point into a "
        "plate that its assignment is not in"
    )


def _integrated(site: Site, owners: dict[int, str], sites: dict[str, Site]) -> Child:
    """An observed site that hangs on latents without an assignment between them."""
    parents = _conjugate_parents(site, owners, sites)
    name, shape = site["name"], site["fn"].batch_shape
    if not site["is_observed"]:
        raise ValueError(f"site '{name}': {type(site['fn']).__name__} has to be observed, by obs=")
    for argument, parent in parents.items():
        if sites[parent]["fn"].batch_shape != shape:
            raise ValueError(
                f"site '{name}': its batch shape {tuple(shape)} is not that of '{parent}', its argument "
                f"'{argument}', {tuple(sites[parent]['fn'].batch_shape)}; put both into the same plates"
            )
    return Child(name, parents)


def _conjugate_parents(site: Site, owners: dict[int, str], sites: dict[str, Site]) -> dict[str, str]:
    names = {
        argument: _owner(site, argument, owners)
        for argument in site["fn"].parents
        if argument != "assignment"
    }
    for argument, name in names.items():
        prior = unwrap(sites[name]["fn"])
        if isinstance(prior, Assignment):
            raise ValueError(
                f"site '{site['name']}': argument '{argument}' is the value of the assignment '{name}'; give "
                "it the value of a conjugate site"
            )
        if isinstance(site["fn"], Assignment) and not isinstance(prior, dist.Delta):
            _check_weights(name, prior, site)
    return names


def _check_weights(name: str, prior: Any, assignment: Site) -> None:
    if not isinstance(prior.support, type(dist.constraints.simplex)):
        raise ValueError(
            f"site '{name}': it has the probabilities of the {assignment['fn'].num_components} components of "
            f"'{assignment['name']}', which have to add up to 1; its prior should be a Dirichlet, not "
            f"{type(prior).__name__}"
        )


def _owner(site: Site, argument: str, owners: dict[int, str]) -> str:
    value: Tensor = getattr(site["fn"], argument)
    name = owners.get(id(value))
    if name is None:
        origin = f"that of '{value.site}'" if isinstance(value, Unsampled) else "one (or a constant)"
        raise ValueError(
            f"site '{site['name']}': argument '{argument}' of {type(site['fn']).__name__} is not the value "
            f"of a sample site but a tensor derived from {origin}; give it the very tensor that pyro.sample "
            "returned"
        )
    return name


# The terms of a mixture in the bound, its assignments summed out: Paquet et al. (2018), eqs 4b-c, 5, 8.


@dataclass(frozen=True)
class MixtureTables:
    """Everything about one mixture that does not depend on how its terms are weighted.

    Attributes:
        site: the assignment's site in the model.
        log_weights: E[log π], [..., K].
        children: (child, its site, its table E[log p] [..., K]), labels apart.
        labels: the same for observed labels, and for the assignment itself where it is observed.
        given: log of the guide's own responsibilities [..., K], or None if they are to be optimal.
    """

    site: Site
    log_weights: Tensor
    children: list[tuple[Child, Site, Tensor]]
    labels: list[tuple[Site, Tensor]]
    given: Tensor | None

    def logits(self) -> Tensor:
        """Unnormalised log responsibilities without labels, the exponent of equation 5: [..., K].

        Views of a point, in plates that its assignment is not in, are added up.
        """
        total = self.log_weights
        for _, site, table in self.children:
            ratio = _ratio(site, self.site, table.device)
            total = total + self._pooled(site, table if ratio is None else ratio.unsqueeze(-1) * table)
        return total.expand(*self.site["fn"].batch_shape, self.log_weights.shape[-1])

    def _pooled(self, child: Site, table: Tensor) -> Tensor:
        """A child's table [..., K], added up over the plates that its assignment is not in."""
        shape, shared = child["fn"].batch_shape, self.site["fn"].batch_shape
        if shape == shared:
            return table
        return table.expand(*shape, table.shape[-1]).sum_to_size(*shared, table.shape[-1])

    def responsibilities(self, clamped: bool = True) -> tuple[Tensor, Tensor]:
        """γ and log γ [..., K]: the guide's, or optimal by equation 5, then constant; labels clamp both.

        Args:
            clamped: False to leave the labels out.
        """
        logits = self.logits().detach() if self.given is None else self.given
        if clamped:
            for site, table in self.labels:
                logits = logits + self._pooled(site, table)
        return logits.softmax(-1), logits.log_softmax(-1)


def tabulate(
    program: Structure,
    mixture: MixtureSites,
    guide: Trace,
    posterior: Posterior,
    kl_weight: float | Tensor = 1.0,
) -> MixtureTables:
    """Evaluate E[log p] of everything in a mixture.

    Args:
        program: the structure that ``mixture`` belongs to.
        mixture: the assignment and its children.
        guide: trace of the guide.
        posterior: posterior of a conjugate parent by the name of its site.
        kl_weight: the weight that KL[z] is going to get; natural posteriors do not see it.
    """
    site = program.model.nodes[mixture.name]
    fn = site["fn"]
    weights = {argument: posterior(name) for argument, name in mixture.parents.items()}
    children: list[tuple[Child, Site, Tensor]] = []
    labels: list[tuple[Site, Tensor]] = []
    for child in mixture.children:
        child_site = program.model.nodes[child.name]
        parents = {argument: posterior(name) for argument, name in child.parents.items()}
        if not child_site["is_observed"]:
            parents = {argument: with_gradient_divided(q, kl_weight) for argument, q in parents.items()}
        table = expectation(child_site, program.posterior(guide, child.name), {**parents, "assignment": fn})
        if isinstance(child_site["fn"], Label):
            labels.append((child_site, _where_unmasked(table, child_site)))
        else:
            children.append((child, child_site, table))
    if site["is_observed"]:
        observed = dist.Delta(site["value"])
        table = expected_log_prob(observed, Label(site["value"]), {"assignment": fn})
        labels.append((site, _where_unmasked(table, site)))
    given = None
    if site["type"] == "constant":
        given = one_hot(site["value"].expand(fn.batch_shape), fn.num_components).double().log()
    elif not site["is_observed"] and mixture.name in guide.nodes:
        given = _log_probs(guide.nodes[mixture.name], fn.num_components)
    log_weights = expectation(site, fn, weights)
    if children:
        log_weights = log_weights.to(children[0][2])
    return MixtureTables(site, log_weights, children, labels, given)


def mixture_terms(
    tables: MixtureTables,
    program: Structure,
    guide: Trace,
    label_weight: float | Tensor,
    kl_weight: float | Tensor,
) -> list[Term]:
    """KL[z] of each latent child, KL[r], and Δ's classification term.

    Optimal responsibilities are constants here: the bound is stationary in them, so value and gradient are
    those of the collapsed form logsumexp_k{...}, and the parts can be reported and weighted apart.
    """
    gamma, log_gamma = tables.responsibilities()  # not by exp, which is much slower where it underflows
    terms = []
    for child, site, table in tables.children:
        expected = (gamma * table).sum(-1)
        if site["is_observed"]:
            terms.append(Term(child.name, Role.RECONSTRUCTION, -total(expected, site)))
        else:
            kl = total(-expected - _entropy(guide.nodes[child.name]["fn"]), site)
            terms.append(Term(child.name, Role.KL_Z, kl_weight * kl))
    log_ratio = torch.where(gamma > 0, log_gamma - tables.log_weights, 0.0)  # where γ is 0, so may be π
    if tables.site["type"] != "constant":
        kl_r = (gamma * log_ratio).sum(-1)
        terms.append(Term(tables.site["name"], Role.KL_R, total(kl_r, tables.site)))
    weighted = isinstance(label_weight, Tensor) or label_weight > 0
    for site, table in tables.labels:
        if weighted:
            log_probs = tables.logits().log_softmax(-1)
            log_likelihood = (log_probs + table).logsumexp(-1)  # of a set of components: their sum
            known = (table < 0).any(-1)
            loss = -label_weight * total(torch.where(known, log_likelihood, 0.0), site)
            name = f"{site['name']}/label" if site is tables.site else site["name"]
            terms.append(Term(name, Role.LABEL, loss))
    return terms


def _log_probs(site: Site, num_components: int) -> Tensor:
    q = unwrap(site["fn"])
    if isinstance(q, Assignment):
        q = q.categorical
    if not isinstance(q, torch.distributions.Categorical):
        raise NotImplementedError(
            f"site '{site['name']}': expected a Categorical in the guide, or no site, got {type(q).__name__}"
        )
    if q.logits.shape[-1] != num_components:
        raise ValueError(
            f"site '{site['name']}': expected probabilities of {num_components} components in the guide, as "
            f"in the model, got {q.logits.shape[-1]}"
        )
    return q.logits


def _where_unmasked(table: Tensor, site: Site) -> Tensor:
    """A label's table, with zeros for the points that its site masks out."""
    mask = site["mask"]
    if mask is None:
        return table
    return torch.where(torch.as_tensor(mask, device=table.device).unsqueeze(-1), table, 0.0)


def _entropy(q: Distribution) -> Tensor:
    point = unwrap(q)
    return -q.log_prob(point.v) if isinstance(point, dist.Delta) else q.entropy()


def _ratio(child: Site, assignment: Site, device: torch.device) -> Tensor | None:
    """How much more a child counts than its assignment, or None if they count the same."""
    mask = None if child["mask"] is assignment["mask"] else child["mask"]
    same = child["scale"] is assignment["scale"] or (
        not isinstance(child["scale"], Tensor)
        and not isinstance(assignment["scale"], Tensor)
        and child["scale"] == assignment["scale"]
    )
    if same and mask is None:
        return None
    ratio = torch.as_tensor(child["scale"] / assignment["scale"], device=device)
    ratio = ratio.expand(child["fn"].batch_shape)
    return ratio if mask is None else ratio * mask


def run_shorthand(
    model: Any, guide: Any, args: Any, kwargs: Any, max_plate_nesting: float
) -> tuple[Structure, Trace]:
    """Run the guide, and the model against it, with placeholders for whatever is integrated out.

    Returns:
        The structure of the program (with the model's trace in it), and the guide's trace.

    Raises:
        ValueError: a program that is not of a recognised shape; the message names the site.
    """
    with PlaceholderMessenger():
        guide_trace, used = trace_guide(guide, args, kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        with OwnValues():
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
    take_masks(model_trace, guide_trace)
    check_masks(model_trace, guide_trace)
    program = recognise(model_trace, guide_trace)
    take_at_draws(program, guide_trace, used)
    if is_validation_enabled():
        watch_missing(model_trace)
        for site in (*sample_sites(guide_trace).values(), *sample_sites(model_trace).values()):
            shape = torch.zeros(()).expand(site["fn"].batch_shape)
            check_site_shape({**site, "log_prob": shape}, max_plate_nesting)
    return program, guide_trace


# The one place where a program's kind is found out: written with this library's shorthands, or plain.
#
# A shorthand is a distribution that remembers its parents, such as ``Assignment``. Programs in which all that
# is integrated or summed out belongs to shorthands have the fast path of this module. Those where something
# else is, too, take the way of plain programs as a whole, ``plain.py``, which has the shorthands' formulas as
# well. All others, such as a plain VAE, need neither, and take the first path.


_MOST_PROGRAMS = 16  # remembered at a time: a program that is made anew for each step is forgotten
Run = tuple[Structure | PlainProgram, Trace]


class Kinds:
    """Remembers which programs are plain, and what was found out about them."""

    def __init__(self) -> None:
        self._plates: dict[tuple[Any, ...], int] = {}
        self._identities: dict[Hashable, bool] = {}
        self._whole: dict[tuple[Any, ...], dict[str, Tensor]] = {}

    def run(
        self, model: Any, guide: Any, args: Any, kwargs: Any, max_plate_nesting: float, key: tuple[Any, ...]
    ) -> Run:
        """Run a program in the way of its kind.

        Args:
            model, guide, args, kwargs: the program.
            max_plate_nesting: what plates may be checked against; a plain program's are counted.
            key: functions that the program is remembered by; of one without a hash, a method.

        Raises:
            ValueError: a program that is not of a recognised shape; the message names the site.
        """
        key = tuple(program if isinstance(program, Hashable) else program.__call__ for program in key)
        if key not in self._plates:
            random_state, stored = torch.get_rng_state(), len(pyro.get_param_store())
            kinds, failure = SiteKinds(), None
            try:
                with kinds, _registrations() as made:
                    result = run_shorthand(model, guide, args, kwargs, max_plate_nesting)
            except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
                if not kinds.possible:
                    raise
                failure = error
            if failure is None and not kinds.outside:
                return result
            whole = SiteKinds()
            plates = plates_of(model, guide, args, kwargs, whole)
            if failure is not None and not whole.outside:  # sites that come after the failure take it
                raise failure
            self._plates[key] = plates
            if not made and len(pyro.get_param_store()) == stored:
                torch.set_rng_state(random_state)  # else the draws that made parameters would come once more
            if len(self._plates) > _MOST_PROGRAMS:
                oldest = next(iter(self._plates))
                del self._plates[oldest]
                self._whole.pop(oldest, None)
        while True:
            plates = self._plates[key]
            points = self._whole.setdefault(key, {})
            program, trace = run_plain(model, guide, args, kwargs, plates, self._identities, points)
            deepest = _deepest(program.model, trace)
            if deepest <= plates:
                return program, trace
            self._plates[key] = deepest


@contextmanager
def _registrations() -> Iterator[list[str]]:
    """Names of the parameters that modules are given inside."""
    names: list[str] = []
    handle = register_module_parameter_registration_hook(lambda module, name, value: names.append(name))
    try:
        yield names
    finally:
        handle.remove()


def _deepest(*traces: Trace) -> int:
    frames = [
        frame
        for trace in traces
        for site in sample_sites(trace).values()
        for frame in site["cond_indep_stack"]
        if frame.vectorized
    ]
    return max((-frame.dim for frame in frames), default=0)


def check_options(elbo: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that only programs of shorthands have.

    Args:
        elbo: whose attributes they are.
        options: name → the value that leaves it out.

    Raises:
        ValueError: one has another value.
    """
    for name, value in options.items():
        given = getattr(elbo, name)
        if isinstance(given, Tensor) or given != value:
            raise ValueError(
                f"{name}: expected {value} for a program of Pyro's own distributions; leave it out, or write "
                "the program with Assignment and Component, which have it"
            )


class SiteKinds(Messenger):
    """Takes note of what is to be integrated or summed out, and of what shorthands take of it."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: list[tuple[str, Any, Any]] = []  # with the values, so that no other comes to lie there
        self._discrete: set[str] = set()
        self._observed: list[Any] = []  # values, which may be computed from sites: obs=x - loc

    def _pyro_post_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        self._sites.append((msg["name"], fn, msg["value"]))
        if msg["is_observed"] and not hasattr(fn, "parents"):
            self._observed.append(msg["value"])
        if not hasattr(fn, "parents") and is_discrete(msg) and msg["fn"].has_enumerate_support:
            self._discrete.add(msg["name"])

    @property
    def possible(self) -> set[str]:
        """Names of the sites to be integrated or summed out that belong to no shorthand."""
        names = self._discrete | {n for n, fn, _ in self._sites if isinstance(fn, NaturalDistribution)}
        shorthands = [(name, fn) for name, fn, _ in self._sites if hasattr(fn, "parents")]
        names -= {name for name, _ in shorthands}
        owners = self._owners() if names else {}
        for _, fn in shorthands:
            for argument in fn.parents:
                taken = _defining_module(getattr(fn, argument), owners)
                names -= taken - self._discrete if argument == "assignment" else taken
        return names

    @property
    def outside(self) -> set[str]:
        """The possible ones that are discrete or that another site depends on."""
        possible = self.possible
        if not possible:
            return possible
        owners = self._owners()
        used = set[str]().union(*(_defining_module(value, {}) for value in self._observed))
        for _, fn, _ in self._sites:
            if not hasattr(fn, "parents"):
                used.update(*(_defining_module(part, owners) for _, part in held(fn)))
        return possible & (self._discrete | used)

    def _owners(self) -> dict[int, str]:
        """Identity of a value → the name of the first site that had it."""
        return {id(value): name for name, _, value in reversed(self._sites)}


def _defining_module(value: Any, owners: Mapping[int, str]) -> set[str]:
    """The sites that a value is from, as far as it tells."""
    if isinstance(value, Lazy):
        return sites_of(value)
    known = owners.get(id(value), getattr(value, "site", None))
    return set() if known is None else {known}


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
