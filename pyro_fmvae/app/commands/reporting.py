"""The command ``report``: a page about a run, or about several side by side."""

from pathlib import Path

from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, add_device, add_run
from pyro_fmvae.app.commands.output_files import output_file
from pyro_fmvae.app.runs.closing_table import undamaged
from pyro_fmvae.app.runs.pages import PAGE, write_comparison, write_page
from pyro_fmvae.app.runs.run import Run, saved
from pyro_fmvae.evaluate.randomness import resolve_device

COMPARISON = "comparison.html"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`report`."""
    add_run(parser)
    parser.add_argument(
        "--compare",
        type=str,
        nargs="+",
        metavar="RUN",
        help="runs to compare with it, on a page of their own",
    )
    parser.add_argument(
        "--out", type=str | None, help=f"page to write: .html; default: RUN/{PAGE} or RUN/{COMPARISON}"
    )
    parser.add_argument("--data-root", type=str | None, help="folder of published data sets")
    add_device(parser)


def report(run: str, compare: list[str] | None, out: str | None, data_root: str | None, device: str) -> int:
    """Write a page about a run anew, or one that compares it with others.

    Raises:
        ValueError: what is no run, the same run twice, or a bad file name.
    """
    from pyro_fmvae.app.runs import estimator_run  # here, as --help has no use for scikit-learn

    if not compare and estimator_run.opened(run) is not None:
        target = output_file(None, out or Path(run) / PAGE, [".html"])
        estimator_run.write_page(Path(run), target)
        print(f"wrote {target}")
        return 0
    runs = [Run.open(Path(folder)) for folder in (run, *(compare or ()))]
    for one in runs:
        one.check_folder("the records of its training")
    opened = runs[0]
    target = output_file(None, out or opened.folder / (COMPARISON if compare else PAGE), [".html"])
    if compare:
        if len({one.folder.resolve() for one in runs}) < len(runs):
            raise ValueError("compare: expected different runs")
        with undamaged(" or ".join(str(one.folder) for one in runs)):
            write_comparison(runs, target)
    else:
        model = opened.load_model(resolve_device(device)) if saved(opened.folder) else None
        try:
            dataset, note = opened.load_data(data_root), ""
        except (ValueError, OSError) as error:
            dataset, note = None, f"There are no training pictures here: {error}."
        with undamaged(opened.folder):
            write_page(opened, target, model, dataset, note)
    print(f"wrote {target}")
    return 0


COMMAND = Command(
    "report",
    "write a page about a run, or about several side by side",
    "Write a page about a run: its result, curves and pictures. It needs no network and no other file.",
    add_arguments,
    report,
)
