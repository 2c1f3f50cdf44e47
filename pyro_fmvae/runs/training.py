"""A run under way: model, phases, loader and progress, saved and restored together."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae import checkpoint
from pyro_fmvae.building import Model, latent_dim, spike_and_slab_em, warp
from pyro_fmvae.config import CODERS, PHASES, ModelName, TrainConfig
from pyro_fmvae.data import Batches, Dataset, hide_labels, whole
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.capture.playback import compiles
from pyro_fmvae.learn.em_phases import GradientEM, StepwiseEM
from pyro_fmvae.learn.fmvae_phases import Joint, Pretraining, PriorFitting
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.vae_phases import FreeEM, HybridEM, VAEJoint
from pyro_fmvae.learn.vsc_phases import SparsePhase
from pyro_fmvae.runs.run import CHECKPOINT, Run, fitting
from pyro_fmvae.learn.fitting import Progress, Record, fit

EXAMPLES = 1000  # from which the decoder starts
NETWORKS = ("encoder.", "decoder.")
SPARED = 20  # full batches in an epoch from which on compiling for the smaller last one does not pay

logger = logging.getLogger("pyro_fmvae")


class Training:
    """A run under way: model, phases, loader and progress, and how to save and restore them together.

    Args:
        run: the run.
        dataset: its data.
        device: where to train.
    """

    def __init__(self, run: Run, dataset: Dataset, device: torch.device) -> None:
        self.run, self.device = run, device
        config = run.config
        assert config.batch_size is not None
        torch.manual_seed(config.seed)
        self.model = run.build_model().to(device)
        if config.model in CODERS and len(dataset.train) <= latent_dim(config):
            units = f"{latent_dim(config)} units for {len(dataset.train)} training points"
            logger.warning("%s: what is learnt will not hold for other points", units)
        examples = dataset.train.select(torch.arange(min(EXAMPLES, len(dataset.train))))
        self.model.start_at(whole(examples, device)[0])
        augmentation = warp(config.augmentation, run.preprocessing, interpolate=not run.preprocessing.binary)
        compiled = self._compile(config)
        full = config.batch_size if len(dataset.train) >= SPARED * config.batch_size else 1
        how: dict[str, Any] = {"compile": compiled, "compile_from": full}
        self.learning = replace(config.learning(), augmentation=augmentation, **how)
        self.phases = _PHASES_OF[config.model](self.model, config, self.learning)
        labels = None
        if config.labels:
            labels = hide_labels(dataset.train, config.labels, config.seed)[:, : len(run.labelled)]
        training = replace(dataset.train, labels=labels)
        indexed = config.posterior == "free" or config.model in CODERS
        order: dict[str, Any] = {"seed": config.seed, "device": device, "indexed": indexed}
        self.batches = Batches(training, config.batch_size, **order)
        self.progress = Progress()

    def _compile(self, config: TrainConfig) -> bool:
        """Whether to compile captured steps."""
        if config.eager or config.compile is False:
            return False
        if config.compile is None and not (config.long and self.device.type == "cpu"):
            return False
        problem = compiles(self.device)
        if problem and config.compile:
            raise ValueError(f"compile: torch.compile does not work here ({problem})")
        if problem:
            logger.info("steps are not compiled: torch.compile does not work here (%s)", problem)
        return not problem

    @property
    def stepping(self) -> str:
        """How steps are taken, in words."""
        if self.run.config.model in CODERS and self.run.config.m_step == "closed":
            return "in closed form"
        how = "eager" if self.learning.eager else "captured"
        how += " and compiled" if self.learning.compile else ""
        return how + (", networks in bfloat16" if self.learning.autocast else "")

    def records(self, resumed: bool = False) -> Iterator[Record]:
        """Train from where it stands: see :func:`pyro_fmvae.learn.fitting.fit`."""
        return fit(self.phases, self.batches, self.progress, resumed)

    @property
    def finished(self) -> bool:
        """Whether every phase is done."""
        return self.progress.phase >= len(self.phases)

    def start_from(self, folder: Path) -> None:
        """Take over encoder and decoder of another run, of whatever model.

        Args:
            folder: of that run. Nothing but its checkpoint is read.

        Raises:
            ValueError: there is no checkpoint, it is damaged, or its networks have other shapes.
        """
        try:
            state, _ = checkpoint.load(folder / CHECKPOINT)
            theirs = _networks(state["model"], self._shared)
        except FileNotFoundError:
            raise ValueError(f"pretrained: {folder} is no run with a checkpoint") from None
        except (LookupError, TypeError, AttributeError):
            raise ValueError(f"pretrained: the checkpoint of {folder} holds no model") from None
        except ValueError as error:
            raise ValueError(f"pretrained: {error}") from None
        ours = _networks(self.model.state_dict(), self._shared)
        for name in (*ours, *theirs):
            here, there = (tuple(part[name].shape) if name in part else "missing" for part in (ours, theirs))
            if here != there:
                raise ValueError(
                    f"pretrained: {folder} has other networks: {name} is {there} there, {here} here"
                )
        self.model.load_state_dict(theirs, strict=False)

    @property
    def _shared(self) -> tuple[str, ...]:
        """The networks that are taken over: without an encoder of its own, a model has but the decoder."""
        return NETWORKS[1:] if self.run.config.posterior == "free" else NETWORKS

    def save(self) -> None:
        """Write a checkpoint of everything, atomically."""
        progress = self.progress
        state = {
            "progress": {"phase": progress.phase, "step": progress.step, "total_steps": progress.total_steps},
            "batches": self.batches.state_dict(),
            "model": self.model.state_dict(),
            "phase": None if self.finished else self.phases[progress.phase].state_dict(),
            "random": {"cpu": torch.get_rng_state(), "cuda": self._cuda_state()},
        }
        clock = {"seconds": progress.seconds, "total_seconds": progress.total_seconds}
        checkpoint.save(self.run.folder / CHECKPOINT, state, clock)

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
        self.model.match(state["model"])
        if not self.finished:
            self.phases[self.progress.phase].enter()
        self.model.load_state_dict(state["model"])
        if not self.finished:
            self.phases[self.progress.phase].load_state_dict(state["phase"])
        self.batches.load_state_dict(state["batches"])
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type == "cuda" and state["random"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.device)

    def _cuda_state(self) -> Tensor | None:
        """State of the random numbers on the GPU that is trained on."""
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None


def _networks(state: dict[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """What belongs to some of the networks in a model's state dictionary."""
    return {name: value for name, value in state.items() if name.startswith(prefixes)}


def _joint_learning(config: TrainConfig, learning: Learning) -> Learning:
    """The same, at the learning rate of the joint phase."""
    rate = config.joint_learning_rate
    return learning if rate is None else replace(learning, learning_rate=rate)


def _fmvae_phases(model: Any, config: TrainConfig, learning: Learning) -> list[Phase]:
    pretrain, prior, joint, refine = config.budgets()
    at_joint = _joint_learning(config, learning)
    rate = learning.final_learning_rate or at_joint.learning_rate
    last = replace(learning, label_weight=0.0, kl_weight=1.0, free_from=0.0, learning_rate=rate)
    last = replace(last, augment_until=0.0)
    return [
        Pretraining(model, learning, pretrain),
        PriorFitting(model, learning, prior, config.seed),
        Joint(model, at_joint, joint, seed=config.seed if prior.empty else None),
        Joint(model, last, refine, PHASES[-1], config.seed if prior.empty and joint.empty else None),
    ]


def _vae_phases(model: Any, config: TrainConfig, learning: Learning) -> list[Phase]:
    pretrain, _, joint, _ = config.budgets()
    before = replace(learning, pretrain_kl_weight=config.beta * learning.pretrain_kl_weight)
    first, at_joint = Pretraining(model, before, pretrain), _joint_learning(config, learning)
    weights = {"beta": config.beta, "tc_weight": config.total_correlation}
    if config.posterior in ("free", "hybrid"):
        kind = FreeEM if config.posterior == "free" else HybridEM
        return [first, kind(model, at_joint, joint, config.free_steps, config.free_learning_rate, **weights)]
    return [first, VAEJoint(model, at_joint, joint, **weights)]


def _vsc_phases(model: Any, config: TrainConfig, learning: Learning) -> list[Phase]:
    pretrain, _, joint, _ = config.budgets()
    assert config.warm_up is not None
    begin, end = config.warm_up
    share = pretrain.share_beside(joint)
    first = replace(learning, kl_weight=1.0, final_learning_rate=None, augment_until=1.0)
    at_joint = _joint_learning(config, learning)
    return [
        SparsePhase("pretrain", model, first, pretrain, (begin, end), (0.0, share)),
        SparsePhase("joint", model, at_joint, joint, (begin, end), (share, 1.0)),
    ]


def _binary_phases(model: Any, config: TrainConfig, learning: Learning) -> list[Phase]:
    _, _, joint, _ = config.budgets()
    if config.m_step == "gradient":
        return [GradientEM(model, _joint_learning(config, learning), joint)]
    assert config.reseed_every is not None
    return [StepwiseEM(model, model.em, joint, **_search(config), reseed_every=config.reseed_every)]


def _slab_phases(model: Any, config: TrainConfig, learning: Learning) -> list[Phase]:
    _, _, joint, refine = config.budgets()
    thorough, rate = spike_and_slab_em(config, None), config.em_rate
    return [
        StepwiseEM(model, model.em, joint, **_search(config)),
        StepwiseEM(model, thorough, refine, starts=0, rate=rate, name=PHASES[-1]),
    ]


def _search(config: TrainConfig) -> dict[str, Any]:
    """How EM looks for a good optimum."""
    return {"starts": config.starts, "temperature": config.temperature, "rate": config.em_rate}


_PHASES_OF: dict[ModelName, Callable[[Model, TrainConfig, Learning], list[Phase]]] = {
    "fmvae": _fmvae_phases,
    "vae": _vae_phases,
    "vsc": _vsc_phases,
    "bsc": _binary_phases,
    "max-sparse": _slab_phases,
    "linear-sparse": _slab_phases,
}
