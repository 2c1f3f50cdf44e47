"""States of linear dynamics in a guide, where the dynamics have natural posteriors themselves."""

from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.distributions import SmoothedStates
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.density import expectations
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import expectation_of
from pyro_fmvae.infer.elbo.lazy import Lazy
from pyro_fmvae.infer.elbo.plain_posteriors import PlainPosteriors


class Smoothing(Messenger):
    """Has a guide draw states under the expectations of what precedes them, which is not drawn itself."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        if isinstance(fn, SmoothedStates):
            msg["fn"] = fn.expected(*expectations(self._expectation))
        self._sites[msg["name"]] = msg

    def _expectation(self, table: Lazy) -> Tensor:
        posteriors = PlainPosteriors(self._sites, self._sites)
        terms = Expansion({}, posteriors.centres()).of(table)
        return expectation_of(terms, table.shape, posteriors.moments, table.dtype, table.device)
