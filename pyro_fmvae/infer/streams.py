"""Data that arrive in batches: the posterior given the batches so far is the prior of the next one."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import natural_class, natural_prior, unwrap
from pyro_fmvae.infer.autoguide import AutoConjugate
from pyro_fmvae.infer.elbo.lazy import has_lazy_arguments


class posterior_as_prior(Messenger):
    """Make the posterior of a guide the prior of a model, for new data.

    The prior is the posterior at this moment. The guide may go on learning, and is a good start for the next
    batch::

        prior = posterior_as_prior(guide)  # after steps of model and guide on the first batch
        svi = ConjugateSVI(prior(model), guide, NaturalGradient(1.0), TraceConjugate_ELBO())
        for batch in batches:
            for _ in range(20):
                svi.step(batch)
            prior.update()

    If posteriors are exact and no latent belongs to a single data point, batches in turn give the posterior
    of all data at once (Broderick et al., 2013, Streaming variational Bayes, equation 3).

    With a power f < 1 the past fades: the prior is proportional to q(θ)^f p(θ)^(1 - f), where q is the
    posterior and p the model's own prior. Each batch then counts f times as much as the next one (Kulhavý and
    Zarrop, 1993, On a general concept of forgetting).

    Args:
        guide: an ``AutoConjugate`` that has been called.
        power: f, 0 < f ≤ 1.
        sites: names of the sites whose posterior is taken; all others keep the model's prior. None for all
            sites of the guide.

    Raises:
        ValueError: ``guide`` is no ``AutoConjugate`` or has not been called, ``power`` is out of range, or a
            site has no natural posterior. In a run of the model: its site has another shape than the
            posterior; or ``power`` is below 1 and its own prior is not in the family of the posterior.
    """

    def __init__(
        self, guide: AutoConjugate, *, power: float = 1.0, sites: Iterable[str] | None = None
    ) -> None:
        super().__init__()
        if not isinstance(guide, AutoConjugate):
            raise ValueError(f"guide: expected an AutoConjugate, got {type(guide).__name__}")
        if not 0 < power <= 1:
            raise ValueError(f"power: expected 0 < power <= 1, got {power}")
        known = guide.natural_sites
        if not known:
            raise ValueError("guide: expected one that has been called with the arguments of the model")
        if sites is None and guide.fallback is not None:
            raise ValueError(
                "sites: the guide draws some of its sites, whose posteriors cannot become priors; name those "
                f"that can, as in sites={known}"
            )
        self._sites = known if sites is None else list(sites)
        unknown = [name for name in self._sites if name not in known]
        if unknown:
            raise ValueError(f"sites: {unknown} have no natural posterior in the guide; {known} have one")
        self._guide, self._power = guide, power
        self._posteriors = copy.deepcopy(guide.posteriors).requires_grad_(False)
        self._values: dict[str, Tensor] = {}

    def update(self) -> None:
        """Take the posterior of now, in place: a captured step goes on with it."""
        self._posteriors.load_state_dict(self._guide.posteriors.state_dict())

    def __enter__(self) -> Any:
        self._values = {}
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        name, prior = msg["name"], msg["fn"]
        if name not in self._sites:
            return
        posterior: Any = self._guide.distribution(name, self._values, self._posteriors)
        if (posterior.batch_shape, posterior.event_shape) != (prior.batch_shape, prior.event_shape):
            raise ValueError(
                f"site '{name}': batch and event shape are {tuple(posterior.batch_shape)} and "
                f"{tuple(posterior.event_shape)} in the guide, but {tuple(prior.batch_shape)} and "
                f"{tuple(prior.event_shape)} in the model; leave latents of single data points out of sites="
            )
        msg["fn"] = posterior if self._power == 1 else self._faded(name, posterior, prior)

    def _faded(self, name: str, posterior: Any, prior: Any) -> Any:
        """The normalised product of powers of posterior and prior: the natural parameters between theirs."""
        q: Any = unwrap(posterior)
        if natural_class(unwrap(prior)) is not type(q) or has_lazy_arguments(prior):
            raise ValueError(
                f"site '{name}': power < 1 needs a prior without unknown parameters in the family of its "
                f"posterior, {type(q).__name__}; take power=1, or leave it out of sites="
            )
        natural = torch.lerp(natural_prior(prior).natural, q.natural, self._power)
        return q.with_natural(natural).to_event(posterior.event_dim - len(q.event_shape))

    def _pyro_post_sample(self, msg: Any) -> None:
        self._values[msg["name"]] = msg["value"]
