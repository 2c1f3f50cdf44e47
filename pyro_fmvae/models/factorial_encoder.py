"""The encoder of a factorial mixture VAE, with its responsibilities, as plain tensor operations."""

import torch
from torch import Tensor, nn

from pyro_fmvae.distributions.normal_gamma import gaussian_table
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.models.shapes import of_components


class FactorialEncoder(nn.Module):
    """q(z | x) and γ of a trained model, Paquet et al. (2018), equation 5, without Pyro.

    E[log π] and E[t] of the components are constants here, so that the module can be traced and leave Python.

    Args:
        model: trained; the encoder is shared with it, λ is taken as it is now.
    """

    def __init__(self, model: FactorialMixtureVAE) -> None:
        super().__init__()
        self.encoder, self.layout = model.encoder, model.layout
        self.factors = [group.factors for group in model.factor_groups()]
        for number, group in enumerate(model.factor_groups()):
            for name, posterior in (("weights", group.weights), ("components", group.loc_precision)):
                stats = posterior.kind(posterior.natural_value()).expected_stats()
                self.register_buffer(f"{name}_{number}", stats)

    @torch.no_grad()
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Encode a batch ``x[B, *event_shape]``.

        Returns:
            ``codes`` [B, I]; ``mean`` and ``scale`` of q(z | x), [B, I·D]; of each factor γ_i [B, K_i], as
            ``responsibilities_i``.
        """
        loc, scale = self.encoder(x)
        tables = self._tables(loc, scale)
        of_groups: list[Tensor] = []
        for number, table in enumerate(tables):
            of_groups += (table + self.get_buffer(f"weights_{number}")).softmax(-1).to(loc)
        gammas = self.layout.in_order(of_groups)
        return of_components(gammas, {"mean": loc, "scale": scale})

    @torch.no_grad()
    def tables(self, x: Tensor) -> list[Tensor]:
        """E[log N(z_i; μ_ik, 1/α_ik)] of each factor, equation 6, of a batch: I tensors [B, K_i]."""
        of_groups = [part for table in self._tables(*self.encoder(x)) for part in table]
        return [part.to(x.dtype) for part in self.layout.in_order(of_groups)]

    def _tables(self, loc: Tensor, scale: Tensor) -> list[Tensor]:
        """The tables of each group, float64 [I_g, B, K]."""
        mean, variance = (self.layout.split("z", part.double()) for part in (loc, scale.square()))
        return [
            gaussian_table(
                self.layout.take(mean, factors),
                self.layout.take(variance, factors),
                self.get_buffer(f"components_{number}"),
            )
            for number, factors in enumerate(self.factors)
        ]
