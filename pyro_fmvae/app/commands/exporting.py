"""The command ``export``: take a run along as one file."""

from pathlib import Path

from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, add_run
from pyro_fmvae.app.commands.output_files import output_file
from pyro_fmvae.app.runs.export import FORMATS, export
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.evaluate.randomness import resolve_device


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`export_run`."""
    add_run(parser)
    parser.add_argument(
        "--out",
        type=str,
        required=True,
        help="file to write: .fmvae, the whole model; .md, its card; .onnx or .pt2, its encoder",
    )


def export_run(run: str, out: str) -> int:
    """Write a run to one file.

    Raises:
        ValueError: what is no run, a bad file name, or no encoder where one is asked for.
    """
    opened = Run.open(Path(run))
    target = output_file(opened, out, FORMATS)
    export(opened, opened.load_model(resolve_device("cpu")), target)
    print(f"wrote {target}: {target.stat().st_size:,} bytes")
    return 0


COMMAND = Command(
    "export",
    "write a run to one file, to take along",
    "Write a run to one file: the whole model (.fmvae), a card about it (.md), or its encoder (.onnx, .pt2).",
    add_arguments,
    export_run,
)
