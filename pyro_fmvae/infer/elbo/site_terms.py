"""Losses of single sites, and the checks that name a site when something is not finite."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.masks import counted
from pyro_fmvae.infer.elbo.mixture_terms import Role, Term, expectation
from pyro_fmvae.infer.elbo.structure import Child, Site, Structure
from pyro_fmvae.infer.elbo.used_draws import in_order
from pyro_fmvae.infer.posteriors import natural_prior


def log_prob_sum(site: Site) -> Tensor:
    """The log-density of a site at its value, scaled and masked, summed over its plates."""
    return scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()


def role_of(site: Site, otherwise: Role) -> Role:
    """``Role.FACTOR`` for a site of ``pyro.factor``, in a model or in a guide; another role otherwise."""
    return Role.FACTOR if isinstance(unwrap(site["fn"]), dist.Unit) else otherwise


def kl_sum(q: Distribution, site: Site) -> Tensor:
    """KL(q || p) of a model's site, scaled and masked, summed over its plates.

    Raises:
        NotImplementedError: torch knows no closed form for the pair.
        ValueError: (with validation on) a prior whose λ is outside the domain of its family.
    """
    if is_validation_enabled() and isinstance(unwrap(q), NaturalDistribution):
        _check_prior(site)
    try:
        kl = kl_divergence(q, site["fn"])
    except NotImplementedError:
        raise NotImplementedError(
            f"site '{site['name']}': no closed form of KL(q || p) is registered for q = "
            f"{type(unwrap(q)).__name__} and p = {type(unwrap(site['fn'])).__name__}; add one with "
            "torch.distributions.register_kl, or give the guide another distribution"
        ) from None
    return scale_and_mask(kl, site["scale"], site["mask"]).sum()


def _check_prior(site: Site) -> None:
    try:
        natural_prior(site["fn"])
    except ValueError as error:
        raise ValueError(f"site '{site['name']}': {error}") from None
    except NotImplementedError:
        pass  # a prior of another class, whose divergence says so


def latent_term(program: Structure, guide: Trace, name: str) -> Term:
    """The term of a latent site: an analytic KL where it is valid, a reparameterised sample otherwise.

    KL(q || p) may stand in for the sample's log-ratio if p's parameters don't depend on anything that the
    guide draws after this site; that holds if whatever precedes the site in the model precedes it in the
    guide.

    Raises:
        ValueError: the guide's distribution can't be sampled with gradients, and not all that hangs on the
            site is integrated over in closed form.
    """
    site, guide_site = program.model.nodes[name], guide.nodes[name]
    q = counted(site, guide_site["fn"])
    role = Role.KL_GLOBAL if _is_parent(program, name) else Role.KL_Z
    if not (q.has_rsample or _is_integrated(program, name)):
        raise ValueError(
            f"site '{name}': {type(unwrap(q)).__name__} in the guide has no reparameterised sampler, and no "
            "registered class sums it out; give the guide a distribution that has_rsample, or the program to "
            "pyro.infer.TraceEnum_ELBO"
        )
    if not isinstance(unwrap(q), dist.Delta) and in_order(program.model, guide, name):
        try:
            return Term(name, role, kl_sum(q, site))
        except NotImplementedError:
            if not q.has_rsample:
                raise
    if not q.has_rsample:
        raise ValueError(
            f"site '{name}': it is not drawn, so it must precede in the guide what it precedes in the model"
        )
    alike = {**guide_site, "fn": q, "scale": site["scale"], "mask": site["mask"]}  # as a KL divergence counts
    return Term(name, role, log_prob_sum(alike) - log_prob_sum(site))


def integrated_term(program: Structure, guide: Trace, child: Child) -> Term:
    """The term of an observed site whose latent parents are integrated over in closed form."""
    site = program.model.nodes[child.name]
    posteriors = {argument: program.posterior(guide, parent) for argument, parent in child.parents.items()}
    expected = expectation(site, program.posterior(guide, child.name), posteriors)
    return Term(child.name, Role.RECONSTRUCTION, -scale_and_mask(expected, site["scale"], site["mask"]).sum())


def _is_integrated(program: Structure, name: str) -> bool:
    return any(name in child.parents.values() for child in program.integrated)


def _is_parent(program: Structure, name: str) -> bool:
    return any(
        name in parents.values()
        for mixture in program.mixtures
        for parents in (mixture.parents, *(child.parents for child in mixture.children))
    )


def mean_log_density(q: Distribution, stats: Tensor, is_location: bool) -> Tensor:
    """E[log q] [batch shape of q], whose backward delivers λ, and the base measure's part, to λ.

    Args:
        q: a natural distribution, with dimensions of its own if any.
        stats: E[t].
        is_location: True for a location: its terms nearly cancel far from 0, so the value is minus the
            entropy.
    """
    inner: Any = unwrap(q)
    family, natural = inner.family, inner.natural.detach()
    value = (natural * stats).sum(-1) - family.log_normalizer(natural) + family.log_base_measure(stats)
    if is_location:
        with torch.no_grad():
            entropy = family.member(*family.unpack(natural)).entropy()
        value = value - (value.detach() + entropy)
    value = value.expand(inner.batch_shape)
    events = len(inner.batch_shape) - len(q.batch_shape)
    return value.flatten(len(q.batch_shape)).sum(-1) if events else value


def sum_terms(terms: list[Term]) -> Tensor:
    """The sum of the terms' values (0 if there are none), in the widest type among them."""
    return sum((term.value for term in terms[1:]), terms[0].value) if terms else torch.zeros(())


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


class BoundMethod(torch.nn.Module):
    """A bound method of a module, as a module of its own that shares the owner's parameters."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.owner = method.__self__
        self.name = method.__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return getattr(self.owner, self.name)(*args, **kwargs)


class Function(torch.nn.Module):
    """A function without parameters as a module."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            ValueError: it has parameters, which are not among those of this module.
        """
        with poutine.trace(param_only=True) as capture:
            result = self.function(*args, **kwargs)
        if found := sorted(capture.trace.nodes):
            raise ValueError(f"{self.name}: {_EXPECTED}, got a function with the parameter '{found[0]}'")
        return result


_EXPECTED = "expected a torch.nn.Module, a bound method of one or a function without parameters"


def as_module(name: str, program: Any) -> torch.nn.Module:
    """A module as it is; a bound method of one, or a function without parameters, as a module.

    The function may be wrapped by handlers, such as ``config_enumerate``.

    Args:
        name: its name in error messages.
        program: a model or a guide.

    Raises:
        TypeError: something else, or a function that uses a module, whose parameters could not be found.
    """
    if isinstance(program, torch.nn.Module):
        return program
    if inspect.ismethod(program) and isinstance(program.__self__, torch.nn.Module):
        return BoundMethod(program)
    function = inspect.unwrap(program)
    if not inspect.isfunction(function):
        raise TypeError(f"{name}: {_EXPECTED}, got {type(program).__name__}")
    uses = inspect.getclosurevars(function)
    for variable, value in {**uses.globals, **uses.nonlocals}.items():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{name}: {_EXPECTED}, got a function that uses the module '{variable}'")
    return Function(name, program)


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
