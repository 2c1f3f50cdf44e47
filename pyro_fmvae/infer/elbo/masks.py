"""Masks of sites, of distributions, and of the steps of latent sequences."""

from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Independent
from torch.nn.functional import pad

from pyro_fmvae.distributions.chunks import Sequences
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianChunks, GaussianPath
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics
from pyro_fmvae.distributions.masked import is_masked
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.enumerated import enum_dim
from pyro_fmvae.infer.elbo.structure import Site, sample_sites


def take_masks(model: Trace, guide: Trace) -> None:
    """Make masks of distributions those of their sites, as ``poutine.mask`` does.

    A latent that is masked in the model would else have no density there, but still one in the guide. Where a
    guide has independent steps, states of linear dynamics after the end of a sequence lose their density: it
    would only loosen the bound.

    Raises:
        ValueError: a shorthand is masked, which is recognised by its class.
    """
    for trace in (model, guide):
        for site in sample_sites(trace).values():
            while isinstance(fn := site["fn"], MaskedDistribution):
                if hasattr(fn.base_dist, "parents"):
                    raise ValueError(
                        f"site '{site['name']}': {type(fn.base_dist).__name__} may not be wrapped by mask; "
                        "use poutine.mask"
                    )
                mask = torch.as_tensor(fn._mask)
                site["mask"] = mask if site["mask"] is None else mask & site["mask"]
                site["fn"] = fn.base_dist
    for name, site in sample_sites(model).items():
        prior = site["fn"]
        if (
            isinstance(prior, LinearDynamics)
            and name in guide
            and isinstance(guide.nodes[name]["fn"], Independent)
        ):
            site["fn"] = prior.without_ends()


def check_masks(model: Trace, guide: Trace) -> None:
    """Refuse masks with dimensions that are none of their site's plates.

    Raises:
        ValueError: with the name of the site, and both shapes.
    """
    sites = [*sample_sites(model).values(), *sample_sites(guide).values()]
    enumerated = {
        (dim, site["value"].shape[dim - site["fn"].event_dim])
        for site in sites
        if (dim := enum_dim(site)) is not None
    }
    for site in sites:
        shape = site["mask"].shape if isinstance(site["mask"], Tensor) else ()
        sizes: dict[int, int] = {f.dim: f.size for f in site["cond_indep_stack"] if f.vectorized}
        dims = range(-len(shape), 0)
        if all(shape[d] in (1, sizes.get(d, 1)) or (d, shape[d]) in enumerated for d in dims):
            continue
        plates = tuple(sizes.get(dim, 1) for dim in range(min(sizes, default=0), 0))
        raise ValueError(
            f"site '{site['name']}': its mask is of shape {tuple(shape)}, but its plates of {plates}; mask "
            "only sites in the plate that the mask is of; for parts of an event, such as steps of a "
            "sequence, mask the distribution before to_event, or the emissions of a chain"
        )


def watch_missing(model: Trace) -> None:
    """Have the way back refuse slopes at draws of a latent's missing steps, whose density does not count."""
    for site in sample_sites(model).values():
        if not site["is_observed"]:
            _watch(site)


def _watch(site: Site) -> None:
    name, present, value = site["name"], _present(site), site["value"]
    if present is None or not value.requires_grad or is_recorded():
        return
    if isinstance(unwrap(site["fn"]), LinearDynamics):  # the first that counts may depend on the last one
        present = present | pad(present[..., 1:], (0, 1))
    missing = ~present[(..., *(None,) * (site["fn"].event_dim - 1))]

    def check(slope: Tensor) -> None:  # to hold the site would keep its value, and all that this comes from
        if (missing & (slope != 0)).any():
            raise ValueError(
                f"site '{name}': the loss depends on its draws at steps that are missing; mask what "
                "is observed there, too"
            )

    value.register_hook(check)


def _present(site: Site) -> Tensor | None:
    """The steps of a latent sequence that count, bool [..., T]; None if all do."""
    prior = unwrap(site["fn"])
    try:
        return prior.present if isinstance(prior, Sequences) else None
    except ValueError as error:
        raise ValueError(f"site '{site['name']}': {error}") from None


class _Counted(MaskedDistribution):
    """A masked distribution with the entropy of what is not masked out."""

    def entropy(self) -> Tensor:
        """In nats, of the batch shape."""
        entropy: Tensor = torch.where(self._mask, self.base_dist.entropy(), 0.0)
        return entropy


def counted(site: Site, q: Any) -> Any:
    """The guide's distribution q of a latent, where the model has a density: not at steps that are missing.

    Draws are those of q.

    Raises:
        ValueError: parts of a latent are masked in a way that q can't follow; the message names the site.
    """
    name, prior, inner = site["name"], unwrap(site["fn"]), unwrap(q)
    if isinstance(inner, GaussianPath) and isinstance(prior, LinearDynamics):
        if isinstance(inner.chain, GaussianChunks) != (prior.spans is not None):
            raise ValueError(
                f"site '{name}': call of_chunks on the dynamics in both model and guide, or in neither"
            )
        return q
    if not isinstance(prior, Sequences):
        if is_masked(site["fn"]) and not is_masked(q):
            raise ValueError(
                f"site '{name}': parts of its event are masked in the model, but not in the guide; mask them "
                "in both"
            )
        return q
    present = _present(site)
    if present is None or (isinstance(prior, LinearDynamics) and prior.spans is None):
        return q
    if not (isinstance(q, Independent) and q.reinterpreted_batch_ndims):
        raise ValueError(
            f"site '{name}': steps are missing, but {type(q).__name__} in the guide is a distribution of all "
            "steps together; give it one of independent steps, as Normal(...).to_event(2)"
        )
    steps: Any = q.base_dist
    return _Counted(steps.to_event(q.reinterpreted_batch_ndims - 1), present).to_event(1)
