"""Expected log-densities of a plain program's sites, under the posteriors of its natural sites."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import Assignment, LinearDynamics
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianPath
from pyro_fmvae.distributions.natural_distribution import natural_class
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.calls import OutOfRangeError
from pyro_fmvae.infer.elbo.density import dtype_of, expectations, log_density
from pyro_fmvae.infer.elbo.enumerated import enum_dim, units_of
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import Expects, Moments, Squares, expectation_of
from pyro_fmvae.infer.elbo.formulas import by_formula
from pyro_fmvae.infer.elbo.kept import KeptExpectations
from pyro_fmvae.infer.elbo.lazy import Lazy, NeedsValueError, Sampled
from pyro_fmvae.infer.elbo.plain import PlainProgram, without_discrete
from pyro_fmvae.infer.elbo.plain_posteriors import PlainPosteriors
from pyro_fmvae.infer.elbo.structure import Site, sample_sites
from pyro_fmvae.infer.elbo.sums import widest
from pyro_fmvae.infer.elbo.turns import Turns
from pyro_fmvae.infer.elbo.used_draws import in_order


class ExpectedDensities:
    """Takes the expectations of one run, and notes which of them natural posteriors share.

    Args:
        program, guide: the run.
        posteriors: of the natural sites.
        kept: what stays the same while some posteriors change; or None.
    """

    def __init__(
        self,
        program: PlainProgram,
        guide: Trace,
        posteriors: PlainPosteriors,
        kept: KeptExpectations | None = None,
    ) -> None:
        self._program, self._guide = program, guide
        self._posteriors, self._kept = posteriors, kept
        self._sites, self._guide_sites = sample_sites(program.model), sample_sites(guide)
        self._owners = {id(site["value"]): name for name, site in self._sites.items()}
        units = units_of(self._sites.values())
        self._expansion = Expansion(program.identities, posteriors.centres(), units, keeps_squares=True)
        # Turns depend on numbers; those of a recorded run were found before.
        self._turns = None if is_recorded() else Turns(posteriors.parameters())

    def note_turns(self) -> None:
        """Tell posteriors that share expectations to take exact steps by turns, once all are taken."""
        if self._turns is not None:
            self._turns.note()

    def of(
        self,
        site: Site,
        value: Tensor,
        dtype: torch.dtype | None = None,
        is_weighted: bool = False,
        own: Mapping[str, Expects] = MappingProxyType({}),
    ) -> Tensor:
        """E[log p] of a site, numbers: [enumerated dimensions..., batch shape].

        Args:
            site: of the model.
            value: of the site, or one that is not there.
            dtype: of the result; if None, that of the program over discrete sites, and float64 elsewhere.
            is_weighted: whether the result is going to be multiplied by ``kl_weight``.
            own: moments of the value, if it is not there and has no natural posterior.
        """
        fn = site["fn"]
        moments = {**(self._posteriors.divided if is_weighted else self._posteriors.moments), **own}
        if hasattr(fn, "parents") and not isinstance(value, Lazy):
            q = fn if isinstance(fn, Assignment) else dist.Delta(value, event_dim=fn.event_dim)
            table = self._by_formula(site, q, is_weighted)
            if table is not None:
                return table

        def evaluate(table: Lazy, shape: torch.Size, dtype: torch.dtype) -> Tensor:
            def found() -> Tensor:
                return self.evaluate(table, shape, moments, dtype)

            return found() if self._kept is None else self._kept.value(site["name"], table, found)

        narrow = dtype or dtype_of(fn)
        if value.is_floating_point():
            narrow = torch.promote_types(narrow, value.dtype)
        try:
            density = log_density(fn, value, lambda table: evaluate(table, table.shape, narrow), self._kept)
        except NeedsValueError:
            raise
        except OutOfRangeError as error:
            frames = self._sites[error.site]["cond_indep_stack"]
            where = next((f" in plate '{f.name}'" for f in frames if f.size == error.size), "")
            raise ValueError(
                f"site '{site['name']}': an index asks for number {error.number} of '{error.site}', of which "
                f"there are {error.size}{where}; expected numbers from 0 to {error.size - 1}, counted within "
                "the batch"
            ) from error
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"site '{site['name']}': the log-density of a value of shape {tuple(value.shape)} under "
                f"{type(unwrap(fn)).__name__} of batch shape {tuple(fn.batch_shape)} and event shape "
                f"{tuple(fn.event_shape)} can't be computed ({error})"
            ) from error
        shape = torch.broadcast_shapes(density.shape, fn.batch_shape)
        density = density.expand(shape)
        if is_validation_enabled():
            check_site_shape({**site, "log_prob": density}, self._program.plates)
        if isinstance(density, Lazy):
            outer = shape[: max(len(shape) - self._program.plates, 0)].numel()
            known: Any = density
            is_single = outer == 1 and enum_dim(site) is None
            if is_single and site["mask"] is None and not torch.as_tensor(site["scale"]).dim():
                known, shape = density.sum(), torch.Size()  # of data first: their products do not change
            density = evaluate(known, shape, narrow if outer > 1 else widest(density.device))
        return density

    def is_at_draw(self, name: str) -> bool:
        """True for a drawn site whose density may only count at its draw."""
        drawn = without_discrete(self._guide)  # the order of what is not drawn does not matter
        return name in self._program.used or not in_order(self._program.model, drawn, name)

    def in_closed_form(self, name: str, q: Distribution, is_weighted: bool) -> Tensor | None:
        """E[log p] of a drawn site under q of the guide; None if only its draw counts, or none is known."""
        if self.is_at_draw(name):
            return None
        site, inner = self._sites[name], unwrap(q)
        if isinstance(inner, GaussianPath) and isinstance(unwrap(site["fn"]), LinearDynamics):
            return self._of_path(site, inner, is_weighted)
        if hasattr(site["fn"], "parents") and not isinstance(inner, dist.Delta):
            table = self._by_formula(site, q, is_weighted)
            if table is not None:
                return table
        known = self.undrawn(name)
        if known is None:
            return None
        symbol, own = known
        try:
            return self.of(site, symbol, is_weighted=is_weighted, own={name: own})
        except NeedsValueError:
            return None

    def undrawn(self, name: str) -> tuple[Lazy, Moments] | None:
        """A stand-in for the value of a drawn site, and its moments, if its family has any."""
        inner: Any = unwrap(self._guide_sites[name]["fn"])
        if (kind := natural_class(inner)) is None or not kind.family.monomials:
            return None
        value = self._sites[name]["value"]
        stats = kind.family.stats_from_standard(*kind.family.standard_of(inner))
        sampled = Sampled(name, self._sites[name]["fn"].support)
        symbol = Lazy.make(value.shape, value.dtype, value.device, sampled)
        return symbol, Moments(kind.family, stats.expand(*inner.batch_shape, stats.shape[-1]), value.shape)

    def evaluate(
        self, table: Lazy, shape: torch.Size, moments: Mapping[str, Expects], dtype: torch.dtype
    ) -> Tensor:
        """The expectation of a lazy table, expanded to a shape."""
        terms = self._expansion.of(table)
        products, all_moments = terms, moments
        if self._expansion.squares:
            squares = Squares(self._expansion.squares, moments, dtype, table.device)
            terms = squares.apart(terms)
            products, all_moments = squares.products(terms), squares.moments(terms)
        if self._turns is not None:
            self._turns.see(products, moments)
        return expectation_of(terms, shape, all_moments, dtype, table.device)

    def _of_path(self, site: Site, path: GaussianPath, is_weighted: bool) -> Tensor:
        """E[log p] of the states of linear dynamics."""
        moments = self._posteriors.divided if is_weighted else self._posteriors.moments

        def evaluate(table: Lazy) -> Tensor:
            return self.evaluate(table, table.shape, moments, table.dtype)

        fn: Any = unwrap(site["fn"])
        table = fn.chain(*expectations(evaluate)).mean_log_weight(path.chain)
        return table.to(path.dtype).expand(torch.broadcast_shapes(table.shape, fn.batch_shape))

    def _by_formula(self, site: Site, q: Distribution, is_weighted: bool) -> Tensor | None:
        def parent_of(parent: Site) -> Distribution:
            name = parent["name"]
            if not self._posteriors.is_natural(name):
                return dist.Delta(parent["value"], event_dim=parent["fn"].event_dim)
            return self._posteriors.of_weighted(name) if is_weighted else self._posteriors.of(name)

        return by_formula(site, q, self._sites, self._owners, parent_of)
