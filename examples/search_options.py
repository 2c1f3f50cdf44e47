"""Optuna looks for the options with which a factorial mixture VAE describes digits best.

    pip install '.[optuna]'
    python examples/search_options.py [--trials 20] [--iterations 1000] [--out runs/search]

The data are the 1,797 digits of 8×8 pixels that scikit-learn ships, without their labels. A trial is a whole
training, whose options Optuna chooses by the trials before it. What it maximises is the
validation bound of the model that the run keeps. Test rows take no part: their bound is printed for the best
trial and for the first one, which has the defaults.

Every trial is a run, so `pyro-fmvae report --compare RUN RUN` shows two of them side by side.
"""

import argparse
import json
from pathlib import Path

import optuna
from sklearn.datasets import load_digits

import pyro_fmvae

DEFAULTS = {"factor_dim": 16, "hidden": 200, "learning_rate": 1e-3}


def bounds(run: Path) -> tuple[float, float]:
    """Bounds of the model that a run keeps, nats per point: on validation and on test rows."""
    valid = json.loads((run / "kept.json").read_text())["kept"]["value"]
    test = json.loads((run / "report.json").read_text())["splits"]["test"]["elbo"]
    return valid, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=1000, help="of each training's joint phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/search"), help="folder for the runs")
    args = parser.parse_args()
    pictures = load_digits().images / 16

    def folder(trial: int) -> Path:
        return args.out / f"{trial:03}"

    def objective(trial: optuna.Trial) -> float:
        options = {
            "factor_dim": trial.suggest_int("factor_dim", 2, 40, log=True),
            "hidden": trial.suggest_int("hidden", 50, 1000, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        }
        length = {"pretrain_iterations": args.iterations // 2, "joint_iterations": args.iterations}
        pyro_fmvae.train(pictures, out=folder(trial.number), seed=args.seed, **length, **options)
        return bounds(folder(trial.number))[0]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=args.seed))
    study.enqueue_trial(DEFAULTS)
    study.optimize(objective, n_trials=args.trials)

    print("trial  validation     test  options")
    for trial in (study.trials[0], study.best_trial):
        valid, test = bounds(folder(trial.number))
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in trial.params.items())
        print(f"{trial.number:>5}  {valid:>10.2f}  {test:>7.2f}  {chosen}")


if __name__ == "__main__":
    main()
