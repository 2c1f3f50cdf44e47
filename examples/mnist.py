"""A VAE with a mixture prior on binarised MNIST: one factor, 64 components, the paper's networks.

    python examples/mnist.py --data-root path/to/data [--data mnist-static] [--minutes 5] [--seed 0]

``mnist-static`` is the fixed binarisation of published likelihoods; ``mnist`` redraws the pixels of training
images at each visit. Both are downloaded to ``--data-root`` if needed. Runs with a budget in minutes are not
reproducible to the last digit; those with ``--iterations`` are.

The script prints the bound of equation 11 with its terms (Paquet et al., 2018), the two tighter bounds of the
library on a few images, and the number of components in use. It writes pictures of the components, of
reconstructions and of samples. Five minutes on a CPU are far from convergence: the paper trains for 300,000
iterations and more.
"""

import argparse
from pathlib import Path

import torch
from tqdm import tqdm

from pyro_fmvae import BernoulliObservation, FactorialMixtureVAE, figures, fit
from pyro_fmvae.app.recipes import factors_of
from pyro_fmvae.data import Batches, load
from pyro_fmvae.evaluate import bound, tighter_bounds
from pyro_fmvae.learn import Budget, FMVAEOptions, Joint, Pretraining, PriorFitting
from pyro_fmvae.nn import ConvDecoder, ConvEncoder

SHARES = {"pretrain": 0.25, "prior": 0.05, "joint": 0.7}


def budgets(minutes, iterations):
    """A budget per phase, in minutes or in iterations."""
    if iterations is None:
        return [Budget(minutes=share * minutes) for share in SHARES.values()]
    return [Budget(iterations=max(round(share * iterations), 1)) for share in SHARES.values()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=("mnist-static", "mnist"), default="mnist-static")
    parser.add_argument("--data-root", help="folder of data sets; default: ~/.cache/pyro_fmvae")
    parser.add_argument("--components", type=int, default=64, help="number of components")
    parser.add_argument("--dim", type=int, default=64, help="number of latent dimensions")
    parser.add_argument("--minutes", type=float, default=5.0, help="budget of all three phases together")
    parser.add_argument("--iterations", type=int, help="budget in iterations instead")
    parser.add_argument("--test-points", type=int, default=2000, help="images to evaluate the bound on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("mnist-figures"), help="folder for the pictures")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    dataset = load(options.data, options.data_root)
    batches = Batches(dataset.train, 64, seed=options.seed, device=options.device)
    model = FactorialMixtureVAE(
        ConvEncoder((28, 28), options.dim),
        ConvDecoder(options.dim, (28, 28)),
        BernoulliObservation(event_dim=2),
        num_components=[options.components],
        dim=options.dim,
        num_data=len(dataset.train),
    ).to(options.device)

    learning = FMVAEOptions(learning_rate=1e-3, final_learning_rate=1e-4)
    pretrain, prior, joint = budgets(options.minutes, options.iterations)
    phases = [
        Pretraining(model, learning, pretrain),
        PriorFitting(model, learning, prior, options.seed),
        Joint(model, learning, joint),
    ]
    with tqdm(total=100, disable=None, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}") as bar:
        done = dict.fromkeys(SHARES, 0.0)
        for record in fit(phases, batches):
            done[record.phase] = record.fraction
            bar.set_description_str(record.phase, refresh=False)
            bar.update(100 * sum(SHARES[name] * done[name] for name in SHARES) - bar.n)
            if record.step == 0:
                bar.write(f"{record.phase} begins after {record.total_steps} steps, {record.seconds:.0f} s")

    model.eval()
    split = "valid" if dataset.test is None else "test"
    rows = dataset.split(split)
    rows = rows.select(torch.arange(min(options.test_points, len(rows))))
    testing = Batches(rows, 200, shuffle=False, device=options.device)
    result = bound(model, testing)
    print(f"trained for {record.total_steps} steps in {record.seconds:.0f} s on {options.device}")
    print(f"{len(rows)} images of the {split} split, nats per image:")
    print(
        f"  bound of equation 11 {result['elbo']:8.2f} = reconstruction {result['reconstruction']:.2f}",
        end="",
    )
    print(f" - KL[z] {result['kl_z']:.2f} - KL[r] {result['kl_r']:.2f}")
    few = rows.select(torch.arange(min(200, len(rows))))
    few = Batches(few, len(few), shuffle=False, device=options.device)
    tighter = bound(model, few) | tighter_bounds(model, few, num_samples=20)
    print(f"  on {few.num_data} of them: equation 11 {tighter['elbo']:.2f}, ", end="")
    print(f"collapsed {tighter['collapsed']:.2f}, ", end="")
    print(f"importance-weighted {tighter['importance_weighted']:.2f} (20 draws each)")
    print(f"components in use: {model.used_components()[0]} of {options.components}")

    torch.manual_seed(options.seed)
    factors = factors_of(model)
    figures.save(figures.component_grid(factors), options.out / "components.png")
    with torch.no_grad():
        x, *_ = next(iter(few))
        mean = model.observation.mean(model.decoder(model.encoder(x[:20])[0]))
        samples = factors.decode_all(model.sample_latent(64))
    figures.save(figures.reconstructions(x[:20].cpu(), mean.cpu()), options.out / "reconstructions.png")
    figures.save(figures.sample_grid(samples.cpu(), 8, 8), options.out / "samples.png")
    print(f"pictures in {options.out}")


if __name__ == "__main__":
    main()
