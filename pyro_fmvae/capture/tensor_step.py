"""A whole step as a function on tensors, to be recorded."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyro
import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_fmvae.capture.call import Call
from pyro_fmvae.capture.recorded_adam import RecordedAdam
from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.elbo.terms import sum_terms
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import WEIGHTS
from pyro_fmvae.infer.svi import ConjugateSVI
from pyro_fmvae.optim.natural_gradient import step_towards_posterior
from pyro_fmvae.ranks import FlatSums, Share


class TensorStep:
    """The step of a ``ConjugateSVI``: called with tensors, it runs the program and changes λ in place.

    Args:
        svi: whose step.
        call: the arguments of the program.
        params: its parameters, in its order.
        inside: the optimiser, if it is to take its step inside.

    Attributes:
        natural, others: natural parameters, and all others, of those that are not frozen.
        turns: how many turns the natural parameters take.
        scalars: ρ, the turn, the ELBO's weights and the learning rates of ``inside``: 0-dimensional tensors
            to be given behind the data.
        checked: whether the loss that is returned is NaN, and nothing else is changed, if the loss or a
            gradient is not finite: with validation on.
        used: after a call, the parameters whose gradients it returned behind the loss.
        sites: after a call, the names of the sites whose terms it returned behind the gradients.
        moved: after a call, those that ``inside`` changed.
        groups: after a call, how many results there are up to each place where the recording is cut: before a
            sum over ranks, and before the second pass of ``recompute``.
        sums: after a call, for each part of the cut recording how many vectors to sum follow it.
    """

    def __init__(
        self, svi: ConjugateSVI, call: Call, params: Sequence[Tensor], inside: RecordedAdam | None
    ) -> None:
        self.svi, self.call, self.inside = svi, call, inside
        learnt = [p for p in params if p.requires_grad]
        self.natural = [p for p in learnt if isinstance(p, NaturalParameter)]
        self.others = [p for p in learnt if not isinstance(p, NaturalParameter)]
        self.turns = max((len(p.moves) - 1 for p in self.natural if p.moves is not None), default=1)
        self.checked = is_validation_enabled()
        self.used: list[Tensor] = []
        self.sites: list[str] = []
        self.moved: list[Tensor] = []
        self.groups, self.sums = list[int](), list[int]()
        device = next((tensor.device for tensor in (*call.data, *params)), torch.device("cpu"))
        rate_device = self.natural[0].device if self.natural else device
        rates = inside.rates if inside else ()
        self.scalars = [
            *(torch.zeros((), dtype=torch.float64, device=rate_device) for _ in range(2)),
            *(torch.zeros((), device=device) for _ in WEIGHTS),
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in rates),
        ]

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that a call takes: data, then scalars."""
        return [*self.call.data, *self.scalars]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The loss, the gradients of ``used``, and the terms of the loss at ``sites``.

        With ``recompute`` and ``checked``, whether the refreshed gradients of λ are finite comes last. Where
        ranks share the batch, the vectors of :class:`FlatSums` come before what is computed of their sums.
        """
        svi, number = self.svi, len(self.call.data)
        args, kwargs = self.call.arguments(inputs)
        rate, turn, *rest = inputs[number:]
        weights, learning_rates = rest[: len(WEIGHTS)], rest[len(WEIGHTS) :]
        second = list[Tensor]()
        with pyro.validation_enabled(False), torch.enable_grad(), self._weights(weights):
            traces, terms = svi._terms(args, kwargs)
            loss = sum_terms(terms)
            grads = _gradients(loss, [*self.others, *self.natural])
            loss, grads, first = self._summed(loss, grads)
            slopes = {p: grads[p] for p in self.others if p in grads}
            ok = _finite(loss, grads.values()) if self.checked else None
            if ok is not None:
                loss = torch.where(ok, loss, torch.nan)
            if self.inside:
                with torch.no_grad():
                    self.inside.step(slopes, learning_rates, ok)
            if svi.recompute:
                refreshed = sum_terms(svi._refreshed(traces, args, kwargs))
                refreshed, grads, second = self._summed(refreshed, _gradients(refreshed, self.natural))
                ok = ok if ok is None else ok & _finite(refreshed, grads.values())
        self.used, self.moved = ([], list(slopes)) if self.inside else (list(slopes), [])
        with torch.no_grad():
            for p in self.natural:
                if p in grads:
                    grad = grads[p] if ok is None else torch.where(ok, grads[p], 0.0)
                    step_towards_posterior(p, grad, rate, turn)
        last = (ok,) if svi.recompute and ok is not None else ()
        self.sites = [term.name for term in terms]
        results = (loss, *(slopes[p] for p in self.used), *(term.value for term in terms))
        parts = [first, results, second] if svi.recompute else [first]
        self.groups = [len(part) for part in parts if part]
        self.sums = [0 if part is results else len(part) for part in parts if part] + [0]
        return (*first, *results, *second, *last)

    def _summed(
        self, loss: Tensor, grads: dict[Tensor, Tensor]
    ) -> tuple[Tensor, dict[Tensor, Tensor], list[Tensor]]:
        """A loss and its gradients over all ranks, once the vectors behind them have been summed."""
        share: Share | None = self.svi._share
        if share is None:
            return loss.detach(), grads, []
        with torch.no_grad():
            sums = FlatSums([loss.detach().double(), *grads.values()], share.weight)
            total, *parts = sums.parts(sums.flats)
        return total, dict(zip(grads, parts, strict=True)), sums.flats

    @contextmanager
    def _weights(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Put tensors in the place of the ELBO's weights, unless those leave out a part of it."""
        elbo = self.svi.elbo
        kept = {name: getattr(elbo, name) for name in WEIGHTS}
        for (name, value), weight in zip(WEIGHTS.items(), weights, strict=True):
            if not is_static(kept[name], value):
                setattr(elbo, name, weight)
        try:
            yield
        finally:
            for name, weight in kept.items():
                setattr(elbo, name, weight)


def is_static(weight: float | Tensor, value: float) -> bool:
    """True if a weight is the number that leaves out a part of the loss, and so shapes the program."""
    return not isinstance(weight, Tensor) and weight == value


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """The gradients of a loss, of those leaves that have one."""
    if not (leaves and loss.requires_grad):
        return {}
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return {p: grad for p, grad in zip(leaves, grads, strict=True) if grad is not None}


def _finite(loss: Tensor, grads: Iterable[Tensor]) -> Tensor:
    return torch.stack([loss, *(grad.sum().to(loss) for grad in grads)]).isfinite().all()
