"""Latents of single data points, whose posteriors are found anew for each batch by coordinate ascent."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.exponential_family import event_dim_of, unwrap
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.density import ReusedExpectations
from pyro_fmvae.infer.elbo.plain import PlainProgram, Undrawn, without_discrete
from pyro_fmvae.infer.elbo.plain_terms import Bound
from pyro_fmvae.infer.elbo.recognition import Recognised
from pyro_fmvae.infer.elbo.structure import Site, frames_of, sample_sites, subsamples
from pyro_fmvae.infer.elbo.trial_runs import FirstValues
from pyro_fmvae.infer.posteriors import key_of

# Options of the search for the posteriors of latents of single data points.


@dataclass(frozen=True)
class LocalSearch:
    """How the posteriors of latents of single data points are found.

    Attributes:
        plates: names of the plates of data points.
        steps: passes of coordinate ascent over all latents, at most.
        tolerance: nats: a point's passes end after one that moved its posteriors by less, in KL divergence;
            points of several plates end together, by their mean.
        warm: whether to start at the posterior of a point's last visit.

    Raises:
        ValueError: one of them is out of range.
    """

    plates: tuple[str, ...] = ()
    steps: int = 10
    tolerance: float = 0.0
    warm: bool = False

    def __post_init__(self) -> None:
        if not self.steps > 0:
            raise ValueError(f"local_steps: expected a number > 0, got {self.steps}")
        if not self.tolerance >= 0:
            raise ValueError(f"local_tolerance: expected a number >= 0, got {self.tolerance}")
        if self.warm and len(self.plates) != 1:
            raise ValueError(f"local_warm: expected one plate in local, got {list(self.plates)}")


def plates_of_points(local: Collection[str]) -> tuple[str, ...]:
    """The names of plates, refused if they are a single one that is not in a list."""
    if isinstance(local, str):
        raise ValueError(f"local: expected a list of names of plates, got '{local}'; write ['{local}']")
    return tuple(local)


@dataclass
class LocalSite:
    """A latent of single data points.

    Attributes:
        kind: class of its natural posteriors.
        start: λ that coordinate ascent starts from, [..., P], of size 1 in the plates of points.
        dtype: of draws.
        events: dimensions of an event beyond those of the family.
        points: the number of data points in all, and their dimension in ``start``; those of the first plate.
    """

    kind: type[NaturalDistribution]
    start: Tensor
    dtype: torch.dtype
    events: int
    points: tuple[int, int]

    @classmethod
    def of(cls, site: Site, prior: NaturalDistribution, plates: Collection[str]) -> "LocalSite":
        """The site of a first run, with its prior [..., P] and the names of the plates of points."""
        start, batch = prior.natural, len(site["fn"].batch_shape)
        frames = [f for f in site["cond_indep_stack"] if f.name in plates and f.vectorized]
        for frame in frames:
            start = start.narrow(batch + frame.dim, 0, 1)
        points = frames[0].full_size or frames[0].size, batch + frames[0].dim
        events = site["fn"].event_dim - event_dim_of(prior.family)
        return cls(type(prior), start.clone(), prior.dtype, events, points)

    def distribution(self, natural: Tensor) -> Any:
        """The posterior at λ [..., P], of the site's event shape."""
        posterior: Any = self.kind(natural, self.dtype)
        return posterior.to_event(self.events)

    def start_of(self, site: Site) -> Tensor:
        """λ [..., P] to start from, of the size of a batch."""
        return self.start.expand(*site["value"].shape[: self.start.dim() - 1], -1)

    def by_point(self, natural: Tensor) -> Tensor:
        """λ with the dimension of the points in front, [B, ..., P]."""
        return natural.movedim(self.points[1], 0)

    def batched(self, natural: Tensor) -> Tensor:
        """The inverse of :meth:`by_point`."""
        return natural.movedim(0, self.points[1])

    def table(self) -> Tensor:
        """λ of all points before their first visit, [N, ..., P]."""
        start = self.by_point(self.start)
        return start.expand(self.points[0], *start.shape[1:]).clone()


class LocalSites(nn.Module):
    """The latents of single data points in a model.

    Args:
        model: the program.
        sites: by name, in the order of the model.
        search: how posteriors are found: by coordinate ascent, Hoffman et al. (2013), Stochastic variational
            inference, Figure 4.
    """

    def __init__(self, model: Callable[..., Any], sites: dict[str, LocalSite], search: LocalSearch) -> None:
        super().__init__()
        self._model = (model,)
        self._sites, self._search = sites, search
        self._elbo = TraceConjugate_ELBO()
        self._others = Trace()
        self._now: dict[str, tuple[Site, Tensor]] = {}
        for name, local in sites.items() if search.warm else ():
            self.register_buffer(_buffer(name), local.table(), persistent=False)

    def __bool__(self) -> bool:
        return bool(self._sites)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """The whole guide, with the posteriors of the present pass."""
        for name, site in sample_sites(self._others).items():
            with frames_of(site), _draws(self._others):
                pyro.sample(name, site["fn"], infer=dict(site["infer"]))
        for name, now in self._now.items():
            self._sample(name, *now)

    def sample(self, others: Callable[..., Any], run: Trace, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """Sample the latents of a batch from their posteriors, as constants.

        Args:
            others: samples all other sites of the guide.
            run: its trace in this call. The posteriors are those given its draws.
            args, kwargs: of the model.

        Raises:
            ValueError: the model draws the minibatch itself, or does not tell the rows of a warm start.
        """
        solved = self._solve(others, run, args, kwargs, warm=self._search.warm)
        return {name: self._sample(name, *now) for name, now in solved.items()}

    def posteriors(self, others: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Distribution]:
        """The posteriors of the latents of points that may be new ones, by name; see :meth:`sample`."""
        with poutine.block():
            run = poutine.trace(others).get_trace(*args, **kwargs)
        solved = self._solve(others, run, args, kwargs, warm=False).items()
        return {name: self._sites[name].distribution(natural) for name, (_, natural) in solved}

    def _solve(
        self, others: Callable[..., Any], run: Trace, args: Any, kwargs: Any, warm: bool
    ) -> dict[str, tuple[Site, Tensor]]:
        """Site and λ [..., P] of each latent of a batch."""
        with poutine.block():
            with Undrawn(), _draws(run):
                self._others = without_discrete(poutine.trace(others).get_trace(*args, **kwargs))
            trace = self._trace(args, kwargs)
            sites = sample_sites(trace)
            starts = {name: local.start_of(sites[name]) for name, local in self._sites.items()}
            rows = self._rows(trace) if warm else None
            if rows is not None:
                for name, start in starts.items():
                    stored = self.get_buffer(_buffer(name))[rows]
                    starts[name] = self._sites[name].batched(stored).expand_as(start)
            self._now = {name: (sites[name], start) for name, start in starts.items()}
            self._ascend(args, kwargs)
        found, self._now, self._others = self._now, {}, Trace()
        if rows is not None:
            for name, (_, natural) in found.items():
                self.get_buffer(_buffer(name)).index_copy_(0, rows, self._sites[name].by_point(natural))
        return found

    def _trace(self, args: Any, kwargs: Any) -> Trace:
        """A run of the model on this batch without the values of its sites."""
        with FirstValues(), Undrawn(leaves=True):
            program = poutine.trace(poutine.replay(self._model[0], trace=self._others))
            trace = program.get_trace(*args, **kwargs)
        for name, site in subsamples(trace).nodes.items():
            if site["fn"].subsample_size not in (None, site["fn"].size):
                raise ValueError(
                    f"local: plate '{name}' draws its minibatch in the model; give it one, by subsample=batch"
                )
        return trace

    def _rows(self, trace: Trace) -> Tensor:
        """The numbers [B] of the points of a batch, int64."""
        (plate,) = self._search.plates
        rows = trace.nodes[plate]["value"]
        if not (isinstance(rows, Tensor) and rows.dim() == 1 and rows.dtype == torch.int64):
            raise ValueError(
                f"local_warm: expected row numbers as the minibatch of plate '{plate}', to keep posteriors "
                "by; write subsample=rows, of integers in one dimension"
            )
        return rows

    def _ascend(self, args: Any, kwargs: Any) -> None:
        """Improve one site after another, all of them several times, at the points that still move."""
        program, guide = self._elbo.trace(self._model[0], self, *args, **kwargs)
        assert isinstance(program, PlainProgram)  # it has conjugate sites that are no shorthands
        reused = ReusedExpectations(self._sites.keys())
        moving: Tensor | None = None
        for _ in range(self._search.steps):
            before = dict(self._now)
            for name in self._sites:
                self._improve(name, program, guide, reused, moving)
            if self._search.tolerance > 0:
                far = self._moves(before) >= self._search.tolerance
                moving = far if moving is None else moving & far
                if not is_recorded() and not moving.any():
                    break

    def _improve(
        self,
        name: str,
        program: PlainProgram,
        guide: Trace,
        reused: ReusedExpectations,
        moving: Tensor | None,
    ) -> None:
        """Give a site its posterior given those of all others, by a step of rate 1, at moving points [B]."""
        (site, natural), local = self._now[name], self._sites[name]
        with torch.enable_grad():
            natural = natural.detach().requires_grad_()
            guide.nodes[name]["fn"] = local.distribution(natural)
            reused.restart()
            loss = self._elbo.total(Bound(program, guide, reused=reused).all_terms())
            (gradient,) = torch.autograd.grad(loss, natural)
        if moving is not None:
            moves = moving.view(-1, *[1] * (gradient.dim() - 1))
            gradient = torch.where(local.batched(moves), gradient, 0.0)
        natural = natural.detach() - gradient
        self._now[name] = site, natural
        guide.nodes[name]["fn"] = local.distribution(natural)

    def _moves(self, before: dict[str, tuple[Site, Tensor]]) -> Tensor:
        """KL(before || now) of each point, [B], after a pass; the mean of points of several plates, [1]."""
        moves = []
        for name, (_, natural) in self._now.items():
            local = self._sites[name]
            divergence = local.kind.family.relative_entropy(before[name][1], natural)
            moves.append(local.by_point(divergence.unsqueeze(-1)).flatten(1).sum(-1))
        if len(self._search.plates) > 1:
            moves = [each.mean(0, keepdim=True) for each in moves]
        return sum(moves[1:], moves[0])

    def _sample(self, name: str, site: Site, natural: Tensor) -> Tensor:
        frames = site["cond_indep_stack"]
        scale = prod((frame.full_size or frame.size) / frame.size for frame in frames if frame.vectorized)
        with frames_of(site), poutine.scale(scale=scale):
            return pyro.sample(name, self._sites[name].distribution(natural))


def _draws(run: Trace) -> Any:
    """Give sites the draws of an earlier run, apart from those that have natural posteriors."""
    drawn = Trace()
    for name, site in sample_sites(run).items():
        if not isinstance(unwrap(site["fn"]), NaturalDistribution):
            drawn.add_node(name, **site)
    return poutine.replay(trace=drawn)


def _buffer(name: str) -> str:
    return f"kept_{key_of(name)}"


def local_sites(found: Recognised, plates: Collection[str]) -> dict[str, LocalSite]:
    """The conjugate latents in plates of points, by name.

    Raises:
        ValueError: a latent in them is not conjugate, or there is none.
    """
    inside = [
        name
        for name, site in found.sites.items()
        if any(frame.name in plates for frame in site["cond_indep_stack"])
    ]
    drawn = next((name for name in found.drawn if name in inside), None)
    if drawn is not None:
        raise ValueError(
            f"local: expected conjugate latents in the plates {list(plates)}, but '{drawn}' is none: "
            f"{found.drawn[drawn]}"
        )
    local = {
        name: LocalSite.of(found.sites[name], prior, plates)
        for name, prior in found.priors.items()
        if name in inside
    }
    if plates and not local:
        raise ValueError(
            f"local: expected conjugate latents in the plates {list(plates)}, but there is no latent"
        )
    return local
