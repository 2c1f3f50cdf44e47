"""Kernels of Pyro's MCMC whose work is recorded as tensor programs: potentials, and sweeps of Gibbs sampling.

Chains of Gibbs sampling are one more dimension of every tensor.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer import NUTS
from torch import Tensor

from pyro_fmvae.capture.playback import compiled, plain
from pyro_fmvae.capture.recording import CaptureError, Recording, record
from pyro_fmvae.infer.exact import GibbsKernel

Replay: TypeAlias = Callable[..., tuple[Tensor, ...]]
_aten = torch.ops.aten
_OTHERS = ""  # no site's name


class CapturedNUTS(NUTS):
    """``pyro.infer.NUTS`` with the potential and its gradient recorded once and replayed.

    ::

        collapsed = collapse(model)
        mcmc = MCMC(CapturedNUTS(collapsed), num_samples=1000)
        mcmc.run(y)

    Potential and gradient are those of ``NUTS``. The model takes all of its data in each run and reads
    nothing but tensors. A potential that can't be recorded runs eagerly, with a warning that names the line.

    Args:
        args, kwargs: of ``NUTS``, with a model.
        compile: fuse the operations by ``torch.compile``, which takes half a minute and needs a C++ compiler.
    """

    def __init__(self, *args: Any, compile: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compile = compile

    def _initialize_model_properties(self, model_args: Any, model_kwargs: Any) -> None:
        super()._initialize_model_properties(model_args, model_kwargs)
        self.potential_fn: Any = _Potential(self.potential_fn, self.compile)


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
    Masks are those of data: latent numbers that are masked out keep their prior.

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
        compile: fuse the operations by ``torch.compile``, which takes seconds and needs a C++ compiler.

    Raises:
        ValueError: when it is set up, a subsampled plate, a shorthand such as ``Component``, or a discrete
            site of infinitely many values; in a sweep, a conditional that is not a distribution, or a draw
            that is not finite. The message names the site.
    """

    def __init__(self, *args: Any, eager: bool = False, compile: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eager, self.compile = eager, compile
        self._replays: dict[str, Replay] = {}

    def __getstate__(self) -> dict[str, Any]:
        """All but what was recorded: a copy records its own."""
        return {**self.__dict__, "_replays": {}}

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See :meth:`GibbsKernel.setup`; then record a sweep."""
        self._setup(warmup_steps, args, kwargs)
        self._record(self._values)

    def _setup(self, warmup_steps: int, args: Any, kwargs: Any) -> None:
        super().setup(warmup_steps, *args, **kwargs)
        if self._rest and not self.eager:
            self._inner.potential_fn = _Potential(self._inner.potential_fn, self.compile, self)

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

        Raises:
            ValueError: there is nothing to draw.
        """
        warmup = num_samples if warmup_steps is None else warmup_steps
        for name, number, least in (
            ("num_samples", num_samples, 1),
            ("warmup_steps", warmup, 0),
            ("num_chains", num_chains, 1),
        ):
            if number < least:
                raise ValueError(f"{name}: expected at least {least}, got {number}")
        with pyro.validation_enabled(False):
            chains, starts = [], []
            for _ in range(num_chains):
                self._setup(warmup, args, kwargs)
                starts.append(self._values)
                if self._rest:
                    self._record(self._values)
                    chains.append(self._chain(self._values, num_samples, warmup))
            if not chains and self._record(starts[0], num_chains):
                together = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
                return self._chain(together, num_samples, warmup, dim=1)
            chains = chains or [self._chain(start, num_samples, warmup) for start in starts]
        return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}

    def _chain(self, values: dict[str, Tensor], count: int, warmup: int, dim: int = 0) -> dict[str, Tensor]:
        kept = []
        for step in range(warmup + count):
            values = self.sample(values)
            if step >= warmup:
                kept.append(values)
        return {name: torch.stack([each[name] for each in kept], dim) for name in values}

    def draw_number(self, name: str, here: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        if name not in self._replays:
            return super().draw_number(name, here, values)
        (found,) = self._replays[name](here, *values.values())
        return {**values, name: found.clone()}

    def draw_others(self, values: dict[str, Tensor], proper: list[Tensor] | None = None) -> dict[str, Tensor]:
        if not self._replays:
            return super().draw_others(values, proper)
        *found, are_proper = self._replays[_OTHERS](*values.values())
        if not bool(are_proper.all()):
            if are_proper.dim():
                values = {name: value[~are_proper][0] for name, value in values.items()}
            super().draw_others(values)  # it names the site
            raise ValueError(f"sites {list(values)}: a conditional is no proper distribution")
        return dict(zip(values, (value.clone() for value in found), strict=True))

    def _record(self, values: Mapping[str, Tensor], chains: int | None = None) -> bool:
        """Record a sweep of one chain or of several; False, with a warning, where that can't be done."""
        self._replays, inputs = {}, list(values.values())

        def others(*tensors: Tensor) -> tuple[Tensor, ...]:
            proper = [torch.ones((), dtype=torch.bool)]
            with torch.no_grad(), poutine.block():
                found = GibbsKernel.draw_others(self, dict(zip(values, tensors, strict=True)), proper)
            return *(found[name] for name in values), torch.stack(proper).all()

        def number(name: str, here: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(values, tensors, strict=True))
            with torch.no_grad(), poutine.block():
                return (GibbsKernel.draw_number(self, name, here, given)[name],)

        if self.eager:
            return False
        with pyro.validation_enabled(False), torch.random.fork_rng(devices=[]):
            with torch.no_grad(), poutine.block():
                GibbsKernel.sweep(self, dict(values))  # which finds out what a recording may not ask
            try:
                replays = {
                    name: _replay(partial(number, name), self.compile, inputs, chains, here)
                    for name, here in dict(self._numbers).items()
                }
                self._replays = {**replays, _OTHERS: _replay(others, self.compile, inputs, chains)}
            except CaptureError as error:
                warnings.warn(f"sweeps run eagerly, and chains one by one: {error}", stacklevel=4)
        return bool(self._replays)


class _Potential:
    """A potential and its gradient, recorded at the first call with values of these dtypes.

    Args:
        potential: a function of unconstrained values by name.
        compile: fuse its operations.
        kernel: of Gibbs sampling, whose values of all other sites differ between calls; None: there are none.
    """

    def __init__(self, potential: Any, compile: bool, kernel: GibbsKernel | None = None) -> None:
        self._potential, self._compile, self._kernel = potential, compile, kernel
        self._replays: dict[tuple[torch.dtype, ...], Replay] = {}
        self._is_eager = False

    def __getstate__(self) -> dict[str, Any]:
        """All but what was recorded: a copy records its own."""
        return {**self.__dict__, "_replays": {}}

    def __call__(self, params: Mapping[str, Tensor]) -> Tensor:
        """The potential, with a gradient."""
        dtypes = tuple(value.dtype for value in params.values())
        if dtypes not in self._replays and not self._is_eager:
            self._record(params, dtypes)
        if self._is_eager:
            return cast(Tensor, self._potential(params))
        return cast(Tensor, _Slope.apply(self._replays[dtypes], self._others().values(), *params.values()))

    def _others(self) -> dict[str, Tensor]:
        if self._kernel is None:
            return {}
        values, moved = self._kernel._values, self._kernel._rest
        return {name: value for name, value in values.items() if name not in moved}

    def _record(self, params: Mapping[str, Tensor], dtypes: tuple[torch.dtype, ...]) -> None:
        kernel, others = self._kernel, self._others()

        def both(*tensors: Tensor) -> tuple[Tensor, ...]:
            if kernel is not None:
                kernel._values = dict(zip(others, tensors, strict=False))
            with torch.enable_grad(), poutine.block():
                leaves = [tensor.detach().requires_grad_() for tensor in tensors[len(others) :]]
                value = self._potential(dict(zip(params, leaves, strict=True)))
                return value.detach(), *torch.autograd.grad(value, leaves)

        before = None if kernel is None else kernel._values
        try:
            with pyro.validation_enabled(False):
                inputs = [*others.values(), *params.values()]
                self._replays[dtypes] = _played(_record(both, inputs), self._compile)
        except CaptureError as error:
            self._is_eager = True
            reason = str(error).partition(". A captured program")[0]
            reason = reason.removeprefix("the step cannot be captured: ")
            warnings.warn(f"the potential runs eagerly: {reason}", stacklevel=4)
        finally:
            if kernel is not None and before is not None:
                kernel._values = before


class _Slope(torch.autograd.Function):
    """A recorded value whose gradient was recorded with it."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, others: Collection[Tensor], *params: Tensor) -> Tensor:
        value, *slopes = replay(*others, *params)
        ctx.save_for_backward(*slopes)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return None, None, *(slope * own for own in ctx.saved_tensors)


def _record(function: Callable[..., tuple[Tensor, ...]], inputs: Collection[Tensor]) -> Recording:
    """Record a function for contiguous inputs: first values may be one number for a whole plate."""
    return record(function, [value.contiguous() for value in inputs], rest_is_fixed=True)


def _played(recording: Recording, compile: bool) -> Replay:
    run = compiled(recording) if compile else plain(recording)
    return lambda *inputs: run(*(value.contiguous() for value in inputs))


def _replay(
    function: Callable[..., tuple[Tensor, ...]],
    compile: bool,
    inputs: list[Tensor],
    chains: int | None,
    *first: Tensor,
) -> Replay:
    """Record a function of tensors that all chains share and of those that each has."""
    recording = _record(function, [*first, *inputs])
    if chains is None:
        return _played(recording, compile)
    _without_writes(recording)
    dims = *(None for _ in first), *(0 for _ in inputs)
    batched = torch.vmap(partial(_run, recording), in_dims=dims, randomness="different")
    each = [*first, *(value.expand(chains, *value.shape).clone() for value in inputs)]
    return _played(record(batched, each), compile)


def _run(recording: Recording, *inputs: Tensor) -> tuple[Tensor, ...]:
    return recording.function()(*inputs, *recording.state)


def _without_writes(recording: Recording) -> None:
    """Replace operations in place, which ``vmap`` has no rule for, in a program of draws.

    These are noise in fresh memory, and a lower limit of draws.
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
