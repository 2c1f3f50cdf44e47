"""Gibbs sweeps as recorded tensor programs, with chains as one more dimension of every tensor."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor

from pyro_fmvae.capture.playback import plain
from pyro_fmvae.capture.recording import CaptureError, Recording, record
from pyro_fmvae.infer.exact import GibbsKernel

_aten = torch.ops.aten


class ConjugateGibbs(GibbsKernel):
    """A kernel for ``pyro.infer.MCMC`` that draws each site of a plain program from its complete conditional.

    ::

        mcmc = MCMC(ConjugateGibbs(model), num_samples=1000, warmup_steps=100)
        mcmc.run(x)
        samples = mcmc.get_samples()

    A site has such a conditional where its family is found by what the program computes, given the values of
    all other sites. Coupled Gaussian sites are drawn as one vector. Discrete sites are drawn together by
    enumeration, which along ``pyro.markov`` is backward sampling, and one number at a time where they depend
    on each other. All other sites are left to ``fallback``. :meth:`plan` says what becomes of each site.

    Samples are those of all latent sites, discrete ones too, in the shapes and dtypes of the model. A sweep
    is recorded once in each run, as a plain tensor program, and replayed. :meth:`draw` replays it for all
    chains at once.

    Args:
        model: a program in Pyro's own distributions, with all of its data in each run.
        fallback: makes Pyro's kernel of the sites without such a conditional, from a model in which all other
            sites are observed: ``NUTS``, ``HMC`` or ``RandomWalkKernel``, say, or ``partial(HMC,
            step_size=0.1)``.
        init_strategy: gives the first values, as of :class:`~pyro.infer.NUTS`.
        eager: record nothing.

    Raises:
        ValueError: when it is set up, a subsampled plate, a shorthand such as ``Component``, or a discrete
            site of infinitely many values; in a sweep, a conditional that is not a distribution, or a draw
            that is not finite. The message names the site.
    """

    def __init__(self, *args: Any, eager: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eager = eager
        self._replay: Callable[..., tuple[Tensor, ...]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but what was recorded: a copy records its own."""
        return {**self.__dict__, "_replay": None}

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See :meth:`GibbsKernel.setup`; then record a sweep."""
        super().setup(warmup_steps, *args, **kwargs)
        self._replay = None if self.eager else self._recorded(self._values)

    def draw(
        self,
        *args: Any,
        num_samples: int = 1000,
        warmup_steps: int | None = None,
        num_chains: int = 4,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Draws of several chains, by name: [num_chains, num_samples, *shape of the site].

        All chains take each sweep together, for little more than the time of one. Where a fallback moves some
        sites, they run one after another.

        Args:
            args, kwargs: of the model.
            num_samples: of each chain.
            warmup_steps: sweeps before them; as many if None.
            num_chains: each from first values of its own.
        """
        warmup = num_samples if warmup_steps is None else warmup_steps
        with pyro.validation_enabled(False):
            chains, starts = [], []
            for _ in range(num_chains):
                GibbsKernel.setup(self, warmup, *args, **kwargs)
                starts.append(self._values)
                self._replay = None
                if self._rest or self.eager:
                    self._replay = None if self.eager else self._recorded(self._values)
                    chains.append(self._chain(self._values, num_samples, warmup))
            if not chains:
                self._replay = self._recorded(starts[0], num_chains)
                if self._replay is not None:
                    together = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
                    return self._chain(together, num_samples, warmup, dim=1)
                chains = [self._chain(start, num_samples, warmup) for start in starts]
        return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}

    def _chain(self, values: dict[str, Tensor], count: int, warmup: int, dim: int = 0) -> dict[str, Tensor]:
        kept = []
        for step in range(warmup + count):
            values = self.sample(values)
            if step >= warmup:
                kept.append(values)
        return {name: torch.stack([each[name] for each in kept], dim) for name in values}

    def sweep(self, values: dict[str, Tensor], proper: list[Tensor] | None = None) -> dict[str, Tensor]:
        """See :meth:`GibbsKernel.sweep`."""
        if self._replay is None:
            return super().sweep(values, proper)
        *found, are_proper = self._replay(*values.values())
        if not bool(are_proper.all()):
            if are_proper.dim():
                values = {name: value[~are_proper][0] for name, value in values.items()}
            super().sweep(values)  # it names the site
            raise ValueError(f"sites {list(values)}: a conditional is no proper distribution")
        return dict(zip(values, (value.clone() for value in found), strict=True))

    def _recorded(
        self, values: Mapping[str, Tensor], chains: int | None = None
    ) -> Callable[..., tuple[Tensor, ...]] | None:
        """A sweep of one chain or of several as a tensor program; None, with a warning, if there is none."""
        inputs = list(values.values())

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            proper: list[Tensor] = []
            with torch.no_grad(), poutine.block():
                found = GibbsKernel.sweep(self, dict(zip(values, tensors, strict=True)), proper)
            ones = torch.ones((), dtype=torch.bool)
            return *(found[name] for name in values), torch.stack([*proper, ones]).all()

        with pyro.validation_enabled(False):
            with torch.random.fork_rng(devices=[]), torch.no_grad(), poutine.block():
                GibbsKernel.sweep(self, dict(values))  # which finds out what a recording may not ask
            try:
                recording = record(function, inputs)
                if chains is None:
                    return plain(recording)
                _without_writes(recording)
                batched = torch.vmap(partial(_run, recording), randomness="different")
                return plain(
                    record(batched, [value.expand(chains, *value.shape).clone() for value in inputs])
                )
            except CaptureError as error:
                warnings.warn(f"sweeps run eagerly, and chains one by one: {error}", stacklevel=4)
                return None


def _run(recording: Recording, *inputs: Tensor) -> tuple[Tensor, ...]:
    return recording.function()(*inputs, *recording.state)


def _without_writes(recording: Recording) -> None:
    """Replace operations in place, which ``vmap`` has no rule for, in a program of draws.

    These are noise in fresh memory, and a bound that a draw is kept above.
    """
    graph = recording.graph
    for node in list(graph.nodes):
        written: list[Any] = [node]
        if node.target is _aten.clamp_.default:
            written.append(node.args[0])
            while written[-1].target in (_aten.detach.default, _aten.alias.default):
                written.append(written[-1].args[0])
            call: Any = _aten.clamp.default, node.args, node.kwargs
        elif node.target is _aten.normal_.default and len(node.args) == 1:
            layout = node.meta["layouts"][0]
            options = {"dtype": layout.dtype, "device": layout.device}
            call = _aten.randn.default, (list(layout.shape),), options
        else:
            continue
        with graph.inserting_after(node):
            new = graph.create_node("call_function", *call)
        new.meta = dict(node.meta)
        order = {each: number for number, each in enumerate(graph.nodes)}
        later = {each for each, number in order.items() if number > order[new]}
        for each in written:
            each.replace_all_uses_with(new, later.__contains__)
        graph.erase_node(node)
