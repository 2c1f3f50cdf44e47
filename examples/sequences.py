"""Visits to a shop by day: states of a hidden Markov model, and a forecast with intervals.

    python examples/sequences.py [--days 200] [--ahead 28] [--seed 0] [--picture sequences.png]

Each day has a number of visitors, their spending, and whether it rained. A quiet, a usual or a busy spell
lasts for about three weeks. A tenth of the entries are missing, and so are all of ten days. The script prints
how many states the model finds, how well they agree with the spells, and how many of the days ahead lie
within intervals of 90 %.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae.sklearn import HiddenMarkovModel

STAYS, VISITORS, SPENDING = 0.95, np.array([12, 30, 55]), np.array([9.0, 14.0, 11.0])
COLOURS = ("#dfe7f0", "#f3dcae", "#e9a59a", "#cfe3cf", "#ddd0ea", "#f0f0c8")


def generate(days: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Visitors, spending and rain of each day, [days, 3], and the spell that it is in."""
    spells = [1]
    while len(spells) < days:
        spells.append(spells[-1] if rng.random() < STAYS else int(rng.integers(3)))
    spell = np.array(spells)
    columns = (
        rng.poisson(VISITORS[spell]),
        rng.normal(SPENDING[spell], 1.5),
        rng.random(days) < 0.6 - 0.2 * spell,
    )
    return np.column_stack(columns).astype(float), spell


def plot(table: np.ndarray, path: np.ndarray, ahead: np.ndarray, forecast: tuple, name: str) -> None:
    """Visitors over the states of the days, and those ahead within their intervals."""
    figure = Figure(figsize=(8.0, 2.8), layout="constrained")
    axes = figure.subplots()
    for state in range(path.max() + 1):
        where = (path == state).repeat(2)
        edges = np.arange(len(path)).repeat(2) + np.tile([-0.5, 0.5], len(path))
        axes.fill_between(edges, 0, 1, where, color=COLOURS[state % len(COLOURS)], lw=0,
                          transform=axes.get_xaxis_transform())  # fmt: skip
    axes.plot(table[:, 0], ".-", color="0.2", lw=0.8, ms=3)
    days = len(table) + np.arange(len(ahead))
    mean, lower, upper = (part[:, 0] for part in forecast)
    axes.fill_between(days, lower, upper, color="C0", alpha=0.25, lw=0, label="90 % intervals")
    axes.plot(days, mean, color="C0", label="forecast")
    axes.plot(days, ahead[:, 0], ".", color="0.2", ms=4)
    axes.set(xlabel="day", ylabel="visitors", xlim=(-0.5, days[-1] + 0.5), ylim=(0, None))
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(name, dpi=100)


def main() -> None:
    """Learn, forecast and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for option, default in (("days", 200), ("ahead", 28), ("seed", 0)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    table, spell = generate(chosen.days + chosen.ahead, rng)
    known, ahead = table[: chosen.days].copy(), table[chosen.days :]
    known[rng.random(known.shape) < 0.1] = np.nan
    known[chosen.days // 2 : chosen.days // 2 + 10] = np.nan
    model = HiddenMarkovModel("auto", count_features=[0], categorical_features=[2], random_state=0).fit(known)
    path, forecast = model.predict(known), model.forecast(chosen.ahead, probability=0.9)
    inside = (forecast.lower[:, :2] <= ahead[:, :2]) & (ahead[:, :2] <= forecast.upper[:, :2])
    print(f"states: {model.n_components_}")
    print(f"agreement with the spells (adjusted Rand): {adjusted_rand_score(spell[: chosen.days], path):.2f}")
    print(f"days ahead within their intervals: {100 * inside.mean():.0f} %")
    if chosen.picture:
        plot(known, path, ahead, forecast[1:], chosen.picture)


if __name__ == "__main__":
    main()
