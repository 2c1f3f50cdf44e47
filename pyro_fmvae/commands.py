"""The commands behind the command line: train, resume, evaluate, sample, encode."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import Batches, Kind, Split, load, load_file
from pyro_fmvae.evaluate import bound, label_agreement, tighter_bounds
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.run import Run, Training, new_folder, resolve_device
from pyro_fmvae.session import follow

EVALUATION_BATCH = 500


def train(config: TrainConfig, out: str | None) -> int:
    """Start a run, train it to its end, and show what came of it."""
    device = resolve_device(config.device)
    if Path(config.data).is_file():
        config = replace(config, data=str(Path(config.data).resolve()))
    root = Path(config.data_root).resolve() if config.data_root else None
    config = replace(config, data_root=str(root) if root else None)
    dataset = load(config.data, root, binarization=config.binarization)
    folder = Path(out) if out else new_folder(Path("runs"), dataset.name)
    run = Run.create(folder, config, dataset)
    return follow(Training(run, dataset, device), dataset, resumed=False)


def resume(folder: str, data_root: str | None, device: str) -> int:
    """Continue an interrupted run from its last checkpoint; a finished one is left as it is."""
    run = Run.open(Path(folder))
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
    opened = Run.open(Path(run))
    place = resolve_device(device)
    rows, label_names = _rows(opened, data, data_root, split)
    model = opened.load_model(place)
    batches = Batches(rows, EVALUATION_BATCH, shuffle=False, device=place)
    result: dict[str, Any] = bound(model, batches, seed)
    if num_samples:
        result |= tighter_bounds(model, batches, num_samples, seed)
    result["used_components"] = model.used_components()
    if rows.labels is not None:
        factors = [i if i < len(opened.labelled) else None for i in range(len(label_names))]
        result |= label_agreement(model, batches, label_names, factors)
    print(json.dumps(result))
    return 0


def sample(run: str, out: str, codes: str | None, grid: str, seed: int, device: str) -> int:
    """Draw from a run's model, and write a grid of images or arrays."""
    from pyro_fmvae import figures

    opened, target = Run.open(Path(run)), Path(out)
    rows, columns = _grid(grid)
    image = opened.preprocessing.kind is not Kind.TABLE and len(opened.preprocessing.event_shape) >= 2
    if target.suffix != ".npz" and not (target.suffix == ".png" and image):
        raise ValueError(f"out: expected a .npz file{' or a .png' if image else ' (the data are no images)'}, got '{out}'")
    assert opened.config.factors is not None
    wanted = parse_codes(codes, opened.config.factors).expand(rows * columns, -1)
    place = resolve_device(device)
    model = opened.load_model(place)
    torch.manual_seed(seed)
    with torch.no_grad():
        z = model.sample_latent(rows * columns, wanted)
        mean = model.observation.mean(model.decoder(z)).cpu()
    if target.suffix == ".npz":
        arrays = {"x": original_units(opened, mean.numpy()), "z": z.cpu().numpy(), "codes": wanted.numpy()}
        checkpoint.write_atomically(target, lambda path: _save_arrays(path, arrays))
    else:
        figures.save(figures.sample_grid(mean.numpy(), rows, columns), target)
    print(f"wrote {target}")
    return 0


def encode(run: str, data: str | None, data_root: str | None, split: str, out: str, seed: int, device: str) -> int:
    """Write responsibilities, codes and posterior means of data, in row order."""
    opened, target = Run.open(Path(run)), Path(out)
    if target.suffix != ".npz":
        raise ValueError(f"out: expected a .npz file, got '{out}'")
    place = resolve_device(device)
    rows, _ = _rows(opened, data, data_root, split)
    model = opened.load_model(place)
    torch.manual_seed(seed)
    arrays = encode_rows(model, Batches(rows, EVALUATION_BATCH, shuffle=False, device=place))
    checkpoint.write_atomically(target, lambda path: _save_arrays(path, arrays))
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
        if part != "*" and not (part.isdigit() and int(part) < components):
            raise ValueError(f"codes: expected * or 0..{components - 1} for factor {factor}, got '{part}'")
        numbers.append(-1 if part == "*" else int(part))
    return torch.tensor([numbers])


def encode_rows(model: FactorialMixtureVAE, batches: Batches) -> dict[str, np.ndarray]:
    """Encode every row: ``codes`` [N, I], ``mean`` and ``scale`` [N, I·D], ``responsibilities_i`` [N, K_i] per factor."""
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
    if Path(data).suffix in (".npz", ".csv"):
        rows = load_file(data, run.preprocessing)
        columns = 0 if rows.labels is None else rows.labels.shape[1]
        if columns == len(run.label_names):
            return rows, run.label_names
        if run.labelled and columns:
            raise ValueError(f"labels: {data} has {columns} label columns, the run was trained on {len(run.label_names)}")
        return rows, tuple(f"label{column}" for column in range(columns))
    dataset = load(data, Path(data_root) if data_root else None, binarization=run.config.binarization)
    if dataset.event_shape != run.preprocessing.event_shape:
        raise ValueError(
            f"data: the run was trained on data of shape {run.preprocessing.event_shape}, "
            f"'{data}' is of shape {dataset.event_shape}"
        )
    return dataset.split(split), dataset.label_names


def _grid(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
        raise ValueError(f"grid: expected rows x columns, such as 8x8, got '{text}'")
    return int(rows), int(columns)


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
