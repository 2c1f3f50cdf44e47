"""Structured bounds of binary sparse coding: the gain of dependence between the units of a group.

    python examples/structured_bound.py [--points 500] [--iterations 100]

There are sixteen units, few enough to compute log p(x) by enumeration, and two dictionaries. The first has
random entries from N(1, 1), whose columns overlap strongly, and its data are generated from it with noise of
deviation 3. The second is learnt by stepwise EM from 8×8 patches of the photographs that scikit-learn ships,
and its data are other patches of them. For groups of 1 (factorised mean field), 2, 4 and 8 units, mean-field
updates run to convergence under the same parameters. The script prints the bound in nats per point, its gap
to log p(x), and seconds.
"""

import argparse
import time

import pyro
import torch
from torch import Tensor

from pyro_fmvae import fit
from pyro_fmvae.data import Batches, SparseOptions, load
from pyro_fmvae.learn import Budget, StepwiseEM
from pyro_fmvae.models import BinarySparseCoding
from pyro_fmvae.models.em import BinaryEM, BinaryParameters, binary_mean_field, enumerate_states

UNITS, GROUPS = 16, (1, 2, 4, 8)
PIXELS, NOISE = 25, 3.0
PATCH, BATCH = 8, 500


def generated(points: int) -> tuple[Tensor, BinaryParameters]:
    """Data [points, D], and the parameters that generated them."""
    weight = 1 + torch.randn(1, PIXELS, UNITS)
    causes = (torch.rand(points, UNITS) < 0.25).to(weight)
    x = causes @ weight[0].T + NOISE * torch.randn(points, PIXELS)
    logits = torch.full((1, UNITS), 0.25).logit()
    return x, BinaryParameters(weight, logits, torch.full((1,), NOISE**-2))


def patches(points: int, iterations: int) -> tuple[Tensor, BinaryParameters]:
    """Patches [points, D], and parameters learnt from other patches."""
    options = SparseOptions(patch_size=PATCH, patches=10_000, whiten=False)
    dataset = load("scenes", sparse=options)
    em = BinaryEM(UNITS)
    model = BinarySparseCoding((PATCH, PATCH), len(dataset.train), em)
    batches = Batches(dataset.train, BATCH, indexed=True)
    for _ in fit([StepwiseEM(model, em, Budget(iterations=iterations))], batches):
        pass
    x = dataset.valid.observations[:points].flatten(1).double()
    return x, BinaryParameters(*(t.detach().double() for t in model.given()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--iterations", type=int, default=100, help="EM iterations on the patches")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    learnt = patches(chosen.points, chosen.iterations)
    torch.set_default_dtype(torch.float64)
    print(f"{'dictionary':12}{'group':>6}{'bound':>12}{'lacks':>10}{'seconds':>9}")
    for name, (x, parameters) in {"random": generated(chosen.points), "patches": learnt}.items():
        exact = enumerate_states(x, *parameters)[0].mean().item()
        for size in GROUPS:
            start = time.monotonic()
            posterior = binary_mean_field.mean_field(x, *parameters, group_size=size)
            found = binary_mean_field.bound(posterior, x, *parameters).mean().item()
            seconds = time.monotonic() - start
            print(f"{name:12}{size:>6}{found:>12.4f}{exact - found:>10.4f}{seconds:>9.2f}", flush=True)
        print(f"{name:12}{'all':>6}{exact:>12.4f}{0:>10.4f}")


if __name__ == "__main__":
    main()
