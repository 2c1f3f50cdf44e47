"""Kinds of cells from counts of molecules in two batches, against scanpy's defaults.

    pip install '.[cells]'
    python examples/cells.py [--cells 2000] [--seed 0] [--out runs/cells] [--picture cells.png]

The cells are generated. A cell shares its molecules out among the genes as its kind does, changed by its
batch. How many molecules it has tells nothing of its kind, and counts are dispersed. The model is the
factorial mixture VAE under a negative binomial likelihood: the kinds are the components of its one factor,
which has twice as many as there are kinds. scanpy takes the steps of its tutorial, each at its default:
normalise, log1p, the most variable genes, PCA, neighbours, Leiden clusters. These steps are not told the
batches; the model is. So they are taken a second time with the batches given: the variable genes are those of
both batches, and ComBat (Johnson, Li and Rabinovic, 2007) takes each gene's shift by batch out of them.
Printed is the adjusted Rand index of the clusters with the true kinds, and with the batches: 1 is equal, 0 is
chance.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy
from anndata import AnnData
from sklearn.metrics import adjusted_rand_score

import pyro_fmvae

GENES, KINDS, BATCHES = 500, 8, 2
MARKERS, BATCH_EFFECT, DISPERSION = 0.08, 0.5, 2.0


def generate(cells: int, seed: int) -> AnnData:
    """Counts of cells, with the kind and the batch of each."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(KINDS, cells, p=rng.dirichlet(np.full(KINDS, 5.0)))
    batch = rng.integers(BATCHES, size=cells)
    markers = rng.random((KINDS, GENES)) < MARKERS
    logits = rng.normal(0, 1.2, GENES) + markers * rng.normal(0, 1.2, (KINDS, GENES))
    shift = BATCH_EFFECT * rng.normal(0, 1, (BATCHES, GENES))
    rates = np.exp(logits[kind] + shift[batch])
    library = rng.lognormal(np.log(1500), 0.4, cells)
    mean = library[:, None] * rates / rates.sum(1, keepdims=True)
    counts = rng.poisson(mean * rng.gamma(DISPERSION, 1 / DISPERSION, mean.shape))
    return AnnData(
        counts.astype(np.float32),
        obs=pd.DataFrame(
            {"kind": pd.Categorical(kind), "batch": pd.Categorical(batch.astype(str))},
            index=[f"cell {number}" for number in range(cells)],
        ),
        var=pd.DataFrame(index=[f"gene {number}" for number in range(GENES)]),
    )


def by_scanpy(cells: AnnData, told: bool) -> tuple[np.ndarray, np.ndarray]:
    """Clusters [n] and coordinates [n, J] by scanpy's defaults, which may be told the batches."""
    found = cells.copy()
    scanpy.pp.normalize_total(found)
    scanpy.pp.log1p(found)
    scanpy.pp.highly_variable_genes(found, batch_key="batch" if told else None)
    if told:
        with np.errstate(divide="ignore"):  # by a gene that no cell of a batch has
            scanpy.pp.combat(found, "batch")
    scanpy.pp.pca(found)
    scanpy.pp.neighbors(found)
    scanpy.tl.leiden(found, flavor="igraph", n_iterations=2)  # what scanpy asks for, and its default to come
    return found.obs["leiden"].astype(int).to_numpy(), found.obsm["X_pca"]


def by_counts(cells: AnnData, folder: Path, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Components [n] and means of z [n, J] by a factorial mixture VAE of one factor."""
    folder.mkdir(parents=True)
    cells.write_h5ad(folder / "cells.h5ad")
    run = pyro_fmvae.train(
        folder / "cells.h5ad",
        out=folder / "run",
        likelihood="negative-binomial",
        batch_column="batch",
        factors=(2 * KINDS,),
        pretrain_iterations=args.pretrain,
        joint_iterations=args.iterations,
        patience=0,
        seed=args.seed,
    )
    encoded = run.encode(np.column_stack([cells.X, cells.obs["batch"].astype(int)]))
    return encoded["codes"][:, 0], encoded["mean"]


def plot(cells: AnnData, coordinates: dict[str, np.ndarray], path: Path) -> None:
    """Draw each method's coordinates in two dimensions by UMAP, coloured by kind and by batch."""
    figure, panels = plt.subplots(
        2, len(coordinates), figsize=(3.2 * len(coordinates), 6.4), layout="constrained"
    )
    for column, (method, points) in zip(panels.T, coordinates.items(), strict=True):
        flat = AnnData(points)
        scanpy.pp.neighbors(flat, use_rep="X")
        scanpy.tl.umap(flat)
        order = np.random.default_rng(0).permutation(len(points))
        for axes, of, palette in zip(column, ("kind", "batch"), ("tab10", "Set1"), strict=True):
            numbers = cells.obs[of].cat.codes.to_numpy()[order]
            axes.scatter(*flat.obsm["X_umap"][order].T, c=numbers, cmap=palette, vmin=0, vmax=9, s=2)
            axes.set(title=f"{method}, colours: {of}", xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--pretrain", type=int, default=600, help="iterations of the networks alone")
    parser.add_argument("--iterations", type=int, default=1500, help="of the joint phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/cells"), help="folder for the data and the run"
    )
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    cells = generate(args.cells, args.seed)
    found = {
        "scanpy": by_scanpy(cells, told=False),
        "scanpy, ComBat": by_scanpy(cells, told=True),
        "counts": by_counts(cells, args.out, args),
    }
    for method, (clusters, _) in found.items():
        kind, batch = (adjusted_rand_score(cells.obs[of], clusters) for of in ("kind", "batch"))
        number = len(np.unique(clusters))
        print(f"{method}: {number} clusters, ARI with the {KINDS} kinds {kind:.3f}, the batches {batch:.3f}")
    if args.picture is not None:
        plot(cells, {method: points for method, (_, points) in found.items()}, args.picture)


if __name__ == "__main__":
    main()
