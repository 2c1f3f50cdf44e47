"""Writing a run to one file: the whole model, its card, or its encoder alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_fmvae.app.runs.factor_names import as_json
from pyro_fmvae.app.runs.pages.model_card import model_card
from pyro_fmvae.app.runs.run import (
    COMPONENT_NAMES,
    DERIVED,
    ENDING,
    Run,
    is_model_file,
    read_model,
    read_values,
    without_places,
)
from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.files import checkpoint
from pyro_fmvae.models.factorial_encoder import FactorialEncoder

# The encoder of a run as a program that needs neither Pyro nor this library: ONNX, or torch's own format.

ONNX: Final = ".onnx"
PROGRAM: Final = ".pt2"
INPUT: Final = "x"


class RawEncoder(nn.Module):
    """An encoder of data in their own units.

    Args:
        preprocessing: of the run.
        program: encodes what the preprocessing gives.

    Raises:
        ValueError: data whose preprocessing is not plain arithmetic.
    """

    def __init__(self, preprocessing: Preprocessing, program: nn.Module) -> None:
        super().__init__()
        if preprocessing.powers is not None or preprocessing.patches is not None:
            raise ValueError("run: expected pictures, counts, or columns only standardised")
        counts = preprocessing.counts
        self.batch = None if counts is None else counts.batch
        if counts is not None:
            self.register_buffer("batches", torch.tensor(counts.batches, dtype=torch.float64))
        self.kind, self.threshold = preprocessing.kind, preprocessing.binarization == "threshold"
        self.program = program
        if self.kind is Kind.TABLE:
            for name in ("mean", "std"):
                of_columns = torch.tensor(getattr(preprocessing, name), dtype=torch.float64)
                self.register_buffer(f"column_{name}", of_columns)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the input: of tables such that it holds every unit, and every number of a batch."""
        return torch.float64 if self.kind in (Kind.TABLE, Kind.COUNTS) else torch.float32

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Encode ``x[n, *event_shape]``: pixels in [0, 1] as float32, columns in their units as float64.

        A row of a batch that the training did not have becomes NaN.
        """
        if self.kind is Kind.TABLE:
            x = ((x - self.get_buffer("column_mean")) / self.get_buffer("column_std")).float()
        elif self.kind is Kind.COUNTS:
            x = self._counts(x).float()
        elif self.kind is Kind.IMAGE:
            x = 2 * x - 1
        elif self.threshold:
            x = (x >= 0.5).float()
        encoded: dict[str, Tensor] = self.program(x)
        return encoded

    def _counts(self, x: Tensor) -> Tensor:
        """Put the number of a row's batch, from 0, behind its counts, as `CountTable` does."""
        if self.batch is None:
            return x
        counts = torch.cat([x[:, : self.batch], x[:, self.batch + 1 :]], -1)
        same = (x[:, self.batch, None] == self.get_buffer("batches")).double()
        known = torch.where(same.sum(-1, keepdim=True) > 0, 0.0, torch.nan)
        return torch.cat([counts + known, same.argmax(-1, keepdim=True)], -1)


class _Encoding(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        encoded: dict[str, Tensor] = self.model.encode(x)
        return encoded


def encoder_program(run: Run, model: Any) -> torch.export.ExportedProgram:
    """The encoder from data in their units to the arrays of ``encode``, for any number of rows.

    A batch that the data name by a word is its number among the sorted words, from 0.

    Raises:
        ValueError: a model without an encoder, or data that it cannot take by itself.
    """
    if run.recipe.indexed:
        raise ValueError(f"run: expected a model with an encoder, but --model {run.recipe.name} has none")
    traceable = FactorialEncoder(model) if run.recipe.factorial else _Encoding(model)
    encoder = deepcopy(RawEncoder(run.recipe.preprocessing, traceable)).eval().cpu().requires_grad_(False)
    # Torch 2.6 notes this number as the size of some outputs; onnxruntime reuses buffers of one size, which
    # fails for other numbers of rows where the components of a factor are as many.
    rows = 97
    x = torch.zeros((rows, *run.recipe.preprocessing.event_shape), dtype=encoder.dtype)
    dims = {0: torch.export.Dim("rows", max=1 << 40)}  # without max, torch 2.6 does not exclude 2^63 - 1
    with _without_checks(), torch.no_grad():
        program = torch.export.export(encoder, (x,), dynamic_shapes=(dims,), strict=False)
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # places on this machine
    return program


def write_encoder(run: Run, model: Any, path: Path) -> None:
    """Write the encoder as ONNX (.onnx) or as ``torch.export.save`` does (.pt2), in one step.

    Names lie beside it: in the metadata, and in the extra files ``names.json``, of factors and their values,
    and ``batches.json``, the words of batches in the order of their numbers.

    Raises:
        ValueError: as for :func:`encoder_program`, or ONNX without the packages that it needs.
    """
    if path.suffix == ONNX and (missing := [name for name in ("onnx", "onnxscript") if not find_spec(name)]):
        raise ValueError(f"out: ONNX needs {' and '.join(missing)}: pip install 'pyro_fmvae[onnx]'")
    program = encoder_program(run, model)
    names = {name: json.dumps(value) for name, value in _names(run).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == PROGRAM:
        content = BytesIO()
        extra = {f"{name}.json": text for name, text in names.items()}
        torch.export.save(program, content, extra_files=extra)
        checkpoint.write_atomically(path, lambda part: part.write_bytes(content.getvalue()))
        return
    outputs = list(program.module()(*program.example_inputs[0]))
    # Constants are folded: onnxruntime 1.23 would fuse their transposes with products in float64, and has no
    # kernel for that.
    onnx = torch.onnx.export(
        program, dynamo=True, input_names=[INPUT], output_names=outputs, optimize=True, verbose=False
    )
    assert onnx is not None
    onnx.model.metadata_props.update(names)
    checkpoint.write_atomically(path, onnx.save)


def _names(run: Run) -> dict[str, Any]:
    """``names``, factor → names of its leading components, if they have any; ``batches``, their words."""
    of_factors = {
        name: list(run.recipe.component_names(factor)) for factor, name in enumerate(run.recipe.factor_names)
    }
    counts, levels = run.recipe.preprocessing.counts, run.recipe.preprocessing.levels
    words = levels[counts.batch] if levels and counts is not None and counts.batch is not None else ()
    return {"names": of_factors} | ({"batches": list(words)} if words else {})


@contextmanager
def _without_checks() -> Iterator[None]:
    """Distributions must not look at their arguments while they are traced: these have no numbers."""
    before = Distribution._validate_args
    with pyro.validation_enabled(False):
        Distribution.set_default_validate_args(False)
        try:
            yield
        finally:
            Distribution.set_default_validate_args(before)


CARD: Final = ".md"


def _write_model(run: Run, model: Any, path: Path) -> None:
    exported = is_model_file(run.folder)
    values = read_model(run.folder)["config"] if exported else read_values(run.folder)
    derived = {**values[DERIVED], COMPONENT_NAMES: as_json(run.recipe.given_names)}
    values = {**values, **without_places(run.config).to_dict(), DERIVED: derived}
    config = json.loads(json.dumps(values))
    checkpoint.save_file(path, {"config": config, "card": model_card(run), "model": dict(model.state_dict())})


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
