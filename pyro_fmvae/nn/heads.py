"""Heads of encoders, and encoders side by side."""

from collections.abc import Callable, Sequence
from math import log, log1p

import torch
from torch import Tensor, nn

from pyro_fmvae.nn.sizes import check_size, scaled_normal_


class NormalHead(nn.Module):
    """One linear layer to ``latent_dim`` means and ``latent_dim`` log variances.

    Weights start with variance ``1 / in_features``, biases at zero: for features of unit size, means and log
    variances are of unit size around zero.
    """

    def __init__(self, in_features: int, latent_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 2 * check_size("latent_dim", latent_dim))
        scaled_normal_(self.linear, gain=1.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return location and scale, each ``[..., latent_dim]``."""
        loc, log_variance = self.linear(features).to(self.linear.weight.dtype).chunk(2, dim=-1)
        return loc, (0.5 * log_variance).exp()


class ExponentialLink:
    """Map an unbounded v to the logit of γ = min(1, e^v), clipped to [epsilon, 1 - epsilon].

    The link of Tonolini et al. (2019), Supplement A.2. Outside these limits its gradient is 0: a latent that
    is certainly on stays on.

    Args:
        epsilon: in [1e-7, 0.5), so that float32 tells 1 - epsilon from 1.

    Attributes:
        start: v at which γ is a half, where a :class:`SpikeHead` starts.

    Raises:
        ValueError: ``epsilon`` out of range.
    """

    start = -log(2)

    def __init__(self, epsilon: float = 1e-6) -> None:
        if not 1e-7 <= epsilon < 0.5:
            raise ValueError(f"epsilon must be a number in [1e-7, 0.5), got {epsilon!r}")
        self.limits = log(epsilon), log1p(-epsilon)

    def __call__(self, v: Tensor) -> Tensor:
        """Return the logits of γ, of the shape of v."""
        log_probs = v.clamp(*self.limits)
        return log_probs - torch.log(-torch.expm1(log_probs))


class SpikeHead(nn.Module):
    """One linear layer to ``latent_dim`` means, as many log variances, and as many spikes.

    Weights start with variance ``0.1 / in_features``. Biases start at zero, those of spikes at the link's
    ``start``. For features of unit size all outputs then lie within about 0.3 of their biases, so no latent
    starts on or off. Give it to an encoder as its ``head``.

    Args:
        in_features: number of features.
        latent_dim: number of latent dimensions.
        link: map from the last third of the layer to the logits of γ, such as :class:`ExponentialLink`. A
            link without ``start`` starts at 0. Default: the identity.
    """

    def __init__(
        self, in_features: int, latent_dim: int, link: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 3 * check_size("latent_dim", latent_dim))
        self.link = nn.Identity() if link is None else link
        scaled_normal_(self.linear, gain=0.1)
        with torch.no_grad():
            self.linear.bias[2 * latent_dim :] = getattr(link, "start", 0.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return location and scale of the slab and the logit of γ, each ``[..., latent_dim]``."""
        outputs = self.linear(features).to(self.linear.weight.dtype)
        loc, log_variance, spike = outputs.chunk(3, dim=-1)
        return loc, (0.5 * log_variance).exp(), self.link(spike)


class SideBySide(nn.Module):
    """Several encoders of one x, whose outputs are joined along the latent dimensions.

    They share no features, so what one learns for its dimensions leaves the others alone.

    Args:
        encoders: in the order of their dimensions.
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode x as each encoder does, and join location with location and scale with scale."""
        parts = zip(*(encoder(x) for encoder in self.encoders), strict=True)
        return tuple(torch.cat(part, -1) for part in parts)
