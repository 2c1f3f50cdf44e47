"""Writing a run to one file: the whole model, its card, or its encoder alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyro_fmvae import checkpoint
from pyro_fmvae.runs.config_file import COMPONENT_NAMES, DERIVED, read_values, without_places
from pyro_fmvae.runs.encoder_file import ONNX, PROGRAM, write_encoder
from pyro_fmvae.runs.given_names import as_json
from pyro_fmvae.runs.model_file import ENDING, is_model_file, read_model, write_model
from pyro_fmvae.runs.pages.model_card import model_card
from pyro_fmvae.runs.run import Run

CARD: Final = ".md"


def _write_model(run: Run, model: Any, path: Path) -> None:
    exported = is_model_file(run.folder)
    values = read_model(run.folder)["config"] if exported else read_values(run.folder)
    derived = {**values[DERIVED], COMPONENT_NAMES: as_json(run.recipe.given_names)}
    values = {**values, **without_places(run.config).to_dict(), DERIVED: derived}
    write_model(path, json.loads(json.dumps(values)), model_card(run), model.state_dict())


def _write_card(run: Run, model: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    card = model_card(run)
    checkpoint.write_atomically(path, lambda part: part.write_text(card, encoding="utf-8"))


FORMATS: Final[dict[str, Callable[[Run, Any, Path], None]]] = {
    ENDING: _write_model,
    CARD: _write_card,
    ONNX: write_encoder,
    PROGRAM: write_encoder,
}
"""Writes a run and its model to a file, by the file's ending."""


def export(run: Run, model: Any, path: Path) -> None:
    """Write a run to one file, in one step; make missing folders.

    Args:
        run: the run, or an exported model.
        model: of the run.
        path: .fmvae, the model with all that its use takes, without data and paths; .md, its card; .onnx or
            .pt2, the encoder.

    Raises:
        ValueError: another ending, or no encoder where one is asked for.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"path: expected a name that ends in {', '.join(FORMATS)}, got '{path}'")
    FORMATS[path.suffix](run, model, path)
