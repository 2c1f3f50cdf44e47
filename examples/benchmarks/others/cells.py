"""Cells of a batch that the training did not have: kinds by neighbours, and how well the batches mix.

    python examples/benchmarks/others/cells.py FOLDER [--seeds 3] [--genes 1000] [--out runs/cells]

FOLDER has the counts and the metadata of three human lung cancer lines by two protocols (Tian et al., 2019),
``sc_celseq2`` and ``sc_dropseq``. The model learns from one protocol, on the genes that vary most in it, and
maps the other. Printed are, without and with the steps that learn the new batch, the share of its cells whose
line is that of most of their 15 nearest training cells, by means of z, and iLISI: the inverse Simpson index
of the batches among the 30 nearest cells, 2 if two batches mix and 1 if they do not (Korsunsky et al., 2019).
"""

import argparse
import contextlib
import io
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

import pyro_fmvae

PROTOCOLS = "celseq2", "dropseq"


def read(folder: Path, protocol: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Counts of the cells by gene, and the line of each."""
    counts = pd.read_csv(folder / f"sc_{protocol}.count.csv.gz", index_col=0).T
    lines = pd.read_csv(folder / f"sc_{protocol}.metadata.csv.gz", index_col=0)["cell_line_demuxlet"]
    counts = counts.loc[counts.index.intersection(lines.index)]
    return counts, lines.loc[counts.index].to_numpy()


def variable(counts: pd.DataFrame, number: int) -> pd.Index:
    """The genes whose logarithms of shares vary most."""
    shares = counts.to_numpy() / counts.to_numpy().sum(1, keepdims=True)
    return counts.columns[np.argsort(-np.log1p(1e4 * shares).var(0))[:number]]


def ilisi(points: np.ndarray, batch: np.ndarray, neighbours: int = 30) -> float:
    """Mean inverse Simpson index of the batches of each point's nearest points, those of one weight."""
    near = NearestNeighbors(n_neighbors=neighbours).fit(points).kneighbors(return_distance=False)
    shares = np.stack([(batch[near] == each).mean(1) for each in np.unique(batch)])
    return float((1 / np.square(shares).sum(0)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--genes", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/cells"))
    args = parser.parse_args()
    cells = {protocol: read(args.folder, protocol) for protocol in PROTOCOLS}
    common = cells[PROTOCOLS[0]][0].columns.intersection(cells[PROTOCOLS[1]][0].columns)
    for seed in range(args.seeds):
        for first, second in (PROTOCOLS, PROTOCOLS[::-1]):
            (counts, lines), (others, wanted) = cells[first], cells[second]
            genes = variable(counts[common], args.genes)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                run = pyro_fmvae.train(
                    counts[genes].assign(batch=0),
                    out=args.out / f"{first}-{seed}",
                    likelihood="negative-binomial",
                    batch_column="batch",
                    factors=(16,),
                    seed=seed,
                )
            known = run.encode(counts[genes].assign(batch=0))["mean"]
            nearest = KNeighborsClassifier(15).fit(known, lines)
            for iterations in (0, 300):
                new = run.map_query(others[genes].to_numpy(), iterations, seed)["mean"]
                mixed = ilisi(np.vstack([known, new]), np.repeat([0, 1], [len(known), len(new)]))
                print(
                    f"{first} to {second}, seed {seed}, {iterations} steps: accuracy "
                    f"{nearest.score(new, wanted):.3f}, iLISI {mixed:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
