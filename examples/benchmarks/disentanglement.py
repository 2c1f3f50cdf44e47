"""MIG and DCI of smileys without labels: factors beside β-VAE, β-TCVAE and FactorVAE of the same size.

    python examples/benchmarks/disentanglement.py [--seeds 0,1,2] [--methods fmvae,beta,tc] [--latents 32]

All have the same networks (one hidden layer of 400), 2,200 steps on 128 images, and the same learning rates:
those of ``pyro-fmvae train --data smiley --labels 0``. β is 4 in β-VAE (Higgins et al., 2017) and 6 in
β-TCVAE (Chen et al., 2018), and γ is 10 in FactorVAE (Kim and Mnih, 2018), whose discriminator has three
hidden layers of 400.

One code scores all of them (:mod:`pyro_fmvae.evaluate.disentanglement`), on 4,000 test images. A block is
a factor of the mixture, and its code is the component; elsewhere a block is a single dimension of the mean of
q(z | x), and its code is one of 20 bins of equal width (Locatello et al., 2019). ``fmvae by dimension``
scores the mixture's dimensions like those of the others. ARI is that of each property with the block whose
two k-means clusters agree with it best, or whose components do, averaged over the properties.
"""

import argparse
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import nn
from torch.distributions import Bernoulli, Normal, kl_divergence

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.runs import Run, Trainer, load_data, resolve_device
from pyro_fmvae.data import Batches
from pyro_fmvae.evaluate import Encodings, dci, encode_split, mutual_information, total_correlation
from pyro_fmvae.learn import endless
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

STEPS, FIRST, HIDDEN, BATCH = 2200, 350, 400, 128
BETA, TC, GAMMA = 4.0, 6.0, 10.0
BINS, ROWS = 20, 4000
METHODS = {"fmvae": "fmvae", "beta": "β-VAE", "tc": "β-TCVAE", "factor": "FactorVAE"}


def rate(step):
    """Of Adam: 0.001 for pretraining, then 0.002, which falls to 0.0001 in the last half."""
    joint = (step - FIRST) / (STEPS - FIRST)
    return 1e-3 if joint < 0 else 2e-3 * 0.05 ** max(2 * joint - 1, 0)


def discriminator(latents):
    """Logits [n, 2]: whether dimensions come from one point, or each from another."""
    sizes = [latents, HIDDEN, HIDDEN, HIDDEN]
    hidden = [[nn.Linear(i, o), nn.LeakyReLU(0.2)] for i, o in pairwise(sizes)]
    return nn.Sequential(*(part for pair in hidden for part in pair), nn.Linear(HIDDEN, 2))


def trained(method, dataset, latents, seed, steps=STEPS):
    """An encoder trained by one of the three losses."""
    torch.manual_seed(seed)
    shape = dataset.event_shape
    encoder, decoder = MLPEncoder(shape, latents, (HIDDEN,)), MLPDecoder(latents, shape, 1, (HIDDEN,))
    judge, mean = discriminator(latents), dataset.train.x.float().mean(0).clamp(1e-3, 1 - 1e-3)
    with torch.no_grad():
        decoder.linear.bias.copy_(mean.logit().flatten())
    adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    judging = torch.optim.Adam(judge.parameters(), 1e-4, betas=(0.5, 0.9))
    for step, (x, *_) in enumerate(islice(endless(Batches(dataset.train, BATCH, seed=seed)), steps)):
        adam.param_groups[0]["lr"] = rate(step)
        loc, scale = encoder(x)
        q = Normal(loc, scale)
        z = q.rsample()
        kl = kl_divergence(q, Normal(0.0, 1.0)).sum(-1).mean()
        loss = -Bernoulli(logits=decoder(z).squeeze(-3)).log_prob(x).flatten(1).sum(-1).mean()
        if method == "beta":
            loss = loss + BETA * kl
        elif method == "tc":
            weighted = (TC - 1) * total_correlation(z, loc, scale, len(dataset.train)).mean()
            loss = loss + kl + weighted
        else:
            logits = judge(z)
            loss = loss + kl + GAMMA * (logits[:, 0] - logits[:, 1]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if method == "factor":
            seen = z.detach()
            mixed = torch.stack([part[torch.randperm(len(part))] for part in seen.T], -1)
            truth = torch.arange(2).repeat_interleave(len(seen))
            judging.zero_grad()
            nn.functional.cross_entropy(judge(torch.cat([seen, mixed])), truth).backward()
            judging.step()
    return encoder


def by_dimension(means, labels):
    """Encodings whose blocks are single dimensions, and whose codes are bins of equal width."""
    low, high = means.min(0), means.max(0)
    bins = ((means - low) / (high - low).clip(1e-12) * BINS).astype(int).clip(max=BINS - 1)
    return Encodings(means[..., None], bins, labels)


def of_means(encoder, split):
    with torch.no_grad():
        means = torch.cat([encoder(x)[0] for x, *_ in Batches(split, 500, shuffle=False)])
    return by_dimension(means.double().numpy(), split.labels.numpy())


def clusters(encodings):
    """Components, or two clusters of each dimension, int [n, I]."""
    if encodings.latents.shape[-1] > 1:
        return encodings.codes
    columns = encodings.latents[..., 0].T
    return np.stack(
        [KMeans(2, n_init=1, random_state=0).fit_predict(column[:, None]) for column in columns], -1
    )


def scores(train, test):
    """MIG, disentanglement, completeness, informativeness, and mean ARI."""
    found = dci(train, test)
    codes = clusters(test)
    agreement = [max(adjusted_rand_score(truth, code) for code in codes.T) for truth in test.labels.T]
    mig = mutual_information(test.codes, test.labels).mig
    return mig, found.disentanglement, found.completeness, found.informativeness, float(np.mean(agreement))


def mixture(dataset, seed, device):
    """The model of ``pyro-fmvae train --data smiley --labels 0``."""
    with tempfile.TemporaryDirectory() as folder:
        config = configure(data="smiley", labels=0.0, factors=(2, 2, 2, 2), seed=seed)
        trainer = Trainer(Run.new(Path(folder) / "run", config, dataset), dataset, device)
        for _ in trainer.records():
            pass
    return trainer.model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--latents", type=int, default=32, help="dimensions of z of all but the mixture")
    parser.add_argument("--steps", type=int, default=STEPS, help="of all but the mixture")
    args = parser.parse_args()
    torch.set_default_dtype(torch.float32)
    dataset = load_data(configure(data="smiley", labels=0.0), None)
    train, test = dataset.train.select(torch.arange(ROWS)), dataset.test
    print(f"{'method':20} seed    MIG  disentanglement  completeness  informativeness    ARI  seconds")
    for method in args.methods.split(","):
        for seed in map(int, args.seeds.split(",")):
            began = time.process_time()
            if method == "fmvae":
                model = mixture(dataset, seed, resolve_device("cpu"))
                found = {METHODS[method]: [encode_split(model, split) for split in (train, test)]}
                found["fmvae by dimension"] = [of_means(model.encoder, split) for split in (train, test)]
            else:
                encoder = trained(method, dataset, args.latents, seed, args.steps)
                found = {METHODS[method]: [of_means(encoder, split) for split in (train, test)]}
            seconds = time.process_time() - began
            for name, encodings in found.items():
                mig, disentangled, complete, informative, ari = scores(*encodings)
                print(
                    f"{name:20} {seed:4}  {mig:.3f}  {disentangled:15.3f}  {complete:12.3f}  "
                    f"{informative:15.3f}  {ari:.3f}  {seconds:7.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
