"""SVI with a choice of when the responsibilities for the natural-gradient step are computed."""

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer import SVI
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.elbo import Term, TraceConjugate_ELBO, propagate_back, sum_terms
from pyro_fmvae.infer.elbo.plain import PlainProgram, as_module
from pyro_fmvae.infer.elbo.shorthand import PlaceholderMessenger, Run
from pyro_fmvae.infer.elbo.structure import Structure, subsamples
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import check_gradients
from pyro_fmvae.infer.ranks import FlatSums, Ranks, Share

Traces = list[Run]
OPTIMISER = (
    "current_rate",
    "adopt",
    "check_others",
    "knows",
    "step_others",
    "step_natural",
    "turn",
)  # the part of NaturalGradient that is used


class ConjugateSVI(SVI):
    """``SVI`` for :class:`TraceConjugate_ELBO`, in either order of Paquet et al. (2018), Section 2.4.

    By default, as in ``SVI``, λ takes its step with the responsibilities of the pass that gave the networks'
    gradients. With ``recompute``, the networks step first, the guide is run again on the same minibatch, and
    λ steps with the responsibilities at the updated encoder: the paper's order, at the price of one more pass
    through the encoder.

    Args:
        model, guide: the program.
        optim: a ``NaturalGradient``.
        loss: the ELBO, kept as ``elbo``.
        recompute: whether to use the paper's order.
        autocast: ``torch.bfloat16`` to run the networks' matrix products and convolutions in it. λ, the
            prior's products and the loss stay in float64 and float32. Networks of your own should end in
            ``.float()``, as the library's do: distributions take their output as it is.
        group: a ``torch.distributed`` group whose processes share the work: see below. None: this process
            does it alone.

    With a ``group``, every process makes the same calls with the same whole batch, from the same parameters
    and the same random state. Each rank runs the program on its share of the rows (of every tensor argument,
    in its first dimension that is as long as the batch), with random numbers of its own. Loss and
    gradients, natural ones included, are averaged with weights B_r / B. Afterwards all ranks have the
    same parameters, to the bit,
    and these are those of a single process in distribution. The program needs a plate
    ``pyro.plate(..., N, subsample=x)``, by which its loss is scaled; what compares the points of a batch
    compares those of a share. An error on one rank is raised on all.

    Raises:
        ValueError: ``optim`` is no ``NaturalGradient``, or ``loss`` no ``TraceConjugate_ELBO``; or, with a
            ``group``, a module that normalises over the batch.
    """

    def __init__(
        self,
        model: Any,
        guide: Any,
        optim: Any,
        loss: TraceConjugate_ELBO,
        recompute: bool = False,
        *,
        autocast: torch.dtype | None = None,
        group: Any = None,
    ) -> None:
        if not all(hasattr(type(optim), name) for name in OPTIMISER):
            raise ValueError(
                "optim: expected a NaturalGradient, such as NaturalGradient(0.1, partial(torch.optim.Adam, "
                f"lr=1e-3)), got {getattr(optim, '__name__', type(optim).__name__)}"
            )
        if not isinstance(loss, TraceConjugate_ELBO):
            raise ValueError(f"loss: expected a TraceConjugate_ELBO, got {type(loss).__name__}")
        super().__init__(model, guide, optim, loss=loss)
        self.elbo = loss
        self.recompute = recompute
        self.autocast = autocast
        self.ranks = Ranks(group)
        if group is not None:
            _refuse_batch_norm(model, guide)
        self._share: Share | None = None  # of the step under way

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the program with its modules, and the optimiser with its state.

        Raises:
            TypeError: model or guide is a function that uses a module, which a copy would train too.
            ValueError: parameters are in Pyro's global store, of which there is one only.
        """
        as_module("model", self.model)
        as_module("guide", self.guide)
        stored = [name for name, p in pyro.get_param_store().named_parameters() if self.optim.knows(p)]
        if stored:
            raise ValueError(
                f"deepcopy: the parameter '{stored[0]}' is in Pyro's global store, so that a copy would "
                "train it too; make it a torch.nn.Parameter of a module"
            )
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self._copied(), memo))
        return new

    def _copied(self) -> dict[str, Any]:
        """Attributes that a copy takes over."""
        return self.__dict__

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on a batch; returns the loss before it, in nats, for all N points.

        Raises:
            ValueError: the loss, a gradient or ρ is out of range; no parameter has changed then, unless
                it was found in the second pass of ``recompute``. Gradients are dropped in any case.
        """
        return self._own_step(args, kwargs, wait=True).item()

    def step_async(self, *args: Any, **kwargs: Any) -> Tensor:
        """:meth:`step` that returns the loss as a tensor, and does not wait for a GPU.

        A loss or gradient that is not finite may be found by the next step, or by :meth:`settle`. No
        parameter has changed in that step, if the optimiser is a fused one.

        Returns:
            The loss before the step, in nats, for all N points, 0-dimensional.

        Raises:
            ValueError: as :meth:`step`.
        """
        return self._own_step(args, kwargs, wait=False)

    def settle(self) -> None:
        """Wait for the last step, and raise what :meth:`step` would have raised."""

    def _own_step(self, args: Any, kwargs: Any, wait: bool) -> Tensor:
        """The step, on this rank's rows."""
        if self.ranks.alone:
            return self._step(args, kwargs, wait)
        self._share = Share.of(_rows(args, kwargs), self.ranks.rank, self.ranks.size)
        args, kwargs = self._share.cut((args, kwargs))
        with self.ranks.own_draws():
            return self._step(args, kwargs, wait)

    def _step(self, args: Any, kwargs: Any, wait: bool) -> Tensor:
        with self.ranks.agreeing(), poutine.trace(param_only=True) as capture:
            traces, terms = self._terms(args, kwargs)
            loss = self.elbo.total(terms)
        return self._finish(traces, loss, capture.trace, args, kwargs)

    def _finish(self, traces: Traces, loss: Tensor, statements: Trace, args: Any, kwargs: Any) -> Tensor:
        """Backward pass and update, once the program has run; ``statements`` traces its parameters."""
        named = {name: site["value"].unconstrained() for name, site in statements.nodes.items()}
        params = list(dict.fromkeys(named.values()))  # in program order; a shared parameter once
        try:
            with self.ranks.agreeing():
                propagate_back(loss, statements, lambda: self._terms(args, kwargs)[1])
            total = self._add(loss, params)
            if self.recompute:
                _ = self.optim.current_rate  # checked before anything moves
                self.optim.step_others(params)
                natural = {n: p for n, p in named.items() if isinstance(p, NaturalParameter)}
                with self.ranks.agreeing():
                    self._refresh(traces, natural, args, kwargs)
                self._add(loss, natural.values())
                self.optim.step_natural(params)
            else:
                self.optim(params)
        finally:
            for p in params:
                p.grad = None
        return total.detach()

    def _add(self, loss: Tensor, params: Iterable[Tensor]) -> Tensor:
        """Put the sums over ranks in the place of gradients; returns that of the loss."""
        if self._share is None:
            return loss
        own = [p.grad for p in params if p.grad is not None]
        sums = FlatSums([loss.detach().double(), *own], self._share.weight)
        self.ranks.add(sums.flats)
        total, *grads = sums.parts()
        for grad, found in zip(own, grads, strict=True):
            grad.copy_(found)
        return total

    def _refresh(self, traces: Traces, natural: Mapping[str, Tensor], args: Any, kwargs: Any) -> None:
        """Replace the gradients of λ by ones at the current encoder, in a second pass over the guide."""
        loss = sum_terms(self._refreshed(traces, args, kwargs))
        if not (natural and loss.requires_grad):
            return
        leaves = list(natural.values())
        for p, grad in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
            p.grad = grad
        if is_validation_enabled():
            check_gradients(natural, lambda: self._refreshed(traces, args, kwargs))

    def _terms(self, args: Any, kwargs: Any) -> tuple[Traces, list[Term]]:
        """Run the program; its traces, and the terms of its loss, averaged over the particles."""
        with self._autocast(args, kwargs):
            traces = self.elbo.traces(self.model, self.guide, *args, **kwargs)
            if self._share is not None and self._share.weight < 1:
                _check_plate(traces, self._share.stop - self._share.start)
            return traces, self.elbo.average([self.elbo.terms_of(*pair) for pair in traces])

    def _refreshed(self, traces: Traces, args: Any, kwargs: Any) -> list[Term]:
        """The terms that λ appears in, from another run of the guide alone; in plain programs, of both."""
        with self._autocast(args, kwargs):
            return self.elbo.average([self._conjugate_terms(*pair, args, kwargs) for pair in traces])

    def _conjugate_terms(
        self, program: Structure | PlainProgram, guide: Trace, args: Any, kwargs: Any
    ) -> list[Term]:
        if isinstance(program, PlainProgram):
            vectorize = self.elbo.vectorize_particles
            run: Any = self.elbo._get_vectorized_trace if vectorize else self.elbo._get_trace
            with (
                poutine.block(),
                poutine.replay(trace=subsamples(program.model)),
                poutine.replay(trace=subsamples(guide)),
            ):
                return self.elbo.terms_of(*run(self.model, self.guide, args, kwargs))
        rerun = self.guide
        if self.elbo.vectorize_particles:
            rerun = self.elbo._vectorized_num_particles(rerun)
        with poutine.block(), PlaceholderMessenger():
            rerun = poutine.replay(rerun, trace=subsamples(guide))
            return self.elbo.conjugate_terms(program, poutine.trace(rerun).get_trace(*args, **kwargs))

    def _autocast(self, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        torch.clear_autocast_cache()  # of an autocast around steps: weights have moved since it cast them
        if self.autocast is None:
            return nullcontext()
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        return torch.autocast(next(iter(devices - {"cpu"}), "cpu"), self.autocast)


def _rows(args: Any, kwargs: Any) -> int:
    """Length of the first tensor among the arguments, with a dimension at all."""
    tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim())
    first = next(tensors, None)
    if first is None:
        raise ValueError("group: expected a tensor of rows among the arguments of the step, to share out")
    return len(first)


def _check_plate(traces: Traces, rows: int) -> None:
    """Raise a ValueError unless a plate of so many rows stands for more points, by which a loss is scaled."""
    sites = [site for pair in traces for part in (pair[0].model, pair[1]) for site in part.nodes.values()]
    frames = {frame for site in sites for frame in site.get("cond_indep_stack", ())}
    if not any(frame.full_size not in (None, rows) and frame.size == rows for frame in frames):
        raise ValueError(
            f"group: expected a plate of the {rows} rows of a rank, pyro.plate(..., N, subsample=x), in the "
            "program; rows that a plate chooses itself, or that are all its points, cannot be shared out"
        )


def _refuse_batch_norm(*programs: Any) -> None:
    """Raise a ValueError if a module, or that of a method, normalises over the batch."""
    for program in programs:
        owner = getattr(program, "__self__", program)
        for name, part in owner.named_modules() if isinstance(owner, torch.nn.Module) else ():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"group: '{name}' is a {type(part).__name__}, whose statistics would be those of each "
                    "rank's rows; normalise over something else than the batch, as GroupNorm does"
                )
