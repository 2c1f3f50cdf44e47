"""A run under way: model, phases, loader and progress, saved and restored together."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from pyro_fmvae.app.recipes.labelling import labelled_points
from pyro_fmvae.app.recipes.settings import patience_of
from pyro_fmvae.app.runs.closing_table import Moment
from pyro_fmvae.app.runs.run import CHECKPOINT, Run, check_state, fitting, match
from pyro_fmvae.data import Batches, Dataset, whole
from pyro_fmvae.files import checkpoint
from pyro_fmvae.infer.ranks import world
from pyro_fmvae.learn.fitting import LONG, Progress, Record, Stepping, compile_problem, fit, naming_divergence
from pyro_fmvae.learn.label_spreading import COMPARABLE, comparable, spread_labels
from pyro_fmvae.learn.options import TrainConfig
from pyro_fmvae.learn.phase import GradientPhase

# The best model of a phase by its validation bound.


@dataclass(frozen=True)
class Best:
    """The best model of a phase so far.

    Attributes:
        moment: when it was.
        model: its state dictionary.
        since: step from which patience counts: that of the model, or the last one at which the phase was not
            settled.
    """

    moment: Moment
    model: dict[str, Tensor]
    since: int

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"moment": vars(self.moment), "model": self.model, "since": self.since}

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> "Best | None":
        """The inverse of :meth:`state_dict`; None of None."""
        if state is None:
            return None
        return cls(Moment.from_dict(state["moment"]), state["model"], state["since"])


def copied(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dictionary."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


CLOCK = ("seconds", "total_seconds", "minutes", "setup", "closing", "by_clock", "spare")  # of the progress
EXAMPLES = 1000  # from which the decoder starts
LOOKS = 10  # records within the patience
SPARED = 20  # full batches in an epoch from which on compiling for the smaller last one does not pay

logger = logging.getLogger("pyro_fmvae")


class Trainer:
    """A run under way: its model, phases, loader and progress, which are saved and restored together.

    Args:
        run: the run.
        dataset: its data.
        device: where to train.

    Attributes:
        patience: steps without a better validation bound after which a phase ends; 0: never.
        best: the best model of the phase under way by its validation bound; None before its first record.
    """

    best: Best | None = None

    def __init__(self, run: Run, dataset: Dataset, device: torch.device) -> None:
        self.run, self.device = run, device
        recipe, config = run.recipe, run.config
        assert config.batch_size is not None
        torch.manual_seed(config.seed)
        self.model = run.recipe.build().to(device)
        if recipe.misgiving:
            logger.warning("%s", recipe.misgiving)
        examples = dataset.train.select(torch.arange(min(EXAMPLES, len(dataset.train))))
        self.model.start_at(whole(examples, device)[0])
        self.options = replace(config, compile=self._compile(config))
        self.chooser = self._stepping(config)
        self.phases = replace(recipe, config=self.options).phases(self.model)
        compile_from = config.batch_size if len(dataset.train) >= SPARED * config.batch_size else 1
        for phase in self.phases:
            if isinstance(phase, GradientPhase):
                phase.augmentation, phase.group = recipe.augmentation(), world().group
                phase.compile_from = compile_from
        self.patience = patience_of(config)
        if self.patience:
            for phase in self.phases:
                phase.record_every = min(phase.record_every, max(self.patience // LOOKS, 1))
        labels = taught = None
        if recipe.labels:
            labelled = labelled_points(recipe, dataset.train)
            labels = labelled.labels
            for line in labelled.scarce:
                logger.warning("%s", line)
            taught = spread_labels(dataset.train, labels, recipe.spread)
            for name, number in zip(recipe.factor_names, (taught != labels).sum(0).tolist(), strict=False):
                if number:
                    logger.info("%s: labels spread to %d more training points", name, number)
            if recipe.spread and (labels < 0).any() and not comparable(dataset.train):
                logger.info("labels are not spread: that takes %s", COMPARABLE)
        self.training = replace(dataset.train, labels=labels)
        """Training rows, with the labels in use."""
        self.batches = Batches(
            replace(dataset.train, labels=taught),
            config.batch_size,
            seed=config.seed,
            device=device,
            indexed=recipe.indexed,
            full=config.timed and not recipe.indexed,
        )
        self.progress = Progress()

    def _compile(self, config: TrainConfig) -> bool:
        """Decide whether captured steps are compiled from the start."""
        if config.eager or config.compile is False:
            return False
        long = not config.timed and config.usual_steps >= LONG
        if config.compile is None and not (long and self.device.type == "cpu"):
            return False
        if config.compile and (problem := compile_problem(self.device)):
            raise ValueError(f"compile: torch.compile does not work here ({problem})")
        return config.compile or self._works()

    def _stepping(self, config: TrainConfig) -> Stepping | None:
        """Chooses how steps are taken in trainings with a clock, unless that is given."""
        if not config.timed or config.eager or config.compile or self.run.recipe.closed_form:
            return None
        by_default = config.compile is None and self.device.type == "cpu"
        return Stepping(self._works if by_default else lambda: False)

    def _works(self) -> bool:
        """Find out whether steps can be compiled here, and say so if not."""
        problem = compile_problem(self.device)
        if problem:
            logger.info("steps are not compiled: torch.compile does not work here (%s)", problem)
        return not problem

    @property
    def stepping(self) -> str:
        """Description of how steps are taken."""
        if self.run.recipe.closed_form:
            return "in closed form"
        how = "eager" if self.options.eager else "captured"
        if self.options.compile:
            how += " and compiled"
        if self.chooser is not None:
            how += ", or compiled," if self.run.config.compile is None else ""
            how += " where that pays"
        return how + (", networks in bfloat16" if self.options.autocast else "")

    def records(self, resumed: bool = False) -> Iterator[Record]:
        """Train from where it stands: see :func:`pyro_fmvae.learn.fitting.fit`.

        Raises:
            ValueError: training diverged; the message says what to change.
        """
        with naming_divergence(self.phases, self.progress, self._advice):
            yield from fit(self.phases, self.batches, self.progress, resumed, self.chooser)

    @property
    def _advice(self) -> str:
        """Options to change after training has diverged."""
        config = self.run.config
        advice = f"Train with a lower --learning-rate, such as {config.learning_rate / 4:g}"
        least = getattr(config, "min_scale", None)
        if least is None or self.run.recipe.preprocessing.binary:
            return advice
        return f"{advice}, or with a higher --min-scale, such as {10 * least:g}"

    @property
    def finished(self) -> bool:
        """True if every phase is done."""
        return self.progress.phase >= len(self.phases)

    def spend(self, seconds: float) -> None:
        """Count time before the first step, such as that of choosing options, as time of the training."""
        (seconds,) = world().numbers_of_first([seconds])
        self.progress.total_seconds += seconds
        self.progress.spare -= seconds

    def start(self) -> None:
        """Take over networks of the run that this one is to start from, if there is one.

        Nothing but that run's checkpoint is read; its model may be another one.

        Raises:
            ValueError: there is no checkpoint, it is damaged, or its networks have other shapes.
        """
        if self.run.recipe.start is None:
            return
        folder, prefixes = self.run.recipe.start
        try:
            state, _ = checkpoint.load(folder / CHECKPOINT)
            theirs = _part(state["model"], prefixes)
        except FileNotFoundError:
            raise ValueError(f"pretrained: {folder} is no run with a checkpoint") from None
        except (LookupError, TypeError, AttributeError):
            raise ValueError(f"pretrained: the checkpoint of {folder} holds no model") from None
        except ValueError as error:
            raise ValueError(f"pretrained: {error}") from None
        ours = _part(self.model.state_dict(), prefixes)
        for name in (*ours, *theirs):
            here, there = (tuple(part[name].shape) if name in part else "missing" for part in (ours, theirs))
            if here != there:
                raise ValueError(
                    f"pretrained: {folder} has other networks: {name} is {there} there, {here} here"
                )
        self.model.load_state_dict(theirs, strict=False)

    def save(self) -> None:
        """Write a checkpoint of everything, atomically: of several ranks the first one does it."""
        if not world().leads:
            return
        progress = self.progress
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        state = {
            "progress": {
                "phase": progress.phase,
                "step": progress.step,
                "total_steps": progress.total_steps,
                "stopped": progress.stopped,
            },
            "batches": self.batches.state_dict(),
            "model": self.model.state_dict(),
            "best": None if self.finished or self.best is None else self.best.state_dict(),
            "phase": None if self.finished else self.phases[progress.phase].state_dict(),
            "random": {"cpu": torch.get_rng_state(), "cuda": cuda},
        }
        clock = {name: getattr(progress, name) for name in CLOCK}
        checkpoint.save(self.run.folder / CHECKPOINT, state, clock)

    def check_ranks(self) -> None:
        """Check that all ranks have the same numbers, to the bit.

        Raises:
            RuntimeError: they have not; the message names what differs.
        """
        phase = self.phases[self.progress.phase].state_dict()
        state = {"model": self.model.state_dict(), "phase": phase, "random": torch.get_rng_state()}
        found = {}
        for path, leaf in tree_flatten_with_path(state)[0]:
            if isinstance(leaf, Tensor):
                content = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                found[keystr(path)] = hashlib.blake2b(content, digest_size=8).hexdigest()
        theirs = world().texts(json.dumps(found))
        if len(set(theirs)) > 1:
            parsed = [json.loads(text) for text in theirs]
            names = [name for name in found if len({each.get(name) for each in parsed}) > 1]
            raise RuntimeError(f"the ranks differ at step {self.progress.total_steps}: {', '.join(names)}")

    def restore(self) -> None:
        """Take over the last checkpoint, to continue with ``records(resumed=True)``.

        Raises:
            FileNotFoundError, ValueError: there is no checkpoint, or it is damaged.
        """
        state, clock = checkpoint.load(self.run.folder / CHECKPOINT)
        with fitting(self.run):
            self._take_over(state, clock)

    def _take_over(self, state: Any, clock: dict[str, Any]) -> None:
        self.progress = Progress(**state["progress"], **clock)
        match(self.model, state["model"])
        if not self.finished:
            self.phases[self.progress.phase].enter()
        check_state(self.model, state["model"])
        self.model.load_state_dict(state["model"])
        if not self.finished:
            self.phases[self.progress.phase].load_state_dict(state["phase"])
        self.best = Best.from_state(state["best"])
        if self.best is not None:
            check_state(self.model, self.best.model)
        self.batches.load_state_dict(state["batches"])
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type == "cuda" and state["random"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.device)


def _part(state: dict[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Entries of a model's state dictionary whose names begin so."""
    return {name: value for name, value in state.items() if name.startswith(prefixes)}
