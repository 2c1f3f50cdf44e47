"""Kinds of cells from counts of molecules in two batches, against scanpy's defaults.

    pip install '.[cells]'
    python examples/cells.py [--cells 3000] [--seeds 0] [--minutes 3] [--out runs/cells] [--picture cells.png]

The cells are generated. A cell of a kind shares its molecules out among the genes as the kind does, with a
change that is the batch's own; how many molecules it has, its library size, tells nothing of its kind. Kinds
have unequal shares, and counts are dispersed. The model is the factorial mixture VAE under a negative binomial
likelihood, with one factor: the kinds are its components. scanpy takes the steps of its own tutorial, each at
its default: normalise, log1p, the 2,000 most variable genes, PCA, neighbours, Leiden clusters. Printed is the
adjusted Rand index with the true kinds, and with the batches, of which a good clustering tells nothing.
"""

import argparse
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy
from anndata import AnnData
from sklearn.metrics import adjusted_rand_score

import pyro_fmvae

GENES, KINDS, BATCHES, MARKERS = 300, 8, 2, 0.15
DISPERSION = 2.0


def generate(cells: int, batch_effect: float, seed: int) -> AnnData:
    """Counts of cells of ``KINDS`` kinds in two batches; ``batch_effect`` 0 is none."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(KINDS, cells, p=rng.dirichlet(np.full(KINDS, 5.0)))
    batch = rng.integers(BATCHES, size=cells)
    markers = rng.random((KINDS, GENES)) < MARKERS
    logits = rng.normal(0, 1.2, GENES) + markers * rng.normal(0, 1.2, (KINDS, GENES))
    shift = batch_effect * rng.normal(0, 1, (BATCHES, GENES))
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


def by_scanpy(cells: AnnData) -> tuple[np.ndarray, np.ndarray]:
    """Clusters [n] and coordinates [n, J] by scanpy's defaults."""
    found = cells.copy()
    scanpy.pp.normalize_total(found)
    scanpy.pp.log1p(found)
    scanpy.pp.highly_variable_genes(found)
    scanpy.pp.pca(found)
    scanpy.pp.neighbors(found)
    scanpy.tl.leiden(found, flavor="igraph", n_iterations=2)  # what scanpy asks for, and its default to come
    return found.obs["leiden"].astype(int).to_numpy(), found.obsm["X_pca"]


def by_counts(
    cells: AnnData, components: int, folder: Path, seed: int, **options
) -> tuple[np.ndarray, np.ndarray]:
    """Components [n] and means of z [n, J] by a factorial mixture VAE of one factor."""
    folder.mkdir(parents=True, exist_ok=True)
    cells.write_h5ad(folder / "cells.h5ad")
    run = pyro_fmvae.train(
        folder / "cells.h5ad",
        out=folder / "run",
        likelihood="negative-binomial",
        batch_column="batch",
        factors=(components,),
        seed=seed,
        **options,
    )
    encoded = run.encode(np.column_stack([cells.X, cells.obs["batch"].astype(int)]))
    return encoded["codes"][:, 0], encoded["mean"]
