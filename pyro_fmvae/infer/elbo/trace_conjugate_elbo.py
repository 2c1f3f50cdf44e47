"""The evidence lower bound of a conjugate program, exact where it can be: Paquet et al. (2018), eqs 4-8."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.indep_messenger import CondIndepStackFrame
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import HiddenMarkov, LinearGaussianChain, NaturalDistribution
from pyro_fmvae.distributions.chain import Chain
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.infer.elbo.density import as_number, hidden_chain
from pyro_fmvae.infer.elbo.distribution_checks import check_first_order, check_particles
from pyro_fmvae.infer.elbo.lazy import Unsampled
from pyro_fmvae.infer.elbo.plain import PlainProgram, as_module, natural_posteriors
from pyro_fmvae.infer.elbo.plain_terms import Bound, integrated_term, kl_sum, latent_term, log_prob_sum
from pyro_fmvae.infer.elbo.recognition import Plan, plan_of
from pyro_fmvae.infer.elbo.shorthand import Kinds, MixtureTables, Run, check_options, mixture_terms, tabulate
from pyro_fmvae.infer.elbo.structure import (
    Role,
    Site,
    Structure,
    Term,
    role_of,
    sample_sites,
    sum_terms,
    unmasked,
)

# Weights of a loss as attributes that refuse numbers out of range.


class Weight:
    """A descriptor for a weight: a finite number, or a scalar tensor, whose value is not looked at.

    Args:
        positive: True to refuse 0 as well.

    Raises:
        ValueError: when it is set, a number out of range; the message names the attribute.
    """

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: Any, value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            value = float(value)
            if not 0 <= value < math.inf or (self._positive and value == 0):
                limit = "> 0" if self._positive else ">= 0"
                raise ValueError(f"{self._name}: expected a number {limit}, got {value}")
        instance.__dict__[self._name] = value


# Checks of a loss and of its gradients, which name the sites to blame.


class NotFiniteError(ValueError):
    """The loss of a training, or a gradient of it, is not finite: it has diverged."""


def check_finite(loss: Tensor, terms: list[Term]) -> None:
    """Raise a NotFiniteError that names the sites to blame, if ``loss``, the sum of terms, is not finite."""
    if not loss.isfinite():
        culprits = ", ".join(
            f"'{term.name}' ({term.value.item()})" for term in terms if not term.value.isfinite()
        )
        raise NotFiniteError(
            f"the loss is not finite ({loss.item()}), because of the sites {culprits or '(their sum)'}"
        )


def check_gradients(parameters: Mapping[str, Tensor], terms: Callable[[], list[Term]]) -> None:
    """Raise a NotFiniteError that names parameters whose gradient is not finite, and the sites to blame.

    Args:
        parameters: leaves by name, with their gradients. If one is not finite, all gradients are dropped.
        terms: evaluates the loss's terms once more, to find out which is to blame.
    """
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    if not grads:
        return
    norms = torch._foreach_norm(list(grads.values()))
    if torch.stack([norm.to(norms[0]) for norm in norms]).isfinite().all():
        return
    bad = [name for name, grad in grads.items() if not grad.isfinite().all()]
    if not bad:
        return  # gradients so large that only their norm overflows
    leaves = [parameters[name] for name in bad]
    culprits = []
    for term in terms():
        if term.value.requires_grad:
            parts = torch.autograd.grad(term.value, leaves, allow_unused=True, retain_graph=True)
            if any(grad is not None and not grad.isfinite().all() for grad in parts):
                culprits.append(f"'{term.name}'")
    for p in parameters.values():
        p.grad = None
    where = ", ".join(culprits) or "none when evaluated again with fresh random numbers"
    raise NotFiniteError(f"the gradient of {', '.join(bad)} is not finite; sites that it comes from: {where}")


def check_unscaled(grad: Tensor) -> None:
    """A hook on the loss: raise if it was scaled on its way to ``backward``, which would distort λ."""
    if grad.item() != 1:
        raise ValueError(
            f"the loss was multiplied by {grad.item():g} before backward(): natural gradients need the total "
            "loss, data scaled to all N points, not a mean. Scale with poutine.scale inside the program, or "
            "scale what you report"
        )


def propagate_back(loss: Tensor, parameters: Trace, terms: Callable[[], list[Term]]) -> None:
    """Propagate a loss back, and check the gradients of all parameters if validation is on.

    Args:
        loss: the total.
        parameters: trace of the ``pyro.param`` statements of the program.
        terms: evaluates the terms once more, to find out which one spoilt a gradient.
    """
    if loss.requires_grad:
        loss.backward()
        if is_validation_enabled():
            check_gradients({name: s["value"].unconstrained() for name, s in parameters.nodes.items()}, terms)


# Discrete states of a plain program, under the posteriors of everything else.


def responsibilities(program: PlainProgram, guide: Trace) -> dict[str, Tensor]:
    """Probabilities of each discrete site's values: [..., K], with the site's plates in front."""
    bound = Bound(program, guide)
    bound.collect()
    return bound.summed().posteriors() if bound.factors else {}


def hidden_chains(program: Structure | PlainProgram, guide: Trace) -> dict[str, Chain | GaussianChain]:
    """The chain of the hidden states of every site that has one, by site name."""
    bound = Bound(program, guide) if isinstance(program, PlainProgram) else None
    return {
        name: fn.chain(as_number(site["value"])) if bound is None else _chain(bound, name, site)
        for name, site in sample_sites(program.model).items()
        if isinstance(fn := unwrap(site["fn"]), HiddenMarkov | LinearGaussianChain)
    }


def _chain(bound: Bound, name: str, site: Site) -> Chain | GaussianChain:
    """The chain under the posteriors, that of a drawn site's own value among them where the bound has it."""
    value, moments, densities = unmasked(site), bound.posteriors.moments, bound.densities
    at_value = site["is_observed"] or densities.is_at_draw(name)
    if not at_value and (own := densities.undrawn(name)) is not None:
        value, moments = own[0], {**moments, name: own[1]}
    fn: Any = unwrap(site["fn"])
    return hidden_chain(fn, value, lambda table: densities.evaluate(table, table.shape, moments, table.dtype))


# A penalty on the dependence of blocks of z on assignments of other factors.
#
# In the prior, factors are independent. In the aggregate posterior they need not be: a decoder can use a
# block that repeats the content of another. Labels give a factor's meaning a block of its own; this penalty
# keeps it out of the others.


def dependence_terms(tables: Sequence[MixtureTables], guide: Trace, weight: float | Tensor) -> list[Term]:
    """One term for each mixture with observed labels: ``weight`` · N · Σ_ij η²_ij over blocks i ≠ j.

    η²_ij is :func:`explained` by assignment j of the mixture in block i of any mixture, averaged over the
    dimensions of the block, under responsibilities that are clamped by labels and held constant. For a block
    with labels of its own, means are replaced by what they are :func:`within` its components. N is the number
    of data points that the batch stands for.

    Args:
        tables: of all mixtures, assignments [..., B].
        guide: trace of the guide, with q(z) [..., B] of events [D].
        weight: nats per data point for a block that an assignment determines entirely.
    """
    clamped = {id(table): _clamped(table) for table in tables if table.labels}
    blocks = [
        (table, *_block(guide.nodes[child.name]["fn"], clamped.get(id(table))))
        for table in tables
        for child, site, _ in table.children
        if not site["is_observed"]
    ]
    terms = []
    for table in tables:
        if not table.labels:
            continue
        gamma, counts = (_stacked(part, last) for part, last in zip(clamped[id(table)], (2, 1), strict=True))
        total = gamma.new_zeros(())
        for owner, mean, variance, assignments in blocks:
            share = explained(gamma, counts, mean, variance)
            if owner is table:
                foreign = assignments != torch.arange(len(gamma), device=gamma.device).unsqueeze(-1)
                share = share * foreign
            total = total + (counts.sum(-1) * share.sum(-1)).sum()
        terms.append(Term(f"{table.site['name']}/dependence", Role.DEPENDENCE, weight * total))
    return terms


def _clamped(table: MixtureTables) -> tuple[Tensor, Tensor]:
    """Responsibilities of all rows, clamped by labels and constant, [..., B, K], and counts, [..., B]."""
    site = table.site
    gamma = table.responsibilities()[0].detach()
    counts = scale_and_mask(torch.ones_like(gamma[..., 0]), site["scale"], site["mask"])
    return gamma, counts


def _block(q: Distribution, own: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance of q(z_i) of all rows, [I, B, D], and the numbers of the blocks' assignments, [I].

    With responsibilities and counts of labelled assignments, means are those within components. Several
    blocks may have one assignment: the views of a point.
    """
    mean, variance = q.mean, q.variance
    if own is None:
        return _stacked(mean, 2), _stacked(variance, 2), None
    gamma, counts = own
    numbers = torch.arange(gamma[..., 0, 0].numel(), device=gamma.device).view(gamma.shape[:-2])
    gamma = _stacked(gamma.expand(*mean.shape[:-1], -1), 2)
    counts = _stacked(counts.expand(mean.shape[:-1]), 1)
    inner = within(gamma, counts, _stacked(mean, 2))
    return inner, _stacked(variance, 2), numbers.expand(mean.shape[:-2]).flatten()


def _stacked(tensor: Tensor, last: int) -> Tensor:
    """All but the last dimensions as one, also where there are none: several assignments, or blocks."""
    return tensor.reshape(-1, *tensor.shape[-last:])


def explained(gamma: Tensor, counts: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The share of the variance of blocks that assignments explain, the correlation ratio η²: [J, I].

        η² = Σ_k n_k (m_k - m)² / (n (Var[μ] + E[σ²])),   n_k = Σ_n γ_nk,   m_k = Σ_n γ_nk μ_n / n_k

    averaged over dimensions: 0 where knowing the component does not move the mean, 1 where z is a function of
    it. The denominator is the variance of draws of z, so that differences far below q's scale do not count.

    Args:
        gamma: responsibilities of J assignments, [J, B, K].
        counts: how many data points each row stands for, >= 0, [J, B].
        mean, variance: of q(z_i) for I blocks, [I, B, D].
    """
    mean = mean - mean.mean(1, keepdim=True).detach()  # so that little is lost in the squares
    p = _shares(counts)
    joint = p.unsqueeze(-1) * gamma
    share = joint.sum(1)[:, None, :, None]
    centre = torch.einsum("jb,ibd->jid", p, mean)
    offset = torch.einsum("jbk,ibd->jikd", joint, mean) - share * centre.unsqueeze(2)
    finfo = torch.finfo(mean.dtype)  # the bounds keep gradients finite where a component has no points
    between = (offset.square() / share.clamp(min=finfo.eps)).sum(2)
    total = torch.einsum("jb,ibd->jid", p, mean.square() + variance) - centre.square()
    return (between / total.clamp(min=finfo.tiny**0.5)).mean(-1)


def within(gamma: Tensor, counts: Tensor, mean: Tensor) -> Tensor:
    """Means of q(z_i) less those of their own components: what block i says beside its own assignment.

        μ_n - Σ_k γ_nk m_k,   m_k = Σ_n c_n γ_nk μ_n / Σ_n c_n γ_nk

    Args:
        gamma: responsibilities of the assignment of each block, [I, B, K].
        counts: how many data points each row stands for, >= 0, [I, B].
        mean: of q(z_i), [I, B, D].

    Returns:
        [I, B, D].
    """
    joint = _shares(counts).unsqueeze(-1) * gamma
    share = joint.sum(1).unsqueeze(-1).clamp(min=torch.finfo(joint.dtype).eps)
    return mean - gamma @ (joint.mT @ mean / share)


def _shares(counts: Tensor) -> Tensor:
    """Counts as shares of all that each assignment counts, [..., B]."""
    return counts / counts.sum(-1, keepdim=True).clamp(min=torch.finfo(counts.dtype).tiny)


WEIGHTS = {"kl_weight": 1.0, "label_weight": 0.0, "independence_weight": 0.0}
"""Attributes of the ELBO that weight its parts, and the number that leaves a part of the program out."""


class TraceConjugate_ELBO(ELBO):
    """An ELBO that sums discrete sites out and integrates conjugate ones analytically.

    It takes programs in Pyro's own distributions as they are, with a guide such as ``AutoConjugate(model)``:
    see :mod:`pyro_fmvae.infer.elbo.plain`, and :meth:`plan` for what becomes of each site. A model may have
    this library's shorthands, whose formulas are faster, instead or beside them.

    It works wherever Pyro's own ELBOs do, as ``SVI(model, guide, optim, loss=TraceConjugate_ELBO())`` or as
    ``TraceConjugate_ELBO()(model, guide)``, and needs no annotation in the program. In a program of
    shorthands, a site is treated as follows:

    * an ``Assignment`` that is not observed is summed out, at its optimal probabilities (equation 5) or,
      where the guide has the site too, at the guide's;
    * a ``Component`` (or any class registered by ``register_expected_log_prob``) enters through the
      expectation of its log-density under the posteriors of its parents, which are not drawn;
    * an observed class that is registered likewise, such as ``LinearNormal``, enters through the expectation
      of its log-density under the posteriors of its parents; binary ones are not drawn;
    * a ``Label`` that is observed clamps the assignments that it knows;
    * any other latent site gives an analytic KL divergence where torch has one and the guide's sites precede
      it in the model's order, and a reparameterised sample's log-ratio otherwise;
    * an observed site gives its log-likelihood at the sample.

    Anything else is an error that names the site. Gradients that arrive at natural parameters are natural
    gradients of the *total* loss (data scaled to N points), undisturbed by ``poutine.scale``: take steps with
    ``NaturalGradient``.

    Args:
        label_weight: Δ >= 0 of equation 8, the weight of the classification term on labelled points. While
            it is positive, posteriors that it differentiates must be in standard parameters.
        kl_weight: weight > 0 of KL[z] (equation 4b), in plain programs that of drawn latents in a plate that
            holds all data, or one set of them. Neither the responsibilities nor the natural gradients see it.
        independence_weight: weight >= 0, in nats per data point, of a penalty on blocks of z that depend on
            labelled assignments of others. No part of the bound.
        num_particles: samples over which the loss is averaged.
        max_plate_nesting: as in Pyro's ``ELBO``; needed only to vectorise particles, guessed if not given.
        vectorize_particles: draw the particles in one plate rather than one after another.

    The weights are attributes: set them between steps to a float or a scalar tensor.

    Raises:
        ValueError: a weight out of range, also when it is set later; or vectorised particles together with
            an ``independence_weight``.
    """

    label_weight, kl_weight, independence_weight = Weight(), Weight(positive=True), Weight()

    def __init__(
        self,
        label_weight: float = 0.0,
        kl_weight: float = 1.0,
        independence_weight: float = 0.0,
        num_particles: int = 1,
        max_plate_nesting: float = math.inf,
        vectorize_particles: bool = False,
    ) -> None:
        super().__init__(
            num_particles=num_particles,
            max_plate_nesting=max_plate_nesting,
            vectorize_particles=vectorize_particles,
        )
        self.label_weight, self.kl_weight = label_weight, kl_weight
        self.independence_weight = independence_weight
        self._is_independent()
        self._kinds = Kinds()

    def _is_independent(self) -> bool:
        """True if blocks of z that depend on the labels of other factors are penalised."""
        wanted = isinstance(self.independence_weight, Tensor) or self.independence_weight > 0
        if wanted and self.vectorize_particles:
            raise ValueError("independence_weight: expected 0 with vectorize_particles")
        return wanted

    def __call__(self, model: Any, guide: Any) -> ELBOModule:
        """A ``torch.nn.Module`` that computes the loss, with the parameters of model and guide.

        Args:
            model, guide: modules, bound methods of modules, or functions without parameters.

        Raises:
            TypeError: something else, or a function that uses a module: its parameters would not be found.
            ValueError: when it is called, a function that has a ``pyro.param`` statement.
        """
        return super().__call__(as_module("model", model), as_module("guide", guide))

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The negative ELBO in nats, summed over the data set, as ``SVI.evaluate_loss`` returns it."""
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The negative ELBO as a scalar tensor, to call ``backward`` on once and unscaled.

        Raises:
            ValueError: (with validation on) a site's loss that is not finite; in ``backward()``, a loss that
                was scaled.
        """
        return self.total(self.terms(model, guide, *args, **kwargs))

    def total(self, terms: list[Term]) -> Tensor:
        """The sum of the loss's terms; with validation on, checked as in :meth:`differentiable_loss`."""
        loss = sum_terms(terms)
        if is_validation_enabled():
            check_finite(loss, terms)
            if loss.requires_grad and any(term.natural for term in terms):
                loss.register_hook(check_unscaled)
        return loss

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Add the gradients of the loss to all parameters, and return the loss; ``SVI.step`` calls this.

        Raises:
            ValueError: (with validation on) a loss or a gradient that is not finite, with the site that
                caused it.
        """
        with poutine.trace(param_only=True) as capture:
            loss = self.differentiable_loss(model, guide, *args, **kwargs)
        propagate_back(loss, capture.trace, lambda: self.terms(model, guide, *args, **kwargs))
        return loss.item()

    def loss_per_site(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The summands of the loss by site name, scalars in nats."""
        sums: dict[str, Tensor] = {}
        for term in self.terms(model, guide, *args, **kwargs):
            sums[term.name] = sums[term.name] + term.value if term.name in sums else term.value
        return sums

    def loss_per_role(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> dict[Role, Tensor]:
        """The summands of the loss by their part of equation 4: every :class:`Role`, 0 if it has none."""
        terms = self.terms(model, guide, *args, **kwargs)
        return {role: sum_terms([term for term in terms if term.role is role]) for role in Role}

    def responsibilities(
        self, model: Any, guide: Any, *args: Any, clamped: bool = True, **kwargs: Any
    ) -> dict[str, Tensor]:
        """γ of every assignment site, equation 5.

        Args:
            model, guide: the program; further arguments are passed on to both.
            clamped: whether observed labels clamp the responsibilities of their points.

        Returns:
            Name of the site → [..., K], with its batch shape in front.
        """
        with torch.no_grad():
            program, guide_trace = self.trace(model, guide, *args, **kwargs)
            if isinstance(program, PlainProgram):
                return responsibilities(program, guide_trace)
            tables = self.tabulate(program, guide_trace)
            return {table.site["name"]: table.responsibilities(clamped)[0] for table in tables}

    def chains(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The hidden states of every chain, by site name.

        Those of a ``HiddenMarkov`` are a :class:`Chain`: their probabilities are ``chains["x"].posterior()``,
        the best path is ``chains["x"].best_path()``. Those of a ``LinearGaussianChain`` are a
        :class:`GaussianChain`: ``chains["x"].posterior()`` is their distribution.
        """
        with torch.no_grad():
            return hidden_chains(*self.trace(model, guide, *args, **kwargs))

    def plan(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Plan:
        """How each site of a program is treated, and why, as a table to print.

        Raises:
            ValueError: a program that is not of a recognised shape. A use without a closed form is a row.
        """
        return plan_of(self, model, guide, args, kwargs)

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> list[Term]:
        """Every summand of the loss, averaged over the particles."""
        return self.average([self.terms_of(*pair) for pair in self.traces(model, guide, *args, **kwargs)])

    def average(self, runs: list[list[Term]]) -> list[Term]:
        """The terms of several runs, one per particle (or one for all, if they are vectorised), averaged."""
        if self.num_particles == 1:
            return runs[0]
        sums = ((same[0], torch.stack([t.value for t in same]).sum()) for same in zip(*runs, strict=True))
        return [replace(term, value=value / self.num_particles) for term, value in sums]

    def traces(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> list[Run]:
        """One :meth:`trace` per particle, or a single one for all of them if they are vectorised."""
        return list(self._get_traces(model, guide, args, kwargs))

    def trace(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Run:
        """Run the guide, and the model against it, with placeholders for whatever is integrated out.

        Returns:
            The structure of the program, with the model's trace in it, and the guide's trace.

        Raises:
            ValueError: a program that is not of a recognised shape; the message names the site.
        """
        return self._get_trace(model, guide, args, kwargs)

    def _get_vectorized_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Run:
        many = self._vectorized_num_particles
        run = self._get_trace(many(model), many(guide), args, kwargs, (model, guide))
        check_particles(run[0].model)
        return run

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any, program: Any = None) -> Run:
        """One run; ``program`` is what it is remembered by, if model and guide are made anew."""
        run = self._kinds.run(model, guide, args, kwargs, self.max_plate_nesting, program or (model, guide))
        if isinstance(run[0], PlainProgram):
            check_options(self, {"independence_weight": 0.0})
        return run

    def terms_of(self, program: Structure | PlainProgram, guide: Trace) -> list[Term]:
        """The summands of the loss for one pair of traces."""
        if isinstance(program, PlainProgram):
            return Bound(program, guide, self.kl_weight, self.label_weight).all_terms()
        terms = self.conjugate_terms(program, guide)
        done = {term.name for term in terms}
        terms += [latent_term(program, guide, name) for name in program.latents if name not in done]
        terms += [integrated_term(program, guide, child) for child in program.integrated]
        for name in program.observed:
            site = program.model.nodes[name]
            terms.append(Term(name, role_of(site, Role.RECONSTRUCTION), -log_prob_sum(site)))
        for name in program.auxiliary:
            site = guide.nodes[name]
            terms.append(Term(name, role_of(site, Role.KL_Z), log_prob_sum(site)))
        return terms

    def conjugate_terms(self, program: Structure, guide: Trace) -> list[Term]:
        """The summands that natural posteriors appear in; of the model's trace, only the structure matters.

        Args:
            program: the structure, which may come from an earlier pass.
            guide: trace of the guide, run under the same placeholders.
        """
        posterior = natural_posteriors(program, guide)
        terms = []
        for name in program.latents:
            if isinstance(unwrap(guide.nodes[name]["fn"]), NaturalDistribution):
                kl = kl_sum(posterior(name), program.model.nodes[name])
                terms.append(Term(name, Role.KL_GLOBAL, kl, natural=True))
        tables = self.tabulate(program, guide)
        for table in tables:
            terms += mixture_terms(table, program, guide, self.label_weight, self.kl_weight)
        if self._is_independent():
            terms += dependence_terms(tables, guide, self.independence_weight)
        return terms

    def tabulate(self, program: Structure, guide: Trace) -> list[MixtureTables]:
        """The tables E[log p] of every mixture, that responsibilities and losses are made of."""
        if isinstance(self.label_weight, Tensor) or self.label_weight > 0:
            for mixture in program.mixtures:
                check_first_order(mixture, program, guide)
        posterior = natural_posteriors(program, guide)
        return [tabulate(program, mixture, guide, posterior, self.kl_weight) for mixture in program.mixtures]


# The losses of single data points, of any program that ``TraceConjugate_ELBO`` takes.
#
# The terms of sites in the plate of the data are linear in the scale of these sites. The gradient of the loss
# with respect to a factor on that scale, one number per point, is therefore the loss of each point, however
# the terms are computed. Nothing else is differentiated: the program itself runs without gradients.


def loss_per_point(
    elbo: TraceConjugate_ELBO, model: Any, guide: Any, *args: Any, plate: str = "data", **kwargs: Any
) -> dict[Role, Tensor]:
    """The summands of the loss by their part of equation 4, for each data point.

    Over the B points of a batch that stands for N they add up to B / N of ``elbo.loss_per_role``, without the
    terms of sites outside of the plate.

    Args:
        elbo: says how many draws are averaged over.
        model, guide: the program; further arguments are passed on to both.
        plate: name of the plate over data points.

    Returns:
        Every :class:`Role` → nats per point, [B] in the order of the plate; 0 if there is no such loss.

    Raises:
        ValueError: a program that is not of a recognised shape, or one without a site in such a plate, or
            whose points are summed out together; or weights of the loss for a plain program.
    """
    with torch.no_grad():
        traces = elbo.traces(model, guide, *args, **kwargs)
    if any(isinstance(program, PlainProgram) for program, _ in traces):
        check_options(elbo, {"kl_weight": 1.0, "label_weight": 0.0})
    with torch.enable_grad():
        weight, frame = _weight(traces[0][0].model, plate)
        for program, guide_trace in traces:
            if isinstance(program, PlainProgram):
                program.points[plate] = weight
            for trace in (program.model, guide_trace):
                _weigh(trace, weight, plate)
        terms = elbo.average([elbo.terms_of(*pair) for pair in traces])
        losses = {role: sum_terms([term for term in terms if term.role is role]) for role in Role}
    share = frame.size / (frame.full_size or frame.size)
    return {role: share * _gradient(loss, weight) for role, loss in losses.items()}


def _weight(trace: Trace, plate: str) -> tuple[Tensor, CondIndepStackFrame]:
    """A weight of 1 for every point, to be differentiated, and the plate that the points are in."""
    sites = [(site, frame) for site in sample_sites(trace).values() if (frame := _frame(site, plate))]
    if not sites:
        raise ValueError(f"plate: expected the name of one that holds a sample site, got '{plate}'")
    device = next(
        (site["value"].device for site, _ in sites if not isinstance(site["value"], Unsampled)), None
    )
    frame = sites[0][1]
    return torch.ones(frame.size, device=device, requires_grad=True), frame


def _weigh(trace: Trace, weight: Tensor, plate: str) -> None:
    """Multiply weights into the scale of all sites in the plate."""
    for site in sample_sites(trace).values():
        frame = _frame(site, plate)
        if frame is None:
            continue
        site["unweighted"] = site["scale"]
        if frame.dim is None:  # a sequential plate: the site belongs to one point
            site["scale"] = site["scale"] * weight[frame.counter - 1]
        else:
            site["scale"] = site["scale"] * weight[(..., *(None,) * (-frame.dim - 1))]


def _frame(site: Site, plate: str) -> CondIndepStackFrame | None:
    frames: Sequence[CondIndepStackFrame] = site["cond_indep_stack"]
    return next((frame for frame in frames if frame.name == plate), None)


def _gradient(loss: Tensor, weight: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(weight)
    (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True, allow_unused=True)
    return torch.zeros_like(weight) if gradient is None else gradient
