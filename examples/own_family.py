"""Write your own conjugate family: three instruments of unknown precision.

    python examples/own_family.py [--steps 30] [--seed 0]

Every measurement has an error, which turned out later. Three instruments were in use, and nobody wrote down
which one made which measurement. Errors of instrument k are normal, with the standard deviation σ_k.

The library has conjugate priors of a variance and of a precision, but none of a standard deviation itself.
Here is one: ``ScaleFamily``, the distribution of σ where 1/σ² has a Gamma. It is everything that inference
has to know: the model is an ordinary Pyro program.
"""

import argparse
import math
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch.distributions import constraints, kl_divergence, register_kl

from pyro_fmvae import (
    AutoConjugate,
    NaturalDistribution,
    NaturalGradient,
    ScalarFamily,
    TraceConjugate_ELBO,
    register_family,
)

K, N = 3, 3000  # instruments, measurements
SCALES = torch.tensor([0.1, 1.0, 10.0])


class ScalePrior(dist.TorchDistribution):
    """The prior in standard parameters: σ = 1/√g with g ~ Gamma(a, b), each [...]."""

    arg_constraints = {  # noqa: RUF012
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.positive
    has_rsample = True

    def __init__(self, concentration, rate, validate_args=None):
        self.concentration, self.rate = torch.broadcast_tensors(concentration, rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(ScalePrior, _instance)
        parameters = (t.expand(batch_shape) for t in (self.concentration, self.rate))
        ScalePrior.__init__(new, *parameters, validate_args=self._validate_args)
        return new

    @property
    def precision(self):
        return dist.Gamma(self.concentration, self.rate, validate_args=False)

    @property
    def mean(self):  # for a > 1/2
        a, b = self.concentration, self.rate
        return (torch.lgamma(a - 0.5) - torch.lgamma(a)).exp() * b.sqrt()

    def rsample(self, sample_shape=()):
        return self.precision.rsample(torch.Size(sample_shape)).rsqrt()

    def log_prob(self, value):
        a, b = self.concentration, self.rate
        constant = math.log(2) + a * b.log() - torch.lgamma(a)
        return constant - (2 * a + 1) * value.log() - b * value**-2


class ScaleFamily(ScalarFamily):
    """The algebra: p(σ) = 2 bᵃ/Γ(a) σ^(-2a-1) exp(-b/σ²), with t = (log σ, 1/σ²) and λ = (-2a, -b)."""

    distribution, names = ScalePrior, ("concentration", "rate")
    statistics = (("log",), ("1/x", "1/x"))
    domain = "a and b > 0"

    def natural(self, *standard):
        a, b = standard
        return torch.stack(torch.broadcast_tensors(-2 * a, -b), -1)

    def unpack(self, natural):
        return -0.5 * natural[..., 0], -natural[..., 1]

    def log_normalizer(self, natural):
        a, b = self.unpack(natural)
        return torch.lgamma(a) - a * b.log()

    def mean_stats(self, natural):  # the gradient of log_normalizer
        a, b = self.unpack(natural)
        return torch.stack([0.5 * (b.log() - torch.digamma(a)), a / b], -1)

    def inverse_fisher(self, standard, grads):  # F⁻¹ = (∂E[t]/∂λ)⁻¹, times the gradient with respect to λ
        (a, b), (grad_a, grad_b) = standard, grads
        trigamma = torch.polygamma(1, a)
        first, second = -2 * (a * grad_a + b * grad_b), -b * (grad_a + b * trigamma * grad_b)
        return torch.stack([first, second], -1) / (a * trigamma - 1).unsqueeze(-1)

    def in_domain(self, natural):
        a, b = self.unpack(natural)
        return (a > 0) & (b > 0)

    def log_base_measure(self, stats):  # log(2/σ)
        return math.log(2) - stats[..., 0]

    def random_start(self, prior, count, generator):
        a, b = self.unpack(prior)
        size = torch.randn(a.shape, dtype=a.dtype, generator=generator).exp()
        return self.natural(a + count / 2, b + count / 2 * size * b / a)


SCALE = ScaleFamily()


@register_family(ScalePrior)
class NaturalScale(NaturalDistribution, ScalePrior):
    """The posterior in natural parameters; it draws and has densities as its prior does."""

    family = SCALE


@register_kl(ScalePrior, ScalePrior)
def _kl(q, p):  # for posteriors in standard parameters
    return kl_divergence(q.precision, p.precision)


def model(error):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("instruments", K):
        scale = pyro.sample("scale", ScalePrior(torch.tensor(1.0), torch.tensor(0.01)))
    with pyro.plate("measurements", len(error)):
        instrument = pyro.sample("instrument", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("error", dist.Normal(0.0, scale[instrument]), obs=error)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    error = SCALES[torch.randint(K, (N,))] * torch.randn(N)
    guide = AutoConjugate(model)
    svi = SVI(model, guide, NaturalGradient(1.0, partial(torch.optim.SGD, lr=0.0)), TraceConjugate_ELBO())
    for step in range(options.steps):
        loss = svi.step(error)
        if step % max(options.steps // 5, 1) == 0:
            print(f"step {step:3}: ELBO {-loss:10.2f}")
    found = guide.posterior("scale")().mean.sort().values
    for true, mean in zip(SCALES.tolist(), found.tolist(), strict=True):
        print(f"an instrument whose errors have a scale of {true:4.1f}: found {mean:.3f}")


if __name__ == "__main__":
    main()
