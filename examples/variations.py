"""Variations of training that gained nothing on statically binarised MNIST: docs/reference/results.md.

    python examples/variations.py averages RUN --data-root DIR --learning-rate 1e-3
    python examples/variations.py collapsed RUN --data-root DIR --final-learning-rate 1e-6 --iterations 6000
    python examples/variations.py free-bits RUN --data-root DIR --nats 0.3 --out FOLDER

The first two continue a finished run of `pyro-fmvae train`, whose factors have equal sizes and no labels.
`averages` takes more steps of the joint phase and keeps exponential moving averages of the networks' weights.
`collapsed` sums assignments and component parameters out of the objective: with λ fixed, the prior is a
distribution like any other. `free-bits` trains the networks of a run of `--model vae` again, with a minimal
cost per dimension of z in nats per image (Kingma et al., 2016), and saves them for
`pyro-fmvae train --pretrained FOLDER`.

Each ends with a table of bounds on validation images, in nats per image, and the number of dimensions of z
whose means vary by more than 0.1 over these images.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from pyro_fmvae import checkpoint
from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.runs import CHECKPOINT, Run, Trainer, resolve_device
from pyro_fmvae.data import Batches, Dataset
from pyro_fmvae.evaluate import bound, tighter_bounds
from pyro_fmvae.infer import NaturalGradient, RobbinsMonro, param_statements
from pyro_fmvae.learn import Budget, FMVAEOptions, GradientPhase, Joint, Phase, Pretraining, fit
from pyro_fmvae.models import VAE, FactorialMixtureVAE

COLUMNS = (
    *("weights", "ELBO (eq. 11)", "reconstruction", "KL[z]", "collapsed", "importance-weighted, 5 draws"),
    "varying",
)
VARYING = 0.1  # standard deviation of a dimension's mean


class Averaging(Joint):
    """The joint phase with moving averages of the networks' weights.

    Args:
        model, options, budget: as for the joint phase.
        decays: decay rates of the averages, in (0, 1).
    """

    def __init__(
        self, model: FactorialMixtureVAE, options: FMVAEOptions, budget: Budget, decays: Iterable[float]
    ) -> None:
        super().__init__(model, options, budget)
        self.networks = nn.ModuleList([model.encoder, model.decoder])
        self.averages = {
            decay: AveragedModel(self.networks, multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in decays
        }

    def step(self, *batch: Tensor) -> float:
        loss = super().step(*batch)
        for average in self.averages.values():
            average.update_parameters(self.networks)
        return loss


class Collapsed(GradientPhase):
    """Training of the networks alone under the posterior predictive of λ, equation 10, as the prior."""

    def __init__(self, model: FactorialMixtureVAE, options: FMVAEOptions, budget: Budget) -> None:
        super().__init__("collapsed", options, budget, model)
        self.vae = model
        (self.mixture,) = model.factor_groups()

    def model(self, x: Tensor) -> None:
        param_statements("decoder", self.vae.decoder)
        with torch.no_grad():
            prior = self.mixture.predictive()
        with pyro.plate("data", self.vae.num_data, subsample=x):
            z = pyro.sample("z", prior)
            pyro.sample("x", self.vae.observation(self.vae.decoder(z.flatten(-2))), obs=x)

    def guide(self, x: Tensor) -> None:
        param_statements("encoder", self.vae.encoder)
        blocks = len(self.mixture.factors), self.vae.dim
        loc, scale = (part.unflatten(-1, blocks) for part in self.vae.encoder(x))
        with pyro.plate("data", self.vae.num_data, subsample=x):
            pyro.sample("z", dist.Normal(loc, scale).to_event(2))

    def enter(self) -> None:
        networks = [*self.vae.encoder.parameters(), *self.vae.decoder.parameters()]
        optim = NaturalGradient(1.0, self.adam, networks)
        self.svi = self.steps_of(self.model, self.guide, optim)

    def step(self, *batch: Tensor) -> float:
        return self.svi.step(*batch)


class FreeBits(VAE):
    """A VAE with a minimal cost per dimension of z, as a mean over a batch.

    Args:
        vae: model whose networks are used.
        nats: the minimal cost, up to which information is free.
    """

    bounded = False  # the guide, not the model, adds the divergence of z

    def __init__(self, vae: VAE, nats: float) -> None:
        super().__init__(vae.encoder, vae.decoder, vae.observation, vae.latent_dim, vae.num_data)
        self.nats = nats

    def guide(self, x: Tensor, *_: Tensor | None, **__: object) -> None:
        param_statements("encoder", self.encoder)
        posterior = self.encoder(x)
        super().guide(x, posterior=posterior)
        divergence = kl_divergence(dist.Normal(*posterior), dist.Normal(0.0, 1.0)).mean(0)
        cost = self.num_data * divergence.clamp(min=self.nats).sum()
        pyro.factor("divergence", cost, has_rsample=True)


def averages(trainer: Trainer, chosen: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """Measure the last state, and the averages in its place."""
    length = Budget(iterations=chosen.iterations)
    phase = Averaging(trainer.model, continued(trainer, chosen), length, chosen.decays)
    follow(phase, trainer.batches)
    yield "the last ones", trainer.model
    for decay, average in phase.averages.items():
        phase.networks.load_state_dict(average.module.state_dict())
        yield f"averages, {decay:g}", trainer.model


def collapsed(trainer: Trainer, chosen: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """Measure the last state, and training by both objectives: the collapsed bound, and equation 11."""
    length = Budget(iterations=chosen.iterations)
    yield "before", trainer.model
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    follow(Collapsed(trainer.model, continued(trainer, chosen), length), trainer.batches)
    yield "by the collapsed bound", trainer.model
    trainer.model.load_state_dict(before)
    follow(Joint(trainer.model, continued(trainer, chosen), length), trainer.batches)
    yield "by equation 11", trainer.model


def free_bits(trainer: Trainer, chosen: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """Train the networks, and save them as a start for other runs."""
    length = Budget(iterations=chosen.iterations or trainer.run.config.pretrain_iterations)
    phase = Pretraining(trainer.model, trainer.options, length)
    phase.augmentation = trainer.run.recipe.augmentation()
    phase.vae = FreeBits(phase.vae, chosen.nats)
    follow(phase, trainer.batches)
    checkpoint.save(chosen.out / CHECKPOINT, {"model": trainer.model.state_dict()})
    yield f"{chosen.nats:g} nats free", trainer.model


def continued(trainer: Trainer, chosen: argparse.Namespace) -> FMVAEOptions:
    """Settings to continue with: a new learning rate, no augmentation, and falling steps of λ.

    Raises:
        ValueError: learning rates out of range.
    """
    done, before = trainer.run.config.joint_iterations, trainer.options
    first = RobbinsMonro(before.delay, before.forgetting, before.first_step)(done)
    rates = {"learning_rate": chosen.learning_rate, "final_learning_rate": chosen.final_learning_rate}
    later = {"delay": before.delay + done, "first_step": first, **rates}
    return replace(before, **later, augment_until=0.0, kl_weight=1.0, restart_every=0)


def follow(phase: Phase, batches: Batches) -> None:
    """Take all steps of a phase."""
    records = tqdm(fit([phase], batches), desc=phase.name, mininterval=5.0)
    records.total = phase.budget.iterations + 1  # one for the start
    for _ in records:
        pass


def line(name: str, model: nn.Module, dataset: Dataset, device: torch.device) -> str:
    """One line of the table."""
    model.eval()
    batches = Batches(dataset.valid, 500, shuffle=False, device=device)
    found = bound(model, batches, num_samples=5) | tighter_bounds(model, batches, num_samples=5)
    with torch.no_grad():
        means = torch.cat([model.encoder(x)[0] for x, *_ in batches])
    varying = int((means.std(0) > VARYING).sum())
    model.train()
    shown = ("elbo", "reconstruction", "kl_z", "collapsed", "importance_weighted")
    return f"| {name} | {' | '.join(f'{found[part]:.2f}' for part in shown)} | {varying} |"


VARIATIONS = {"averages": averages, "collapsed": collapsed, "free-bits": free_bits}
OTHERWISE = ("max_minutes", "distortion")  # options of training without a counterpart here
OTHERWISE_FREE = (*OTHERWISE, "pretrained", "posterior", "pretrain_kl_weight", "kl_annealing", "beta")


def between(low: float, high: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """Make a parser of numbers in an open interval."""

    def number(text: str) -> float:
        if not low < (value := kind(text)) < high:
            raise argparse.ArgumentTypeError(f"expected a number between {low} and {high}, got {text}")
        return value

    return number


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="variation", required=True)
    for name in VARIATIONS:
        kind = kinds.add_parser(name)
        kind.add_argument("run", type=Path, help="folder of a run of `pyro-fmvae train`")
        kind.add_argument("--data-root", help="folder of data sets; default: that of the run")
        kind.add_argument("--device", default="auto", help="cpu, cuda, ... or auto: a GPU if there is one")
        if name == "free-bits":
            kind.add_argument(
                "--nats",
                type=between(0, math.inf),
                default=0.3,
                help="minimal cost of each dimension in nats",
            )
            kind.add_argument(
                "--iterations",
                type=between(0, math.inf, int),
                help="iterations; default: those of the run's pretraining",
            )
            kind.add_argument("--out", type=Path, required=True, help="new folder for the networks")
        else:
            kind.add_argument("--iterations", type=between(0, math.inf, int), default=4000)
            kind.add_argument("--learning-rate", type=float, default=1e-4)
            kind.add_argument(
                "--final-learning-rate", type=float, help="final learning rate; default: constant"
            )
        if name == "averages":
            kind.add_argument("--decays", type=between(0, 1), nargs="+", default=[0.99, 0.999, 0.9995])
    return parser


def check(run: Run, variation: str) -> None:
    """Check that the variation applies to a run.

    Raises:
        ValueError: it does not; the message names the option of training.
    """
    config, free = run.config, variation == "free-bits"
    needed = "vae" if free else "fmvae"
    if config.model != needed:
        raise ValueError(f"run: expected one of --model {needed}, got {config.model}")
    defaults = configure(needed)
    for name in OTHERWISE_FREE if free else OTHERWISE:
        if getattr(config, name) != getattr(defaults, name):
            raise ValueError(f"run: expected one without --{name.replace('_', '-')}")
    if not free and (run.recipe.labelled or len(set(config.factors)) > 1):
        raise ValueError("run: expected factors without labels and of one size")
    phase = "pretrain" if free else "joint"
    if not getattr(config, f"{phase}_iterations"):
        raise ValueError(f"run: expected one with --{phase}-iterations")


def opened(chosen: argparse.Namespace) -> tuple[Trainer, Dataset]:
    """Open the run in its last state, or in its first state for free bits, and create ``--out``.

    Raises:
        OSError, ValueError: a damaged run, a run that the variation does not apply to, or an existing
            ``--out``.
    """
    run = Run.open(chosen.run)
    check(run, chosen.variation)
    dataset = run.load_data(chosen.data_root)
    trainer = Trainer(run, dataset, resolve_device(chosen.device))
    if chosen.variation == "free-bits":
        try:
            chosen.out.mkdir(parents=True)
        except FileExistsError:
            raise ValueError(f"out: expected a new folder, {chosen.out} is there") from None
        return trainer, dataset
    trainer.restore()
    if not trainer.finished:
        raise ValueError(f"run: expected a finished one, {chosen.run} can be resumed")
    continued(trainer, chosen)
    return trainer, dataset


def main() -> None:
    parser = arguments()
    chosen = parser.parse_args()
    try:
        trainer, dataset = opened(chosen)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join(['---'] * len(COLUMNS))} |")
    for name, model in VARIATIONS[chosen.variation](trainer, chosen):
        print(line(name, model, dataset, trainer.device), flush=True)


if __name__ == "__main__":
    main()
