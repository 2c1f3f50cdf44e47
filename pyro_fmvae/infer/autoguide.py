"""An autoguide for the conjugate globals of any recognised model."""

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor, nn

from pyro_fmvae.distributions import NormalGamma
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.frames import frames_of
from pyro_fmvae.infer.parameters import param_statements
from pyro_fmvae.infer.posteriors import ConjugatePosterior, NaturalPosterior, natural_prior, random_natural
from pyro_fmvae.infer.structure import Site, sample_sites


class AutoConjugate(nn.Module):
    """Natural posteriors for every Dirichlet and Normal-Gamma site that is the parent of a mixture's site.

    Call it first thing in a guide, with the arguments of the model; the guide then has to sample only what is
    left, and may enter the model's plates itself, since this creates none::

        class Guide(nn.Module):
            def __init__(self):
                super().__init__()
                self.conjugate = AutoConjugate(model)
                self.encoder = Encoder()

            def forward(self, x):
                self.conjugate(x)
                ...  # pyro.sample("z", ...)

    Parameters exist after the first call, or after :meth:`setup`.

    Args:
        model: a recognised model.
        count: pseudo-observations behind the random initial posteriors, > 0. ``pyro_fmvae.infer.seeding``
            gives better starting points once there are encoded data.
    """

    def __init__(self, model: Callable[..., Any], count: float = 10.0) -> None:
        super().__init__()
        if not count > 0:
            raise ValueError(f"count: expected a number > 0, got {count}")
        self._model = (model,)  # in a tuple, so that the model does not become a submodule
        self.count = count
        self.posteriors = nn.ModuleDict()
        self._sites: dict[str, Site] = {}

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Find the conjugate sites and make their posteriors; arguments as for the model.

        Raises:
            ValueError: the model has no conjugate site, or one inside a plate that is subsampled.
            NotImplementedError: a parent of a recognised site has no known conjugate posterior.
        """
        with poutine.block(), InitMessenger(_harmless_value):
            trace = poutine.trace(self._model[0]).get_trace(*args, **kwargs)
        sites = sample_sites(trace)
        owners = {id(site["value"]): name for name, site in sites.items()}
        wanted = {
            owners.get(id(getattr(site["fn"], argument)))
            for site in sites.values()
            for argument in getattr(site["fn"], "parents", ())
            if argument != "assignment"
        }
        for name, site in sites.items():
            if name in wanted and not site["is_observed"]:
                _check_whole(site)
                kind, _ = natural_prior(site["fn"])
                self.posteriors[name] = NaturalPosterior(kind, random_natural(site["fn"], self.count))
                self._sites[name] = {"cond_indep_stack": site["cond_indep_stack"]}
        if not self._sites:
            raise ValueError(
                "model: no Dirichlet or NormalGamma site is the parent of an Assignment or a Component"
            )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every conjugate site; arguments as for the model. Returns the values by site name."""
        if not self._sites:
            self.setup(*args, **kwargs)
        param_statements("AutoConjugate", self)
        values = {}
        for name, site in self._sites.items():
            with frames_of(site):
                values[name] = pyro.sample(name, self.posterior(name)())
        return values

    def posterior(self, name: str) -> ConjugatePosterior:
        """The posterior module of a site; assign to ``posteriors[name]`` to replace it."""
        posterior = self.posteriors[name]
        assert isinstance(posterior, ConjugatePosterior)
        return posterior


def _check_whole(site: Site) -> None:
    for frame in site["cond_indep_stack"]:
        if frame.full_size not in (None, frame.size):
            raise ValueError(
                f"site '{site['name']}': plate '{frame.name}' is subsampled, so one run does not "
                "show its posterior whole; write it by hand"
            )


def _harmless_value(site: Site) -> Tensor:
    """Prior means for conjugate sites (draws from vague priors overflow), draws for all others."""
    fn = unwrap(site["fn"])
    if isinstance(fn, NormalGamma | dist.Dirichlet):
        return site["fn"].mean.expand(site["fn"].shape())
    with torch.no_grad():
        return site["fn"].sample()
