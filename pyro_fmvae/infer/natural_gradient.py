"""Natural-gradient steps for natural parameters, one torch optimiser for everything else."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyro_fmvae.distributions import NaturalParameter

# Step sizes for natural gradients.


@dataclass(frozen=True)
class RobbinsMonro:
    """ρ_τ = (τ0 + τ)^(-κ) for τ = 1, 2, ...: Paquet et al. (2018), eq. 7; Hoffman et al. (2013), eq. 26.

    Args:
        delay: τ0 >= 0 and finite, in steps; a larger one damps the first steps.
        forgetting: κ in (1/2, 1], how fast old batches are forgotten.
        first_step: if given, ρ is rescaled so that ρ_1 is this; the paper's 0.01 does not follow from its τ0
            and κ.

    Raises:
        ValueError: an argument out of range.
    """

    delay: float = 2000.0
    forgetting: float = 0.7
    first_step: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay < math.inf:
            raise ValueError(f"delay: expected a finite number >= 0, got {self.delay}")
        if not 0.5 < self.forgetting <= 1:
            raise ValueError(f"forgetting: expected a number in (1/2, 1], got {self.forgetting}")
        if self.first_step is not None and not 0 < self.first_step <= 1:
            raise ValueError(f"first_step: expected a number in (0, 1], got {self.first_step}")

    def __call__(self, step: int) -> float:
        """ρ of the given step, counted from 0; in (0, 1]."""
        if self.first_step is None:
            return (self.delay + step + 1) ** -self.forgetting
        return self.first_step * ((self.delay + step + 1) / (self.delay + 1)) ** -self.forgetting


# Torch optimisers refuse natural parameters, whose gradients are natural gradients already.


def refuse_natural_parameters(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """A hook before the step of every torch optimiser, those that Pyro's wrap included.

    Raises:
        TypeError: a ``NaturalParameter`` with a gradient is among its parameters; none of them has moved.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, NaturalParameter) and p.grad is not None:
                kind, shape = type(optimizer).__name__, list(p.shape)
                raise TypeError(
                    f"{kind} was given a NaturalParameter of shape {shape}, whose gradient is a natural "
                    "gradient already: train the program by SVI(model, guide, NaturalGradient(rate), loss), "
                    "with NaturalGradient(rate, partial(torch.optim.Adam, lr=1e-3)) if it has other "
                    "parameters too, or give the guide standard parameters (to_standard)"
                )


class NaturalGradient(PyroOptim):
    """λ ← (1 - ρ) λ + ρ λ* for every ``NaturalParameter``, and one torch optimiser over all other parameters.

    The gradient that ``TraceConjugate_ELBO`` (or any loss over natural posteriors) leaves at a natural
    parameter is the natural gradient λ - λ* already, so the step is λ ← λ - ρ · grad: Paquet et al. (2018),
    equations 7, 13 and 14. With ρ = 1 and all data in the batch it is the exact conjugate posterior given
    the other posteriors. The gradient has to be that of the *total* loss, with data scaled to N points; a
    loss that was divided by anything is refused by ``TraceConjugate_ELBO``, while Pyro's validation is on.

    Posteriors that a log-density has products of, such as those of a location and its precision, could undo
    each other's steps of rate 1. They move by turns, one after another in successive steps, so that steps of
    rate 1 on all data never raise the loss: they are coordinate ascent. Smaller steps move all at once.

    Pyro's own ELBOs draw from natural posteriors. They leave noisy but unbiased natural gradients: draws are
    made from standard parameters, whose gradients reach λ through the inverse Fisher matrix. Take several
    particles and a small or falling rate. A noisy step may leave the family's domain, which is an error.

    It is a ``PyroOptim``, so ``SVI(model, guide, optim, loss)`` takes it. Without SVI, call it with the
    parameters after ``backward``; it drops their gradients, so that none is counted twice.

    Args:
        rate: ρ in (0, 1], or a schedule that maps the number of steps taken so far to ρ.
        others: makes a torch optimiser from a list of parameters, such as ``partial(torch.optim.Adam,
            lr=1e-3)``. It is called once, at construction if ``parameters`` are given, else at the first
            step. Not needed where natural parameters are all that is learnt.
        parameters: all parameters to optimise, if known beforehand; later ones are added as they come. Give
            them if :meth:`state_dict` is to be loaded in another process: ``SVI`` hands over parameters as a
            set, whose order is certain only for those in Pyro's parameter store.

    Attributes:
        others: the torch optimiser, for learning-rate schedulers; None until there is one.
        steps: the number of natural-gradient steps taken.

    Raises:
        ValueError: ρ outside (0, 1], at construction or at the step.
        TypeError: ``others`` is an optimiser of Pyro's, or its result is no torch optimiser, or there is none
            at a step that other parameters have gradients for.
    """

    def __init__(
        self,
        rate: float | Callable[[int], float],
        others: Callable[[list[Tensor]], Optimizer] | None = None,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        super().__init__(torch.optim.SGD, {})
        if not callable(rate):
            _check_rate(rate)
        if isinstance(others, PyroOptim):
            raise TypeError(_wrong_maker("one of Pyro's"))
        self.rate = rate
        self.steps = 0
        self.others: Optimizer | None = None
        self._make_others = others
        self._known: set[Tensor] = set()
        self._loaded: dict[str, Any] | None = None
        self._restored = 0
        self.adopt(p for p in parameters if not isinstance(p, NaturalParameter))

    @property
    def current_rate(self) -> float:
        """ρ of the next step.

        Raises:
            ValueError: the schedule gives a step size outside (0, 1].
        """
        rate = self.rate(self.steps) if callable(self.rate) else self.rate
        _check_rate(rate)
        return rate

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """Take a step on all given parameters that have a gradient, and drop the gradients.

        They are dropped if it fails, too; where a step size is out of range, nothing has moved.
        """
        params = list(params)
        try:
            _ = self.current_rate
            self.step_others(params)
            self.step_natural(params)
        finally:
            for p in params:
                p.grad = None

    def step_natural(self, params: Iterable[Tensor]) -> None:
        """Take the natural-gradient step on the natural parameters among ``params``."""
        rate = self.current_rate
        with torch.no_grad():
            for p in dict.fromkeys(params):  # each once, even if it has several names
                if isinstance(p, NaturalParameter) and p.grad is not None:
                    turn = 0 if p.moves is None else self.turn(len(p.moves) - 1)
                    step_towards_posterior(p, p.grad, rate, turn)
        self.steps += 1

    def turn(self, count: int) -> int:
        """The turn of the next step out of so many; ``count`` itself for a step of all at once."""
        return self.steps % count if self.current_rate == 1 else count

    def step_others(self, params: Iterable[Tensor]) -> None:
        """Take the torch optimiser's step on the other parameters among ``params``, and no further ones."""
        given = [p for p in dict.fromkeys(params) if not isinstance(p, NaturalParameter)]
        self.check_others(p for p in given if p.grad is not None)
        self.adopt(given)
        if self.others is None:
            return
        absent = self._known.difference(given) if len(given) < len(self._known) else ()
        gradients = [(p, p.grad) for p in absent if p.grad is not None]
        for p, _ in gradients:
            p.grad = None
        self.others.step()
        for p, grad in gradients:
            p.grad = grad

    def check_others(self, params: Iterable[Tensor]) -> None:
        """Refuse to learn parameters that are not natural without an optimiser for them.

        Raises:
            TypeError: there are some, and ``others`` was not given.
        """
        shapes = [str(list(p.shape)) for p in params]
        if shapes and self._make_others is None:
            raise TypeError(
                _wrong_maker(f"none for the {len(shapes)} parameters of shape {', '.join(shapes)}")
                + " (of networks, or of drawn sites: elbo.plan(model, guide, *args) names those)"
            )

    def knows(self, p: Tensor) -> bool:
        """True if the torch optimiser has the parameter."""
        return p in self._known

    def adopt(self, params: Iterable[Tensor]) -> None:
        """Give the torch optimiser, if any, parameters that are not natural and that it does not have yet."""
        new = [p for p in params if p not in self._known]
        if not new or self._make_others is None:
            return
        new.sort(key=lambda p: pyro.get_param_store().param_name(p) or "")  # SVI hands over a set
        if self.others is None:
            made = self._make_others(new)
            if not isinstance(made, Optimizer):
                raise TypeError(_wrong_maker(f"what makes a {type(made).__name__}"))
            self.others = made
        else:
            self.others.add_param_group({"params": new})
        self._known.update(new)
        self._restore()

    def _restore(self) -> None:
        """Give the parameter groups that exist by now the state that was loaded for them."""
        if self.others is None or self._loaded is None:
            return
        now, then, done = self.others.state_dict(), self._loaded, self._restored
        groups = then["param_groups"][done : len(now["param_groups"])]
        state = {i: then["state"][i] for group in groups for i in group["params"] if i in then["state"]}
        self.others.load_state_dict(
            {"state": {**now["state"], **state}, "param_groups": [*now["param_groups"][:done], *groups]}
        )
        self._restored = done + len(groups)
        if self._restored == len(then["param_groups"]):
            self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """Steps taken, and the torch optimiser's state, with loaded states whose groups are still to come."""
        if self.others is None:
            return {"steps": self.steps, "others": self._loaded}
        others, loaded = self.others.state_dict(), self._loaded
        if loaded is not None:
            later = loaded["param_groups"][self._restored :]
            numbers = {number for group in later for number in group["params"]}
            state = {number: state for number, state in loaded["state"].items() if number in numbers}
            groups = [*others["param_groups"], *later]
            others = {"state": {**others["state"], **state}, "param_groups": groups}
        return {"steps": self.steps, "others": others}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`; states of unknown parameters wait until these are known.

        Raises:
            ValueError: parameter groups of other sizes than those of the state, or no number of steps.
        """
        steps = state_dict["steps"]
        if type(steps) is not int or steps < 0:
            raise ValueError(f"steps: expected a number of steps, got {steps!r}")
        self.steps = steps
        self._loaded, self._restored = state_dict["others"], 0
        self._restore()

    def save(self, filename: str) -> None:
        """Refuse: Pyro's own would pickle.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("save: would pickle; write state_dict() to a format that doesn't")

    def load(self, filename: str, map_location: Any = None) -> None:
        """Refuse: Pyro's own would unpickle.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("load: would unpickle; read a state and give it to load_state_dict()")

    get_state = state_dict
    set_state = load_state_dict


def step_towards_posterior(
    natural: NaturalParameter, grad: Tensor, rate: float | Tensor, turn: int | Tensor = 0
) -> None:
    """λ ← λ - ρ · grad where it is λ's turn, in place: the step of every λ, in eager and in captured steps.

    The product is rounded before the difference is, so that both round alike. (``sub_`` with ``alpha``, which
    may round only once, takes no tensor for ρ; a compiler for GPUs may contract the two in the same way.)

    Args:
        natural: λ.
        grad: its natural gradient λ - λ*.
        rate: ρ; a captured step reads it from a tensor, float64 on the device of λ.
        turn: the row of ``natural.moves``, if there are any; or a tensor of one.
    """
    if natural.moves is not None:
        rate = rate * (
            natural.moves.index_select(0, turn.long().view(1)).squeeze(0)
            if isinstance(turn, Tensor)
            else natural.moves[turn]
        )
    natural.sub_(rate * grad)


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"rate: expected a step size in (0, 1], got {rate}")


def _wrong_maker(what: str) -> str:
    return (
        "others: expected a function from parameters to a torch optimiser, such as "
        f"partial(torch.optim.Adam, lr=1e-3), got {what}"
    )


# Optimisers: natural gradients beside a torch optimiser, and their step sizes.
#
# Importing it makes every torch optimiser refuse natural parameters.


register_optimizer_step_pre_hook(refuse_natural_parameters)
