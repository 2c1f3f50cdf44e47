"""Discrete states of a plain program, under the posteriors of everything else."""

from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import HiddenMarkov, LinearGaussianChain
from pyro_fmvae.distributions.chain import Chain
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.plain_terms import Bound
from pyro_fmvae.infer.elbo.structure import Structure, sample_sites


def responsibilities(program: PlainProgram, guide: Trace) -> dict[str, Tensor]:
    """Probabilities of each discrete site's values: [..., K], with the site's plates in front."""
    bound = Bound(program, guide)
    bound.collect()
    return bound.summed().posteriors() if bound.factors else {}


def hidden_chains(program: Structure | PlainProgram, guide: Trace) -> dict[str, Chain | GaussianChain]:
    """The chain of the hidden states of every observed site that has one, by site name."""
    bound = Bound(program, guide) if isinstance(program, PlainProgram) else None
    return {
        name: fn.chain(site["value"]) if bound is None else bound.chain(site)
        for name, site in sample_sites(program.model).items()
        if isinstance(fn := unwrap(site["fn"]), HiddenMarkov | LinearGaussianChain)
    }
