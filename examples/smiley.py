"""Train a factorial mixture VAE from Python on smileys with four properties, a tenth of them labelled.

    python examples/smiley.py [--points 10000] [--iterations 800] [--labels 0.1] [--seed 0]

The images are generated: 32x32 faces with or without eyes, mouth, hat and bow tie. Each property has its own
factor, with a mixture of two Gaussians as its prior. ``pyro-fmvae train`` does the same, with files and
checkpoints; this script shows the parts. It prints how often the code of a test image agrees with the image's
properties, and writes a picture: each row is a draw from the model, followed by copies with one property
redrawn.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from pyro_fmvae import BernoulliObservation, FactorialMixtureVAE, figures, fit
from pyro_fmvae.app.recipes import factors_of
from pyro_fmvae.data import Batches, Split, hide_labels, smiley
from pyro_fmvae.data.sets import smileys
from pyro_fmvae.evaluate import bound, label_agreement
from pyro_fmvae.learn import Budget, FMVAEOptions, Joint, Pretraining, PriorFitting
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

D = 8  # dimensions of each factor
SHAPE = (32, 32)
ATTRIBUTES = smileys.ATTRIBUTES


def faces(n, seed):
    """A split of n generated faces with all labels."""
    drawn = smiley(n, seed)
    return Split(torch.from_numpy(drawn.x.astype(bool)), torch.from_numpy(drawn.labels))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=10_000, help="training images")
    parser.add_argument(
        "--iterations",
        type=int,
        default=800,
        help="iterations of the joint phase; those of other phases are in proportion",
    )
    parser.add_argument("--labels", type=float, default=0.1, help="share of the training images with labels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("smiley-figures"), help="folder for the pictures")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    train, test = faces(options.points, seed=options.seed + 1), faces(2000, seed=options.seed + 2)
    few_labels = replace(train, labels=hide_labels(train, options.labels, options.seed))
    batches = Batches(few_labels, 128, seed=options.seed)

    latent = D * len(ATTRIBUTES)
    model = FactorialMixtureVAE(
        MLPEncoder(SHAPE, latent, (400,)),
        MLPDecoder(latent, SHAPE, 1, (400,)),
        BernoulliObservation(event_dim=2),
        num_components=[2] * len(ATTRIBUTES),
        dim=D,
        num_data=len(train),
        labelled=range(len(ATTRIBUTES)),
    )

    # First the networks under a N(0, I) prior, then the mixtures alone, from the encodings. Then everything,
    # with a weight of 100 for the labels' term, and last without that term, by natural gradients throughout.
    learning = FMVAEOptions(label_weight=100.0)
    n = options.iterations
    phases = [
        Pretraining(model, learning, Budget(iterations=max(n // 2, 1))),
        PriorFitting(model, learning, Budget(iterations=max(n // 20, 1)), options.seed),
        Joint(model, learning, Budget(iterations=n)),
        Joint(model, replace(learning, label_weight=0.0), Budget(iterations=max(n // 2, 1)), name="refine"),
    ]
    total = sum(phase.budget.iterations for phase in phases)
    with tqdm(total=total, disable=None) as bar:  # no bar unless standard error is a terminal
        for record in fit(phases, batches):
            bar.update(record.total_steps - bar.n)
            bar.set_description_str(record.phase, refresh=False)
            if record.step == 0:
                bar.write(f"{record.phase} begins after {record.total_steps} steps")

    model.eval()
    testing = Batches(test, 500, shuffle=False)
    measures = bound(model, testing)
    agreement = label_agreement(model, testing, ATTRIBUTES, range(len(ATTRIBUTES)))
    print(f"bound on log p(x), nats per test image: {measures['elbo']:.2f}")
    print(f"components in use: {model.used_components()} of {list(model.num_components)}")
    print(f"property   accuracy on {len(test)} test images, {options.labels:.0%} of {len(train)} labelled")
    for name, accuracy in agreement["accuracy"].items():
        print(f"  {name:9}{accuracy:.3f}")

    torch.manual_seed(options.seed)
    figures.save(figures.attribute_rows(factors_of(model, ATTRIBUTES)), options.out / "properties.png")
    with torch.no_grad():
        x, _ = next(iter(Batches(test, 20, shuffle=False)))
        mean = model.observation.mean(model.decoder(model.encoder(x)[0]))
    figures.save(figures.reconstructions(x, mean), options.out / "reconstructions.png")
    print(f"pictures in {options.out}")


if __name__ == "__main__":
    main()
