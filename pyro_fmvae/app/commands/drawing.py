"""The command ``draw``: draw a figure of a run's model.

A new figure is a module in :mod:`pyro_fmvae.figures` and an entry in `DRAWINGS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from jsonargparse import ArgumentParser

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command, add_device, add_run, add_seed, check_seed
from pyro_fmvae.app.commands.factor_settings import open_factorial, parse_factors, parse_settings
from pyro_fmvae.app.commands.output_files import output_file
from pyro_fmvae.app.recipes.pictures import factors_of_run
from pyro_fmvae.app.runs.pages.prototypes import prototypes
from pyro_fmvae.app.runs.run import FIGURES, Run, is_model_file
from pyro_fmvae.evaluate import encode_split, mutual_information
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.figures import Factors
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.models import FactorialMixtureVAE

Frames = list[np.ndarray]


@dataclass(frozen=True)
class Request:
    """A run's model, and the options of a figure of it."""

    run: Run
    model: FactorialMixtureVAE
    given: list[int] | None
    """Factors to show; None leaves the choice to the figure."""
    held: dict[int, int]
    """Components that other factors are held at."""
    numbers: dict[str, int]
    """Values of ``rows``, ``draws`` and ``most``, as far as they are given."""
    seed: int
    data_root: str | None

    @cached_property
    def factors(self) -> Factors:
        """The model's factors, as figures see them."""
        return factors_of_run(self.run.recipe, self.model)

    def chosen(self, count: int) -> list[int]:
        """Return the factors given; else those with most components in use, not held, in their own order.

        Raises:
            ValueError: fewer than ``count`` factors are not held.
        """
        if self.given is not None:
            return self.given
        free = [factor for factor in range(len(self.factors.sizes)) if factor not in self.held]
        if len(free) < count:
            raise ValueError(f"factors: {count} that are not held are needed, the run has {len(free)}")
        return sorted(sorted(free, key=lambda factor: -int(self.factors.used(factor).sum()))[:count])


@dataclass(frozen=True)
class Drawing:
    """A figure that ``draw`` knows."""

    draw: "Callable[[Request], Figure | Frames]"
    options: tuple[str, ...] = ()
    """The options it takes, besides those of every figure."""
    count: int | None = None
    """Number of factors that it shows; None: any number."""
    ending: str = ".png"


def _pairs(request: Request) -> Figure:
    i, j = request.chosen(2)
    return figures.pair_grid(request.factors, i, j, seed=request.seed, held=request.held, **request.numbers)


def _clusters(request: Request) -> Figure:
    (factor,) = request.chosen(1)
    return figures.clusters(request.factors, factor, seed=request.seed, **request.numbers)


def _nearest(request: Request) -> Figure:
    """The components of a factor, beside their nearest training pictures."""
    (factor,) = request.chosen(1)
    rows = request.run.load_data(request.data_root).train
    (found,) = prototypes(request.run, request.model, rows, [factor])
    pictures = {one.component: shown / 255 for one, shown in found}
    return figures.nearest_pictures(request.factors, factor, pictures)


def _traversal(request: Request) -> Frames:
    (factor,) = request.chosen(1)
    numbers = {"bases" if name == "rows" else name: value for name, value in request.numbers.items()}
    return figures.traversal(request.factors, factor, seed=request.seed, **numbers)


def _information(request: Request) -> Figure:
    """Share of each label's entropy that each factor's code tells, on test data (else validation data)."""
    dataset = request.run.load_data(request.data_root)
    rows = dataset.split(dataset.tested)
    if rows.labels is None:
        raise ValueError(f"figure: information needs data with labels, but '{dataset.name}' has none")
    encoded = encode_split(request.model, rows, device=next(request.model.parameters()).device)
    found = mutual_information(encoded.codes, encoded.labels).normalized
    varying = ~np.isnan(found[0])
    names = [name for name, known in zip(dataset.label_names, varying, strict=True) if known]
    title = "Mutual information of code and label, as a share of the label's entropy"
    return figures.property_matrix(found[:, varying], request.run.recipe.factor_names, names, title)


DRAWINGS: Final[dict[str, Drawing]] = {
    "attributes": Drawing(
        lambda asked: figures.attribute_grid(asked.factors, asked.given, seed=asked.seed, **asked.numbers),
        ("factors", "rows"),
    ),
    "spread": Drawing(
        lambda asked: figures.spread(asked.factors, seed=asked.seed, **asked.numbers), ("rows",)
    ),
    "clusters": Drawing(_clusters, ("factors", "draws", "most"), count=1),
    "nearest": Drawing(_nearest, ("factors", "data_root"), count=1),
    "pairs": Drawing(_pairs, ("factors", "draws", "most", "hold"), count=2),
    "traversal": Drawing(_traversal, ("factors", "rows", "most"), count=1, ending=".gif"),
    "factors": Drawing(
        lambda asked: figures.attribute_rows(asked.factors, seed=asked.seed, **asked.numbers), ("rows",)
    ),
    "components": Drawing(lambda asked: figures.component_grid(asked.factors)),
    "information": Drawing(_information, ("data_root",)),
}
"""Figures by name, in the order of ``--help``."""


MOST: Final = {"rows": 1_000, "draws": 10_000, "most": 1_000}
"""Largest numbers that make a figure which can be looked at."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`draw`."""
    add_run(parser)
    parser.add_argument("figure", type=Literal.__getitem__(tuple(DRAWINGS)), help="the figure")
    parser.add_argument("--out", type=str | None, help="file to write; default: one in RUN/figures")
    parser.add_argument(
        "--factors", type=str | None, help="factors to show, by name or number: hair,body or 0,3"
    )
    parser.add_argument("--rows", type=int | None, help="number of draws")
    parser.add_argument(
        "--draws", type=int | None, help="draws of z behind each mean of clusters and pairs; default: 100"
    )
    parser.add_argument(
        "--most", type=int | None, help="number of components of a factor, the most used ones"
    )
    parser.add_argument(
        "--hold", type=str | None, help="components at which pairs holds other factors: hat=1,6=3"
    )
    parser.add_argument(
        "--data-root", type=str | None, help="folder of published data sets, for information and nearest"
    )
    add_seed(parser)
    add_device(parser)


def draw(
    run: str,
    figure: str,
    out: str | None,
    factors: str | None,
    rows: int | None,
    draws: int | None,
    most: int | None,
    hold: str | None,
    seed: int,
    device: str,
    data_root: str | None,
) -> int:
    """Draw a figure of a run on images into a file; None leaves a number or a choice to the figure.

    Raises:
        ValueError: a run without factors or images, an option that the figure does not take, or a bad one.
    """
    opened = open_factorial(run, "draw")
    if not opened.recipe.image:
        raise ValueError(f"figure: {figure} needs a run on images, {run} is one on tables")
    drawing = DRAWINGS[figure]
    numbers = {"rows": rows, "draws": draws, "most": most}
    for name, value in {"factors": factors, **numbers, "hold": hold, "data_root": data_root}.items():
        if value is not None and name not in drawing.options:
            raise ValueError(f"{name}: {figure} does not take it")
    for name, number in numbers.items():
        if number is not None and number > MOST[name]:
            raise ValueError(f"{name}: expected at most {MOST[name]:,}, got {number}")
    check_seed(seed)
    if out is None and is_model_file(opened.folder):
        raise ValueError(
            f"out: expected a file to write, {run} is an exported model without a folder of figures"
        )
    own = opened.folder / FIGURES / f"{figure}{drawing.ending}"
    target = output_file(opened if out else None, out or own, [drawing.ending])
    chosen = None if factors is None else parse_factors(factors, opened)
    if chosen is not None and drawing.count is not None and len(chosen) != drawing.count:
        raise ValueError(f"factors: {figure} takes {drawing.count} of them, got '{factors}'")
    held = {} if hold is None else parse_settings(hold, opened, "hold")
    if held.keys() & set(chosen or ()):
        raise ValueError(f"hold: expected other factors than those of --factors, got '{hold}'")
    model = opened.load_model(resolve_device(device))
    given = {name: number for name, number in numbers.items() if number is not None}
    drawn = drawing.draw(Request(opened, model, chosen, held, given, seed, data_root))
    if not isinstance(drawn, list):
        figures.save(drawn, target)
    else:
        figures.save_animation(drawn, target)
    print(f"wrote {target}")
    return 0


COMMAND = Command(
    "draw",
    "draw a figure of a run's model",
    "Draw a figure of a run on images: .png, or .gif for traversal.",
    add_arguments,
    draw,
)
