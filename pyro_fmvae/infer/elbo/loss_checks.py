"""Checks of a loss and of its gradients, which name the sites to blame."""

from collections.abc import Callable, Mapping

import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.infer.elbo.terms import Term


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
