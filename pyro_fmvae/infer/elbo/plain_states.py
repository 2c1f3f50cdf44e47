"""Discrete states of a plain program, under the posteriors of everything else."""

from typing import Any

from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import HiddenMarkov, LinearGaussianChain
from pyro_fmvae.distributions.chain import Chain
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.infer.elbo.density import as_number, hidden_chain
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.plain_terms import Bound
from pyro_fmvae.infer.elbo.structure import Site, Structure, sample_sites, unmasked


def responsibilities(program: PlainProgram, guide: Trace) -> dict[str, Tensor]:
    """Probabilities of each discrete site's values: [..., K], with the site's plates in front."""
    bound = Bound(program, guide)
    bound.collect()
    return bound.summed().posteriors() if bound.factors else {}


def hidden_chains(program: Structure | PlainProgram, guide: Trace) -> dict[str, Chain | GaussianChain]:
    """The chain of the hidden states of every site that has one, by site name."""
    bound = Bound(program, guide) if isinstance(program, PlainProgram) else None
    return {
        name: fn.chain(as_number(site["value"])) if bound is None else _chain(bound, name, site)
        for name, site in sample_sites(program.model).items()
        if isinstance(fn := unwrap(site["fn"]), HiddenMarkov | LinearGaussianChain)
    }


def _chain(bound: Bound, name: str, site: Site) -> Chain | GaussianChain:
    """The chain under the posteriors, that of a drawn site's own value among them where the bound has it."""
    value, moments, densities = unmasked(site), bound.posteriors.moments, bound.densities
    at_value = site["is_observed"] or densities.is_at_draw(name)
    if not at_value and (own := densities.undrawn(name)) is not None:
        value, moments = own[0], {**moments, name: own[1]}
    fn: Any = unwrap(site["fn"])
    return hidden_chain(fn, value, lambda table: densities.evaluate(table, table.shape, moments, table.dtype))
