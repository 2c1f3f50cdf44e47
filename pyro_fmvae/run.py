"""A run: a folder with configuration, records, checkpoint and figures, and the model that it stands for."""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.config import TrainConfig, resolve
from pyro_fmvae.data import Dataset, Kind, Preprocessing, load
from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation, Observation
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.nn import ConvDecoder28, ConvEncoder28, MLPDecoder, MLPEncoder

CONFIG = "config.json"
DERIVED = "derived"  # its key for what is no option
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint"
FIGURES = "figures"


@dataclass(frozen=True)
class Run:
    """What a run's folder says about it, without its data.

    Attributes:
        folder: where it is kept.
        config: resolved options.
        num_data: N, points in the training set.
        preprocessing: how raw data become the model's input.
        label_names: one per label column of the data set.
    """

    folder: Path
    config: TrainConfig
    num_data: int
    preprocessing: Preprocessing
    label_names: tuple[str, ...]

    @classmethod
    def new(cls, folder: Path, config: TrainConfig, dataset: Dataset) -> "Run":
        """A run that is not on disk yet, its options resolved.

        Raises:
            ValueError: options that don't fit the data.
        """
        resolved = resolve(config, dataset)
        return cls(folder, resolved, len(dataset.train), dataset.preprocessing, dataset.label_names)

    def write(self, numbered: bool = False) -> "Run":
        """Make the folder and write the configuration into it.

        Args:
            numbered: make the first of ``folder-001``, ``folder-002``, ... that does not exist.

        Returns:
            The run in the folder that was made.

        Raises:
            ValueError: the folder exists already.
        """
        for number in count(1):
            folder = Path(f"{self.folder}-{number:03d}") if numbered else self.folder
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
            if not numbered:
                raise ValueError(f"out: {folder} exists already, and runs are never overwritten")
        content = json.dumps(self._description(), indent=1) + "\n"
        checkpoint.write_atomically(folder / CONFIG, lambda path: path.write_text(content))
        return replace(self, folder=folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Read the configuration of a run.

        Raises:
            ValueError: the folder is no run.
        """
        try:
            values = json.loads((folder / CONFIG).read_text())
            derived = values[DERIVED]
            return cls(
                folder,
                TrainConfig.from_dict(values),
                derived["num_data"],
                Preprocessing.from_dict(derived["preprocessing"]),
                tuple(derived["label_names"]),
            )
        except FileNotFoundError:
            raise ValueError(f"run: {folder} is no run (there is no {CONFIG} in it)") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"run: {folder / CONFIG} is damaged ({error})") from None

    def _description(self) -> dict[str, Any]:
        derived = {
            "num_data": self.num_data,
            "preprocessing": self.preprocessing.to_dict(),
            "label_names": list(self.label_names),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("pyro_fmvae", "torch", "pyro-ppl", "numpy")},
            },
        }
        return {**self.config.to_dict(), DERIVED: derived}

    @property
    def labelled(self) -> tuple[int, ...]:
        """Factors that labels were trained on: the leading ones."""
        return tuple(range(len(self.label_names))) if self.config.labels else ()

    def factors_of(self, label_names: Sequence[str]) -> list[int | None]:
        """The factor that was trained on each of these labels, None where there is none."""
        trained = {self.label_names[factor]: factor for factor in self.labelled}
        return [trained.get(name) for name in label_names]

    @property
    def image(self) -> bool:
        """Whether a data point is an image."""
        return self.preprocessing.kind is not Kind.TABLE and len(self.preprocessing.event_shape) >= 2

    def load_data(self, data_root: str | None = None) -> Dataset:
        """The data set that it was trained on.

        Raises:
            ValueError: it has changed since.
        """
        config = self.config
        root = data_root or config.data_root
        dataset = load(config.data, Path(root) if root else None, binarization=config.binarization, seed=0)
        if len(dataset.train) != self.num_data:
            number = len(dataset.train)
            raise ValueError(f"data: {self.num_data} training points were expected, there are {number} now")
        if (dataset.preprocessing, dataset.label_names) != (self.preprocessing, self.label_names):
            raise ValueError(f"data: '{config.data}' is not what it was when the run was started")
        return dataset

    def observation(self) -> Observation:
        """Bernoulli for binary data, Gaussian with bounds that suit the scale for others."""
        event_dim = len(self.preprocessing.event_shape)
        if self.preprocessing.binary:
            return BernoulliObservation(event_dim)
        table = self.preprocessing.kind is Kind.TABLE
        return GaussianObservation(event_dim, *((0.05, 2.0) if table else (0.01, 0.5)))

    def build_model(self) -> FactorialMixtureVAE:
        """The untrained model."""
        config, observation, shape = self.config, self.observation(), self.preprocessing.event_shape
        assert config.factors is not None and config.factor_dim is not None and config.hidden is not None
        latent = len(config.factors) * config.factor_dim
        encoder: torch.nn.Module
        decoder: torch.nn.Module
        if config.network == "conv28":
            encoder, decoder = ConvEncoder28(latent), ConvDecoder28(latent, observation.outputs)
        else:
            encoder = MLPEncoder(shape, latent, config.hidden)
            decoder = MLPDecoder(latent, shape, observation.outputs, config.hidden[::-1])
        return FactorialMixtureVAE(
            encoder,
            decoder,
            observation,
            config.factors,
            config.factor_dim,
            self.num_data,
            self.labelled,
            config.hyperprior,
        )

    def load_model(self, device: torch.device) -> FactorialMixtureVAE:
        """The model as it was at the last checkpoint.

        Raises:
            FileNotFoundError, ValueError: there is no checkpoint, or it is damaged.
        """
        state, _ = checkpoint.load(self.folder / CHECKPOINT)
        model = self.build_model()
        with fitting(self):
            model.match(state["model"])
            model.load_state_dict(state["model"])
        return model.to(device).eval()


@contextmanager
def fitting(run: Run) -> Iterator[None]:
    """Say it in one line if a checkpoint turns out to be that of another model."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"run: {run.folder / CHECKPOINT} does not fit {CONFIG} ({reason})") from None


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one.

    Raises:
        ValueError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"device: '{name}' cannot be used here ({str(error).splitlines()[0]})") from None
    return device
