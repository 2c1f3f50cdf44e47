"""The command ``explore``: a local web page for a run."""

from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, add_device, add_run
from pyro_fmvae.app.explorer import Exploration, serve
from pyro_fmvae.app.explorer.serving import LOCAL, check_installed
from pyro_fmvae.app.runs.trained import load


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`explore`."""
    add_run(parser)
    parser.add_argument(
        "--host",
        type=str,
        default=LOCAL,
        help="address to listen on; with any other, the page asks for a token",
    )
    parser.add_argument(
        "--port", type=int | None, help="port to listen on; default: the first free from 7860"
    )
    parser.add_argument("--data-root", type=str | None, help="folder in which the run's data lie now")
    add_device(parser)


def explore(run: str, host: str, port: int | None, data_root: str | None, device: str) -> int:
    """Show a web page for a run until Ctrl-C.

    Raises:
        ValueError: gradio is not installed, a folder that is no run, or an address that cannot be used.
    """
    check_installed()
    explored = Exploration(load(run, device), data_root)
    serve(explored, host, port, lambda address: print(f"{address}   (Ctrl-C ends it)", flush=True))
    return 0


COMMAND = Command(
    "explore",
    "look at a run in a browser: generate, edit, clusters, labels, outliers",
    "Show a local web page for a run: generate, edit, look at clusters, label, find outliers.",
    add_arguments,
    explore,
)
