"""Write your own model: two measurements per specimen, each with kinds to be discovered.

    python examples/own_model.py [--steps 1000] [--seed 0]

Every specimen (think of a flower) is measured twice, four numbers for its leaf and four for its petal.
There are three kinds of leaf and three kinds of petal, in any combination, and nobody says which is which.
The program has two factors, one per measurement, and each factor has a mixture of three Gaussians as its
prior.

Model and guide are plain Pyro. The globals (mixing weights, means and precisions) get their posterior from
``AutoConjugate``; only q(z | x) is written by hand. Training is Pyro's ``SVI`` with ``NaturalGradient``. At
the end the script compares the components with the true kinds, which training never saw.
"""

import argparse
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch import nn

from pyro_fmvae import (
    Assignment,
    AutoConjugate,
    Component,
    NaturalGradient,
    NormalGamma,
    RobbinsMonro,
    TraceConjugate_ELBO,
)
from pyro_fmvae.evaluate import matching_accuracy
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

N, B, I, K, D = 2000, 100, 2, 3, 2  # noqa: E741  # data points, batch, factors, components, dimensions of a factor
X = 4  # numbers per measurement


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoders = nn.ModuleList(MLPDecoder(D, (X,), hidden=(20,)) for _ in range(I))

    def forward(self, x):  # x [I, B, X]
        pyro.module("decoders", self.decoders)
        data, factors, components = plates(x)
        with factors:
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
            with components:
                loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 0.01, 0.01))
        with data, factors:
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            z = pyro.sample("z", Component(loc_precision, assignment))
            pyro.sample("x", dist.Normal(self.decode(z), 0.3).to_event(1), obs=x)

    def decode(self, z):  # [..., I, B, D] to [..., I, B, X], each factor by its own decoder
        parts = zip(self.decoders, z.unbind(-3), strict=True)
        return torch.stack([decoder(part).squeeze(-2) for decoder, part in parts], -3)


class Guide(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.conjugate = AutoConjugate(model)
        self.encoder = MLPEncoder((I * X,), I * D, hidden=(20,))

    def encode(self, x):  # location and scale of q(z), each [I, B, D]
        return (t.unflatten(-1, (I, D)).transpose(0, 1) for t in self.encoder(x.transpose(0, 1).flatten(1)))

    def forward(self, x):
        pyro.module("encoder", self.encoder)
        self.conjugate(x)
        loc, scale = self.encode(x)
        data, factors, _ = plates(x)
        with data, factors:
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


def plates(x):
    return (
        pyro.plate("data", N, subsample=torch.arange(x.shape[1]), dim=-1),
        pyro.plate("factors", I, dim=-2),
        pyro.plate("components", K, dim=-1),
    )


def measurements(seed):
    """N specimens [I, N, X] and their true kinds [I, N]."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(K, (I, N), generator=generator)
    centres = 2 * torch.randn(I, K, X, generator=generator)
    x = centres[torch.arange(I).unsqueeze(-1), kinds] + 0.5 * torch.randn(I, N, X, generator=generator)
    return x, kinds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seed-at", type=int, default=400, help="step at which components are seeded; -1: never"
    )
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    x, kinds = measurements(options.seed)
    model, elbo = Model(), TraceConjugate_ELBO()
    guide = Guide(model)
    rate = RobbinsMonro(delay=1000.0, first_step=0.05)
    svi = SVI(model, guide, NaturalGradient(rate, partial(torch.optim.Adam, lr=5e-3)), elbo)
    for step in range(options.steps):
        if step == options.seed_at:
            with torch.no_grad():
                loc, scale = guide.encode(x)
            guide.conjugate.seed("z", loc, scale, torch.Generator().manual_seed(options.seed))
        svi.step(x[:, torch.randint(N, (B,))])
        if step == 0 or (step + 1) % max(options.steps // 4, 1) == 0:
            print(f"step {step + 1:4}: ELBO {-svi.evaluate_loss(x) / N:9.3f} nats per specimen")
    found = elbo.responsibilities(model, guide, x)["assignment"].argmax(-1)
    counts = guide.conjugate.posterior("weights").natural_value().squeeze(-2) - 1.0
    for name, truth, component, count in zip(("leaf", "petal"), kinds, found, counts, strict=True):
        accuracy = matching_accuracy(truth.numpy(), component.numpy())
        used = int((count > N / (20 * K)).sum())
        print(
            f"{name:6} {used} of {K} components in use; matching accuracy with the true kinds {accuracy:.1%}"
        )


if __name__ == "__main__":
    main()
