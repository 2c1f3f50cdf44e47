"""How many labels does it take? Points chosen by the explorer against points drawn at random.

Labels are known here, and hidden from the model: a run is trained without any, then labels are given ten at a
time, to the points that :func:`~pyro_fmvae.app.explorer.most_telling` chooses or to points drawn at random,
and the model is refined after each round as on the explorer's page. The accuracy is that on the training
points that have no label yet.

    python examples/label_next.py --data-root ~/data --out label-next

writes ``label-next.json`` and ``label-next.png``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pyro_fmvae
from pyro_fmvae.app.explorer import Exploration, LabelSession
from pyro_fmvae.data import load
from pyro_fmvae.learn import Budget

LABELS = (10, 20, 40, 80, 160)
CHOSEN, RANDOM = "chosen", "random"
OPTIONS = {
    "MNIST": ("--factors", "64", "--pretrain-iterations", "500", "--joint-iterations", "1000"),
    "faces": (
        *("--factors", "32", "--pretrain-iterations", "300", "--joint-iterations", "600"),
        *("--min-scale", "0.1"),
    ),
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with MNIST and faces60x64.npz")
    parser.add_argument("--out", type=Path, default=Path("label-next"))
    parser.add_argument("--sets", nargs="*", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--seeds", type=int, nargs="*", default=range(5))
    parser.add_argument("--labels", type=int, nargs="*", default=LABELS)
    parser.add_argument("--points", type=int, default=2500, help="of MNIST")
    parser.add_argument("--iterations", type=int, help="of the run's pretraining, and of its joint phase")
    parser.add_argument("--refine", type=int, default=50, help="iterations after each round")
    return parser.parse_args(arguments)


def mnist(root: Path, points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Black and white digits, and what they are."""
    train = load("mnist", root, binarization="threshold").train
    rows = np.random.default_rng(seed).permutation(len(train))[:points]
    assert train.labels is not None
    return train.x.numpy()[rows].astype(bool), train.labels.numpy()[rows, 0]


def faces(root: Path, points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey faces of ten people at half their size, and the direction in which they look."""
    with np.load(root / "faces60x64.npz", allow_pickle=False) as found:
        order = np.random.default_rng(seed).permutation(len(found["x"]))
        halved = found["x"][order].reshape(-1, 30, 2, 32, 2).mean((2, 4)).astype(np.uint8)
        return halved, found["labels"][order, 0]


READERS = {"MNIST": mnist, "faces": faces}


def train(
    name: str, folder: Path, x: np.ndarray, labels: np.ndarray, seed: int, iterations: int | None
) -> Path:
    """Train a run on all the points; their labels lie beside it, and are not used."""
    np.savez(folder / "data.npz", x=x, labels=labels, label_names=np.array(["truth"]))
    options = (
        *("train", "--data", folder / "data.npz", "--out", folder / "run", "--seed", seed),
        *("--network", "mlp", "--hidden", "256", "--valid", "0", "--test", "0"),
        *OPTIONS[name],
        *(("--pretrain-iterations", iterations, "--joint-iterations", iterations) if iterations else ()),
    )
    subprocess.run([sys.executable, "-m", "pyro_fmvae", *map(str, options)], check=True)
    return folder / "run"


def simulate(run: Path, how: str, seed: int, amounts: Iterable[int], refine: int) -> list[float]:
    """Accuracy on points without a label, for each number of labels."""
    for kept in run.glob("labels.csv"):
        kept.unlink()
    explored = Exploration(pyro_fmvae.load(run, "cpu"))
    session, rng, found = LabelSession(explored), np.random.default_rng(seed), []
    assert explored.points.labels is not None
    truth = explored.points.labels[:, 0].numpy()
    session.begin("what", [f"value {value}" for value in range(truth.max() + 1)])
    given = session.properties["what"].given
    for amount in amounts:
        while len(given) < amount:
            number = min(10, amount - len(given))
            rest = np.setdiff1d(np.arange(len(truth)), list(given))
            rows = session.next("what", number) if how == CHOSEN else rng.choice(rest, number, False).tolist()
            for row in rows:
                session.give("what", row, int(truth[row]))
        session.refine(Budget(iterations=refine))
        probabilities = session.probabilities("what")
        assert probabilities is not None
        rest = np.setdiff1d(np.arange(len(truth)), list(given))
        found.append(float((probabilities.argmax(1) == truth)[rest].mean()))
    return found


def draw(rows: list[dict[str, object]], target: Path) -> None:
    """Mean accuracy against the number of labels, and every seed as a thin line."""
    sets = list(dict.fromkeys(str(row["set"]) for row in rows))
    figure, axes = plt.subplots(
        1, len(sets), figsize=(4.4 * len(sets), 3.4), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], sets, strict=True):
        for how, colour in ((CHOSEN, "#16457f"), (RANDOM, "#c26a00")):
            own = [row for row in rows if row["set"] == name and row["how"] == how]
            amounts = own[0]["labels"]
            lines = np.array([row["accuracy"] for row in own])
            axis.plot(amounts, lines.T, color=colour, alpha=0.25, linewidth=0.8)
            axis.plot(amounts, lines.mean(0), color=colour, marker="o", label=how)
        axis.set(title=name, xscale="log", xlabel="labels", ylabel="accuracy without a label")
        axis.set_xticks(amounts, [str(amount) for amount in amounts], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    rows: list[dict[str, object]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                x, labels = READERS[name](options.data_root, options.points, seed)
                run = train(name, Path(folder), x, labels, seed, options.iterations)
                amounts = [amount for amount in options.labels if amount < len(x) // 2]
                for how in (CHOSEN, RANDOM):
                    accuracy = simulate(run, how, seed, amounts, options.refine)
                    rows.append(
                        {"set": name, "seed": seed, "how": how, "labels": amounts, "accuracy": accuracy}
                    )
                    print(name, seed, how, *(f"{one:.3f}" for one in accuracy), flush=True)
                    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
