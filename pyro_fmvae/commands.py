"""The commands behind the command line: train, resume, evaluate, sample, encode."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_fmvae import checkpoint, figures
from pyro_fmvae.config import LARGEST, TrainConfig
from pyro_fmvae.data import Batches, Kind, Split, load
from pyro_fmvae.data.files import READERS, read
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.evaluate import bound, label_agreement, tighter_bounds
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.run import CHECKPOINT, Run, resolve_device
from pyro_fmvae.session import follow
from pyro_fmvae.training import Training

EVALUATION_BATCH = 500
LARGEST_GRID = 1_000_000


def train(config: TrainConfig, out: str | None) -> int:
    """Start a run, train it to its end, and show what came of it."""
    device = resolve_device(config.device)
    if config.data not in LOADERS and Path(config.data).is_file():
        config = replace(config, data=str(Path(config.data).resolve()))
    root = Path(config.data_root).resolve() if config.data_root else None
    config = replace(config, data_root=str(root) if root else None)
    dataset = load(config.data, root, binarization=config.binarization)
    run = Run.new(Path(out) if out else Path("runs") / dataset.name, config, dataset)
    training = Training(run, dataset, device)
    training.run = run.write(numbered=not out)
    folder = training.run.folder
    try:
        return follow(training, dataset, resumed=False)
    except Exception:
        if not (folder / CHECKPOINT).exists():  # it failed before there was anything to continue from
            shutil.rmtree(folder)
        raise


def resume(folder: str, data_root: str | None, device: str, eager: bool, compile: bool | None) -> int:
    """Continue an interrupted run from its last checkpoint; a finished one is left as it is.

    ``eager`` and ``compile`` say how steps are taken from now on, if they are given.
    """
    run = Run.open(Path(folder))
    if eager:
        run = replace(run, config=replace(run.config, eager=True, compile=compile))
    elif compile is not None:
        eager = run.config.eager and not compile
        run = replace(run, config=replace(run.config, eager=eager, compile=compile))
    dataset = run.load_data(data_root)
    training = Training(run, dataset, resolve_device(run.config.device if device == "auto" else device))
    training.restore()
    if training.finished:
        print(f"{run.folder} is finished already.")
        return 0
    return follow(training, dataset, resumed=True)


def evaluate(
    run: str, data: str | None, data_root: str | None, split: str, num_samples: int, seed: int, device: str
) -> int:
    """Print the measures of a run as one JSON object on one line."""
    if num_samples < 0:
        raise ValueError(f"num_samples: expected a number >= 0, got {num_samples}")
    _check_seed(seed)
    opened = Run.open(Path(run))
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, label_names = _rows(opened, data, data_root, split)
    batches = Batches(rows, EVALUATION_BATCH, shuffle=False, device=place)
    result: dict[str, Any] = bound(model, batches, seed, max(num_samples, 1))
    if num_samples:
        result |= tighter_bounds(model, batches, num_samples, seed)
    result["used_components"] = model.used_components()
    if rows.labels is not None:
        result |= label_agreement(model, batches, label_names, opened.factors_of(label_names))
    print(json.dumps(result))
    return 0


def sample(run: str, out: str, codes: str | None, grid: str, seed: int, device: str) -> int:
    """Draw from a run's model, and write a grid of images or arrays."""
    opened, target = Run.open(Path(run)), Path(out)
    _check_seed(seed)
    rows, columns = _grid(grid)
    endings = (".npz", ".png") if opened.image else (".npz",)
    _check_ending(target, endings)
    assert opened.config.factors is not None
    wanted = parse_codes(codes, opened.config.factors).expand(rows * columns, -1)
    model = opened.load_model(resolve_device(device))
    torch.manual_seed(seed)
    with torch.no_grad():
        drawn = model.sample_codes(rows * columns, wanted)
        z = model.sample_latent(rows * columns, drawn)
        mean = model.observation.mean(model.decoder(z)).cpu().numpy()
    if target.suffix == ".npz":
        x = original_units(opened, mean)
        _save_arrays(target, {"x": x, "z": z.cpu().numpy(), "codes": drawn.cpu().numpy()})
    else:
        figures.save(figures.sample_grid(mean, rows, columns), target)
    print(f"wrote {target}")
    return 0


def encode(run: str, data: str | None, data_root: str | None, split: str, out: str, device: str) -> int:
    """Write responsibilities, codes and posterior means of data, in row order."""
    opened, target = Run.open(Path(run)), Path(out)
    _check_ending(target, (".npz",))
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, _ = _rows(opened, data, data_root, split)
    arrays = encode_rows(model, Batches(rows, EVALUATION_BATCH, shuffle=False, device=place))
    _save_arrays(target, arrays)
    print(f"wrote {target}: {', '.join(f'{name} {array.shape}' for name, array in arrays.items())}")
    return 0


def parse_codes(codes: str | None, factors: tuple[int, ...]) -> torch.Tensor:
    """Component of each factor, int64 [1, I], -1 where it is to be drawn.

    Args:
        codes: such as ``0,1,*,*``; None draws all.
        factors: K_i of each factor.

    Raises:
        ValueError: the wrong number of codes, or one that is neither * nor a component.
    """
    parts = ["*"] * len(factors) if codes is None else [part.strip() for part in codes.split(",")]
    if len(parts) != len(factors):
        raise ValueError(f"codes: expected {len(factors)} of them, one per factor, got '{codes}'")
    numbers = []
    for factor, (part, components) in enumerate(zip(parts, factors, strict=True)):
        if part != "*" and not (part.isdecimal() and int(part) < components):
            raise ValueError(f"codes: expected * or 0..{components - 1} for factor {factor}, got '{part}'")
        numbers.append(-1 if part == "*" else int(part))
    return torch.tensor([numbers])


def encode_rows(model: FactorialMixtureVAE, batches: Batches) -> dict[str, np.ndarray]:
    """Encode every row.

    Returns:
        ``codes`` [N, I], ``mean`` and ``scale`` of q(z | x) [N, I·D], and for each factor i
        ``responsibilities_i`` [N, K_i].
    """
    arrays: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        for x, *_ in batches:
            mean, scale = model.encoder(x)
            gammas = model.responsibilities(x)
            codes = torch.stack([gamma.argmax(-1) for gamma in gammas], -1)
            named = {f"responsibilities_{factor}": gamma for factor, gamma in enumerate(gammas)}
            for name, tensor in {"codes": codes, "mean": mean, "scale": scale, **named}.items():
                arrays.setdefault(name, []).append(tensor.cpu())
    return {name: torch.cat(tensors).numpy() for name, tensors in arrays.items()}


def original_units(run: Run, x: np.ndarray) -> np.ndarray:
    """Undo the standardisation of a table's columns; other data are returned as they are."""
    if run.preprocessing.kind is not Kind.TABLE:
        return x
    return x * np.asarray(run.preprocessing.std) + np.asarray(run.preprocessing.mean)


def _rows(run: Run, data: str | None, data_root: str | None, split: str) -> tuple[Split, tuple[str, ...]]:
    """The rows that a command is about, under the run's own preprocessing, and the names of their labels."""
    if data is None:
        dataset = run.load_data(data_root)
        return dataset.split(split), dataset.label_names
    if data not in LOADERS and Path(data).suffix.lower() in READERS:
        raw = read(Path(data))
        run.preprocessing.check_columns(raw.column_names, data)
        labels = None if raw.labels is None else torch.from_numpy(raw.labels)
        return Split(run.preprocessing(raw.x, f"{data}: 'x'"), labels), _names(run, data, raw.label_names)
    dataset = load(data, Path(data_root) if data_root else None, binarization=run.config.binarization)
    ours, theirs = run.preprocessing, dataset.preprocessing
    if (ours.kind, ours.event_shape) != (theirs.kind, theirs.event_shape):
        raise ValueError(
            f"data: the run was trained on {ours.kind.value} data of shape {ours.event_shape}, "
            f"'{data}' is {theirs.kind.value} data of shape {theirs.event_shape}"
        )
    return dataset.split(split), dataset.label_names


def _names(run: Run, data: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a file's label columns: where it gives none, those of the run."""
    if not run.label_names or names != tuple(f"label{column}" for column in range(len(names))):
        return names
    if names and len(names) != len(run.label_names):
        count = len(run.label_names)
        raise ValueError(f"labels: {data} has {len(names)} columns of labels, the run's data have {count}")
    return run.label_names


def _grid(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and 0 < int(rows) * int(columns) <= LARGEST_GRID):
        raise ValueError(
            f"grid: expected rows x columns, such as 8x8, at most {LARGEST_GRID:,}, got '{text}'"
        )
    return int(rows), int(columns)


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= LARGEST:
        raise ValueError(f"seed: expected a number in 0..{LARGEST}, got {seed}")


def _check_ending(target: Path, endings: tuple[str, ...]) -> None:
    if target.suffix not in endings:
        raise ValueError(f"out: expected a name that ends in {' or '.join(endings)}, got '{target}'")
    if target.is_dir():
        raise ValueError(f"out: {target} is a folder")


def _save_arrays(target: Path, arrays: dict[str, Any]) -> None:
    """Write a .npz file, never half of it; folders that are missing are made."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)
