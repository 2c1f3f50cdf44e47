"""Quality of the estimators: noise of the encoder's gradient, and the bound that training reaches.

    python examples/benchmarks/estimators.py                                # generated smileys
    python examples/benchmarks/estimators.py --data-root DIR --net conv     # MNIST, binarised
    python examples/benchmarks/estimators.py --json --plot estimators.png

A plain VAE is trained briefly, and components are seeded in its encodings by k-means and fitted. Every method
starts from this state.

* ``gradient``: the trace of the covariance of the encoder's gradient over repeated draws on one batch, at the
  start, per data point; ``relative`` to that of ``TraceConjugate_ELBO``. ``signal`` is the squared length of
  its mean.
* ``training``: every method sees the same batches in the same order, and methods take turns. The reported
  bound does not depend on the method's objective: it is equation 11 of Paquet et al. (2018) on validation
  data in nats per point. ``collapsed``, with assignments and components summed out at draws of z, favours no
  method either. Seconds are those of steps, without evaluations and without each method's first step
  (``setup_seconds``), which captures or compiles.
* ``reached``: the bounds after ``--steps`` steps and after ``--seconds`` seconds, read off these curves.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyro
import torch
from command_line import Parser, machine, natural_number
from estimators_plot import draw
from plain_programs import PROGRAMS
from pyro.infer import ELBO
from start import NETS, Learner, Rates, Setting, make_model
from step_methods import METHODS, choose
from torch import Tensor

from pyro_fmvae.data import Batches, Split, load, smiley
from pyro_fmvae.evaluate import bound, tighter_bounds
from pyro_fmvae.infer import RobbinsMonro, TraceConjugate_ELBO
from pyro_fmvae.learn import Budget, FMVAEOptions, Pretraining, PriorFitting, endless, fit
from pyro_fmvae.models import FactorialMixtureVAE

LEARNERS = [m for m in METHODS if not m.floor and not m.validate and "by hand" not in m.name]
DEFAULT = "-compiled networks"


def splits(data_root: str | None, points: int) -> tuple[Split, Split]:
    """Training and validation data: generated smileys, or binarised MNIST."""
    if data_root is not None:
        dataset = load("mnist-static", data_root)
        rows = torch.arange(min(points, len(dataset.train)))
        return dataset.train.select(rows), dataset.valid.select(torch.arange(min(2000, len(dataset.valid))))
    drawn = [smiley(count, seed).x for count, seed in ((points, 1), (2000, 2))]
    train, valid = (Split(torch.from_numpy(x.astype(bool))) for x in drawn)
    return train, valid


def pretrained(
    net: str, setting: Setting, train: Split, steps: int, seed: int, device: torch.device
) -> FactorialMixtureVAE:
    """Train the state that every method starts from."""
    torch.manual_seed(seed)
    model = make_model(net, setting, len(train), train.x.shape[1:]).to(device)
    learning = FMVAEOptions()
    phases = [
        Pretraining(model, learning, Budget(iterations=steps)),
        PriorFitting(model, learning, Budget(iterations=max(steps // 5, 1)), seed),
    ]
    for _ in fit(phases, Batches(train, setting.B, seed=seed, device=device)):
        pass
    return model


def gradient_noise(model: FactorialMixtureVAE, x: Tensor, draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """Variance of the encoder's gradient on a batch, summed over its entries, for each estimator."""
    programs = [program(model) for program in PROGRAMS]
    estimators: list[tuple[str, ELBO, Callable, Callable]]
    estimators = [("TraceConjugate_ELBO", TraceConjugate_ELBO(), model.model, model.guide)]
    estimators += [(p.name, p.elbo(), p.model, p.guide) for p in programs]
    encoder = list(model.encoder.parameters())
    parameters = [*model.parameters(), *(q for p in programs for q in p.posterior.parameters())]
    ours = None
    for name, elbo, program, guide in estimators:
        torch.manual_seed(seed)
        mean, squares = torch.zeros(()), torch.zeros((), dtype=torch.float64)
        for draw_number in range(1, draws + 1):  # Welford's recurrence
            elbo.loss_and_grads(program, guide, x)
            grads = [p.grad.flatten() for p in encoder if p.grad is not None]
            gradient = torch.cat(grads).double() / model.num_data
            gap = gradient - mean
            mean = mean + gap / draw_number
            squares = squares + gap @ (gradient - mean)
            for p in parameters:
                p.grad = None
        variance = squares.item() / (draws - 1)
        ours = variance if ours is None else ours
        yield {
            "measure": "gradient",
            "method": name,
            "variance": variance,
            "relative": round(variance / ours, 4),
            "signal": mean.square().sum().item() - variance / draws,
            "draws": draws,
        }


@dataclass
class Training:
    """Training of one method from the common start."""

    name: str
    model: FactorialMixtureVAE
    learner: Learner
    batches: Iterator[Any]
    steps: int = 0
    seconds: float = 0.0
    setup_seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)

    def advance(self, steps: int) -> None:
        """Take more steps on the next batches."""
        for x, *_ in islice(self.batches, steps):
            begun = time.perf_counter()
            self.learner.step(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            elapsed = time.perf_counter() - begun
            if self.steps == 0:
                self.setup_seconds = elapsed
            else:
                self.seconds += elapsed
            self.steps += 1

    def evaluate(self, valid: Batches, seed: int) -> dict[str, Any]:
        """Add a point to the curve."""
        self.learner.write_back()
        self.curve.append(
            {
                "measure": "training",
                "method": self.name,
                "step": self.steps,
                "seconds": round(self.seconds, 3),
                "elbo": round(bound(self.model, valid, seed)["elbo"], 4),
                "collapsed": round(tighter_bounds(self.model, valid, 1, seed)["collapsed"], 4),
                "used_components": self.model.used_components(),
            }
        )
        return self.curve[-1]

    def reached(self, steps: int, seconds: float) -> dict[str, Any]:
        """Both bounds after a number of steps, and after a number of seconds."""
        record: dict[str, Any] = {"measure": "reached", "method": self.name, "steps": steps}
        record |= {"seconds": seconds, "ms": round(1e3 * self.seconds / max(self.steps - 1, 1), 3)}
        record["setup_seconds"] = round(self.setup_seconds, 2)
        for axis, place in (("step", steps), ("seconds", seconds)):
            for name in ("elbo", "collapsed"):
                along, heights = ([float(point[key]) for point in self.curve] for key in (axis, name))
                value = float(np.interp(place, along, heights))
                record[f"{name}_at_{axis.removesuffix('s')}s"] = round(value, 4)
        used = next(point["used_components"] for point in self.curve if point["step"] >= steps)
        return record | {"used_components": used}


def train_all(
    trainings: Sequence[Training], valid: Batches, steps: int, seconds: float, every: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Train all methods in turns until each has taken its steps and its seconds."""
    for training in trainings:
        yield training.evaluate(valid, seed)
    going = list(trainings)
    while going:
        for training in going:
            training.advance(every)
            yield training.evaluate(valid, seed)
        going = [t for t in going if t.steps < steps or t.seconds < seconds]
    for training in trainings:
        yield training.reached(steps, seconds)


def as_line(record: dict[str, Any]) -> str:
    """Format a record as a line of text."""
    shown = {key: value for key, value in record.items() if key not in ("measure", "method", *"IDKB", "net")}
    words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())
    return f"{record['measure']:9} {record['method']:55} " + ", ".join(words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__)
    parser.add_argument("--net", choices=NETS, default="mlp")
    parser.add_argument("--setting", type=Setting.parse, default=Setting(1, 32, 64, 64), metavar="I,D,K,B")
    parser.add_argument("--data-root", help="folder of binarised MNIST; default: generated smileys")
    parser.add_argument("--points", type=natural_number, default=20_000, help="most training images")
    parser.add_argument("--pretrain", type=natural_number, default=1000, help="steps of the plain VAE")
    parser.add_argument("--draws", type=natural_number, default=200, help="draws of each gradient")
    parser.add_argument("--steps", type=natural_number, default=2000, help="least number of training steps")
    parser.add_argument("--seconds", type=float, default=20.0, help="least seconds of training")
    parser.add_argument("--every", type=natural_number, default=100, help="steps between evaluations")
    parser.add_argument("--rate", type=float, default=1e-3, help="Adam's rate for the networks")
    parser.add_argument("--globals-rate", type=float, default=1e-2, help="Adam's rate for the mixture")
    parser.add_argument(
        "--methods",
        type=lambda text: choose(text, LEARNERS),
        default=DEFAULT,
        help=f"substrings of names, separated by commas; default: '{DEFAULT}'",
    )
    options = parser.parse_args(arguments)
    pyro.enable_validation(False)
    if options.threads:
        torch.set_num_threads(options.threads)
    device, seed = options.device, options.seed
    if not options.json:
        print(machine(device), flush=True)
    train, valid = splits(options.data_root, options.points)
    size = options.setting.B
    if len(train) < size:
        parser.error(f"--points: expected at least a batch of {size} images, got {len(train)}")
    train = train.select(torch.arange(len(train) // size * size))  # a short last batch would be captured, too
    start = pretrained(options.net, options.setting, train, options.pretrain, seed, device)

    def trainings() -> Iterator[Training]:
        rates = Rates(options.rate, options.globals_rate, RobbinsMonro(first_step=0.01))
        for method in options.methods:
            model, batches = copy.deepcopy(start), Batches(train, size, seed=seed, device=device)
            yield Training(method.name, model, method.make(model, rates), endless(batches))

    x, *_ = next(iter(Batches(train, size, seed=seed, device=device)))
    testing = Batches(valid, 500, shuffle=False, device=device)
    records = []

    def show(record: dict[str, Any]) -> None:
        records.append(record | {"net": options.net} | asdict(options.setting))
        print(json.dumps(records[-1]) if options.json else as_line(record), flush=True)

    for record in gradient_noise(copy.deepcopy(start), x, max(options.draws, 2), seed):
        show(record)
    for record in train_all(list(trainings()), testing, options.steps, options.seconds, options.every, seed):
        show(record)
    if options.plot:
        draw(records, options.plot)


if __name__ == "__main__":
    main()
