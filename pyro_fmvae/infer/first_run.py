"""An autoguide's first run of its model: values for its sites, and what they are refused for."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.natural_distribution import natural_class
from pyro_fmvae.infer.elbo.recognition import hidden_in_plate
from pyro_fmvae.infer.elbo.structure import Site

NO_MIXTURE = (
    "model: no site with a conjugate prior is the parent of an Assignment or a component of a mixture (give "
    "it the whole model: none of these may be hidden by poutine.block)"
)


def check_priors(sites: Iterable[Site]) -> None:
    """Refuse priors of the components of shorthands, where there are no shorthands."""
    kinds = [natural_class(unwrap(site["fn"])) for site in sites if not site["is_observed"]]
    if any(kind is not None and not kind.family.monomials for kind in kinds):
        raise ValueError(NO_MIXTURE)


def check_whole(site: Site) -> None:
    """Refuse a site in a subsampled plate."""
    reason = hidden_in_plate(site)
    if reason is not None:
        raise ValueError(f"site '{site['name']}': {reason}")


def harmless_value(site: Site) -> Tensor:
    """Prior means for conjugate sites (draws from vague priors overflow) if they are finite, else draws."""
    if natural_class(unwrap(site["fn"])) is not None:
        mean = site["fn"].mean
        if mean.isfinite().all():  # that of an inverse Gamma with a <= 1 is not
            return mean.expand(site["fn"].shape())
    with torch.no_grad():
        return site["fn"].sample()
