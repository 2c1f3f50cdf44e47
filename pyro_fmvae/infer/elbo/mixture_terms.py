"""The terms of a mixture in the bound, its assignments summed out: Paquet et al. (2018), eqs 4b-c, 5, 8."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from pyro_fmvae.distributions import Assignment, Label, NaturalDistribution, expected_log_prob
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.structure import Child, MixtureSites, Site, Structure

Posterior = Callable[[str], Distribution]


class Role(Enum):
    """The part of equation 4 that a site's loss belongs to, or a term that is added to the bound."""

    RECONSTRUCTION = "reconstruction"
    KL_Z = "kl_z"
    KL_R = "kl_r"
    KL_GLOBAL = "kl_global"
    LABEL = "label"
    DEPENDENCE = "dependence"
    FACTOR = "factor"


@dataclass(frozen=True)
class Term:
    """One summand of the loss.

    Attributes:
        name: the site that it belongs to.
        role: its part of the bound.
        value: in nats, a scalar.
        natural: whether it is the KL divergence of a natural posterior.
    """

    name: str
    role: Role
    value: Tensor
    natural: bool = False


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
        if not child_site["is_observed"] and not (isinstance(kl_weight, float) and kl_weight == 1.0):
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


def natural_posteriors(program: Structure, guide: Trace) -> Posterior:
    """Posteriors by site name, those of scaled sites with the natural gradient of the unscaled site.

    The scale multiplies the KL divergence and all other terms under a common ``poutine.scale``. Dividing the
    gradient by it leaves λ - λ*, so that ρ keeps its meaning.
    """

    def posterior(name: str) -> Distribution:
        q, scale = program.posterior(guide, name), program.model.nodes[name]["scale"]
        unscaled = not isinstance(scale, Tensor) and scale == 1
        return q if unscaled else with_gradient_divided(q, scale)

    return posterior


def with_gradient_divided(q: Distribution, scale: float | Tensor) -> Distribution:
    """A natural posterior whose λ receives gradients divided by a site's scale; any other as it is."""
    natural = unwrap(q)
    if not isinstance(natural, NaturalDistribution):
        return q
    events = len(q.event_shape) - len(natural.event_shape)
    if isinstance(scale, Tensor):
        scale = scale.to(natural.natural)
        if scale.dim():
            shape = q.batch_shape  # a site that lacks dimensions of its scale counts as their sum
            scale = scale.expand(torch.broadcast_shapes(scale.shape, shape)).sum_to_size(shape)
            scale = scale[(..., *(None,) * (events + 1))]
    scaled: Any = natural.with_gradient_scale(1 / scale)
    return scaled.to_event(events)


def check_first_order(mixture: MixtureSites, program: Structure, guide: Trace) -> None:
    """Raise a ValueError if Δ's term would be differentiated with respect to natural parameters."""
    sites = program.model.nodes
    labels = any(isinstance(sites[child.name]["fn"], Label) for child in mixture.children)
    if not (labels or sites[mixture.name]["is_observed"]):
        return
    parents = [*mixture.parents.values()]
    for child in mixture.children:
        parents += child.parents.values()
    for name in parents:
        if isinstance(unwrap(program.posterior(guide, name)), NaturalDistribution):
            raise ValueError(without_natural_step(name))


def without_natural_step(name: str) -> str:
    """The message for a natural posterior that Δ's term would be differentiated with respect to."""
    return (
        f"site '{name}': while label_weight > 0, the posterior of a labelled factor has no natural-gradient "
        "step; give the guide its distribution in standard parameters (to_standard), under a first-order "
        "optimiser"
    )


def expectation(site: Site, q: Distribution, parents: dict[str, Any]) -> Tensor:
    """The closed form of E_q[log p] at a model's site; where there is none, an error that names the site."""
    try:
        return expected_log_prob(q, site["fn"], parents)
    except NotImplementedError as error:
        raise NotImplementedError(f"site '{site['name']}': {error}") from None


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


def total(tensor: Tensor, site: Site) -> Tensor:
    """Scaled and masked as a site is, and summed."""
    return scale_and_mask(tensor, site["scale"], site["mask"]).sum()


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
