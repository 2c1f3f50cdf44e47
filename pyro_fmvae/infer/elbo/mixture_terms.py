"""The terms of a mixture in the bound, its assignments summed out: Paquet et al. (2018), eqs 4b-c, 5, 8."""

from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from pyro_fmvae.distributions import Assignment, Label, expected_log_prob
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.gradient_scale import Posterior, with_gradient_divided
from pyro_fmvae.infer.elbo.site_terms import expectation
from pyro_fmvae.infer.elbo.structure import Child, MixtureSites, Site, Structure
from pyro_fmvae.infer.elbo.terms import Role, Term, total


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
