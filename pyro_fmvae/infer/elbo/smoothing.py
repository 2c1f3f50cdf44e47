"""States of linear dynamics in a guide, where the dynamics have natural posteriors themselves."""

from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution, SmoothedStates
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.density import expectations
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import expectation_of
from pyro_fmvae.infer.elbo.lazy import Lazy
from pyro_fmvae.infer.elbo.plain_posteriors import PlainPosteriors


class Smoothing(Messenger):
    """Has a guide draw states under the expectations of what precedes them, which is not drawn itself.

    The posteriors of what precedes them are constants there. So their natural gradients are those given the
    states' distribution, and a step of a rate up to 1 goes to proper members of their families.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        if isinstance(fn, SmoothedStates):
            constant = {name: {**site, "fn": _constant(site["fn"])} for name, site in self._sites.items()}
            posteriors = PlainPosteriors(self._sites, constant)
            expansion = Expansion({}, posteriors.centres())

            def evaluate(table: Lazy) -> Tensor:
                terms, moments = expansion.of(table), posteriors.moments
                return expectation_of(terms, table.shape, moments, table.dtype, table.device)

            msg["fn"] = fn.expected(*expectations(evaluate))
        self._sites[msg["name"]] = msg


def _constant(fn: Distribution) -> Distribution:
    inner = unwrap(fn)
    if not isinstance(inner, NaturalDistribution):
        return fn
    constant: Distribution = inner.with_natural(inner.natural.detach()).expand(inner.batch_shape)
    return constant
