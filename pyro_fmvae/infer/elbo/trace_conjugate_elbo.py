"""The evidence lower bound of a conjugate program, exact where it can be: Paquet et al. (2018), eqs 4-8."""

import math
from dataclasses import replace
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.dependence import dependence_terms
from pyro_fmvae.infer.elbo.distribution_checks import check_first_order, check_particles
from pyro_fmvae.infer.elbo.gradient_scale import natural_posteriors
from pyro_fmvae.infer.elbo.kind import Kinds, Run, check_options
from pyro_fmvae.infer.elbo.loss_checks import check_finite, check_unscaled, propagate_back
from pyro_fmvae.infer.elbo.mixture_terms import MixtureTables, mixture_terms, tabulate
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.plain_states import hidden_chains, responsibilities
from pyro_fmvae.infer.elbo.plain_terms import Bound
from pyro_fmvae.infer.elbo.plan import Plan, plan_of
from pyro_fmvae.infer.elbo.program_modules import as_module
from pyro_fmvae.infer.elbo.site_terms import integrated_term, kl_sum, latent_term, log_prob_sum
from pyro_fmvae.infer.elbo.structure import Structure
from pyro_fmvae.infer.elbo.terms import Role, Term, role_of, sum_terms
from pyro_fmvae.infer.elbo.weight import Weight

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
            labelled assignments of others: see :mod:`pyro_fmvae.infer.elbo.dependence`. No part of the bound.
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
            ValueError: (with validation on) a site's loss that is not finite; on the way back, a loss that
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
