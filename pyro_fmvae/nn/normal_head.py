"""Head of encoders for diagonal normal posteriors."""

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
