"""Search among generated codes: recall at 10 against exact search, memory and time.

Points are drawn from a factorial mixture: each of eight factors of four dimensions has a component out of
64, and z is the component's mean plus noise. Queries are other points of the same mixture. Every row of
output is one JSON object. Times are process time on one thread; memory is what the index keeps of the points.

    python examples/benchmarks/search.py --points 1000000
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and faiss read it

import numpy as np

from pyro_fmvae.evaluate import vector_index

FACTORS, COMPONENTS, DIM, NEAREST = 8, 64, 4, 10


def draw(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 [n, I] and latent vectors float32 [n, I·D]."""
    means = np.random.default_rng(0).normal(0.0, 3.0, (FACTORS, COMPONENTS, DIM))
    rng = np.random.default_rng(seed)
    codes = rng.integers(COMPONENTS, size=(number, FACTORS), dtype=np.uint8)
    z = means[np.arange(FACTORS), codes] + rng.normal(size=(number, FACTORS, DIM))
    return codes, z.reshape(number, -1).astype(np.float32)


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """Share of the true nearest that were found."""
    return float(
        np.mean([len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]) / NEAREST
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--libraries", type=lambda text: text.split(","), default=["faiss", "numpy"])
    given = parser.parse_args()
    codes, z = draw(given.points, seed=1)
    query_codes, queries = draw(given.queries, seed=2)
    exact = None
    for library in given.libraries:
        if library == "numpy":
            sys.modules["faiss"] = None  # as if it were not installed
        for quantised in (False, True):
            start = time.process_time()
            index = vector_index(z, quantised=quantised)
            built = time.process_time() - start
            start = time.process_time()
            _, rows = index.search(queries, NEAREST)
            took = time.process_time() - start
            exact = rows if exact is None else exact
            bytes_each = z.shape[1] // 2 if quantised else 4 * z.shape[1]
            kind = "quantised" if quantised else "exact"
            report(given, library, kind, recall(rows, exact), bytes_each, built, took)
    start = time.process_time()
    rows = np.stack([np.argsort((codes != code).sum(1), kind="stable")[:NEAREST] for code in query_codes])
    report(given, "numpy", "codes", recall(rows, exact), FACTORS, 0.0, time.process_time() - start)


def report(given, library, kind, recalled, bytes_each, built, took) -> None:
    """Print one row."""
    row = {
        "library": library,
        "kind": kind,
        "points": given.points,
        "recall_at_10": round(recalled, 3),
        "megabytes": round(bytes_each * given.points / 1e6, 1),
        "seconds_to_build": round(built, 2),
        "milliseconds_per_query": round(1000 * took / given.queries, 1),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
