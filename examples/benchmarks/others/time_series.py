"""Linear dynamical systems and switching regressions beside statsmodels: later steps of real time series.

    python examples/benchmarks/others/time_series.py [--seeds 5]

The flow of the Nile by year, 1871 to 1970, yearly sunspots from 1700 on, and US growth, inflation and
unemployment by quarter from 1959 on come with ``pip install statsmodels``. Each is learnt from its first
three quarters. What is measured are the steps after these, one at a time, given all steps before and the
parameters: the mean log-density in nats per step, and the share of the numbers that lie in the 90 % interval.
"""

import argparse
import json
import statistics
import time
import warnings
from importlib.util import find_spec

import numpy as np

from pyro_fmvae.sklearn import HiddenMarkovModel, LinearDynamicalSystem

LEVEL = 0.9


def data():
    """Series [T, D] by name."""
    from statsmodels.datasets import macrodata, nile, sunspots

    macro = macrodata.load_pandas().data
    growth = 100 * np.diff(np.log(macro["realgdp"]))
    columns = growth, macro["infl"].to_numpy()[1:], macro["unemp"].to_numpy()[1:]
    return {
        "Nile": nile.load_pandas().data[["volume"]].to_numpy(float),
        "sunspots": sunspots.load_pandas().data[["SUNACTIVITY"]].to_numpy(float),
        "US growth": growth[:, None],
        "US growth, inflation, unemployment": np.column_stack(columns),
    }


def lagged(x, lags):
    """Steps of a series [T, 1] with those before, [T - lags, 1 + lags]."""
    return np.column_stack([np.roll(x[:, 0], lag) for lag in range(lags + 1)])[lags:]


def linear(x, known, seed, components="auto"):
    """Log-densities of the later steps in all, and their intervals, by a linear dynamical system."""
    model = LinearDynamicalSystem(components).fit(x[:known])
    ends = [model.forecast(1, x[:step], probability=LEVEL) for step in range(known, len(x))]
    lower, upper = (np.concatenate([getattr(one, end) for one in ends]) for end in ("lower", "upper"))
    return model.score(x) - model.score(x[:known]), lower, upper


def switching(x, known, seed, lags, states=2):
    """The same by an autoregression with regimes, of series of one column."""
    rows, known = lagged(x, lags), known - lags
    columns = list(range(1, lags + 1))
    model = HiddenMarkovModel(states, covariate_features=columns, random_state=seed, sticky=5).fit(
        rows[:known]
    )
    ends = [
        model.forecast(1, rows[:step], probability=LEVEL, covariates=rows[step : step + 1, 1:])
        for step in range(known, len(rows))
    ]
    lower, upper = (np.concatenate([getattr(one, end) for one in ends])[:, :1] for end in ("lower", "upper"))
    return model.score(rows) - model.score(rows[:known]), lower, upper


def of_statsmodels(result, x, known):
    """The same by a model of statsmodels that is fitted to the first steps."""
    longer = result.append(x[known:])
    frame = longer.get_prediction(start=known, end=len(x) - 1).conf_int(alpha=1 - LEVEL)
    lower, upper = np.asarray(frame).reshape(len(x) - known, 2, -1).swapaxes(0, 1)
    return longer.llf_obs[known:].sum(), lower, upper


def components(x, known, seed, **options):
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    fitted = UnobservedComponents(x[:known, 0], **options).fit(disp=0, maxiter=1000)
    return of_statsmodels(fitted, x[:, 0], known)


def autoregression(x, known, seed, order):
    from statsmodels.tsa.statespace.varmax import VARMAX

    return of_statsmodels(VARMAX(x[:known], order=(order, 0)).fit(disp=0, maxiter=1000), x, known)


def markov_regression(x, known, seed, lags):
    """statsmodels filters all steps with the parameters of the first; its forecasts have no intervals."""
    from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

    rows, known = lagged(x, lags), known - lags
    options = {"k_regimes": 2, "switching_variance": True}
    model = MarkovRegression(rows[:known, 0], exog=rows[:known, 1:], **options)
    try:
        fitted = model.fit(search_reps=20, disp=0, rng=seed)
    except (np.linalg.LinAlgError, RuntimeError):  # of a start that it makes at random
        return np.nan, None, None
    longer = MarkovRegression(rows[:, 0], exog=rows[:, 1:], **options).filter(fitted.params)
    return longer.llf_obs[known:].sum(), None, None


METHODS = {
    "Nile": {
        "LinearDynamicalSystem(1)": (linear, {"components": 1}),
        "statsmodels, local level": (components, {"level": "local level"}),
    },
    "sunspots": {
        "LinearDynamicalSystem('auto')": (linear, {}),
        "HiddenMarkovModel(2), nine lags": (switching, {"lags": 9}),
        "statsmodels, level and cycle": (
            components,
            {"level": "local level", "cycle": True, "stochastic_cycle": True, "damped_cycle": True},
        ),
        "statsmodels, Markov regression, nine lags": (markov_regression, {"lags": 9}),
    },
    "US growth": {
        "LinearDynamicalSystem('auto')": (linear, {}),
        "HiddenMarkovModel(2), four lags": (switching, {"lags": 4}),
        "statsmodels, local level": (components, {"level": "local level"}),
        "statsmodels, Markov regression, four lags": (markov_regression, {"lags": 4}),
    },
    "US growth, inflation, unemployment": {
        "LinearDynamicalSystem('auto')": (linear, {}),
        "statsmodels, vector autoregression of one lag": (autoregression, {"order": 1}),
        "statsmodels, vector autoregression of two lags": (autoregression, {"order": 2}),
    },
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    if find_spec("statsmodels") is None:
        print("skipped: statsmodels is not installed")
        return
    warnings.simplefilter("ignore")
    for name, x in data().items():
        known = 3 * len(x) // 4
        for method, (run, options) in METHODS[name].items():
            found, inside, seconds = [], [], []
            for seed in range(chosen.seeds if run in (switching, markov_regression) else 1):
                begun = time.process_time()
                total, lower, upper = run(x, known, seed, **options)
                seconds.append(time.process_time() - begun)
                found.append(total / (len(x) - known))
                if lower is not None:
                    inside.append(((lower < x[known:]) & (x[known:] < upper)).mean())
            ended = [each for each in found if not np.isnan(each)]
            row = {"series": name, "method": method, "log-density": round(statistics.mean(ended), 3)}
            row |= {"each": [round(each, 3) for each in ended], "failed": len(found) - len(ended)}
            row["inside"] = round(float(np.mean(inside)), 2) if inside else None
            print(json.dumps(row | {"seconds": round(statistics.mean(seconds), 2)}), flush=True)


if __name__ == "__main__":
    main()
