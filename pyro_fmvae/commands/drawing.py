"""Draw a figure of a run's model."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from pyro_fmvae import figures
from pyro_fmvae.commands.arguments import (
    check_ending,
    check_seed,
    check_spares_data,
    open_factorial,
    parse_factors,
    parse_settings,
)
from pyro_fmvae.evaluate import encode_split, mutual_information
from pyro_fmvae.figures import Factors
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.runs.gallery import factors_of_run
from pyro_fmvae.runs.run import FIGURES, Run, resolve_device

FigureName = Literal[
    "attributes", "spread", "clusters", "pairs", "traversal", "factors", "components", "information"
]
OPTIONS: dict[FigureName, tuple[str, ...]] = {
    "attributes": ("factors", "rows"),
    "spread": ("rows",),
    "clusters": ("factors", "draws", "most"),
    "pairs": ("factors", "draws", "most", "hold"),
    "traversal": ("factors", "rows", "most"),
    "factors": ("rows",),
    "components": (),
    "information": ("data_root",),
}
"""The options that each figure takes."""

_CHOSEN: dict[FigureName, int] = {"clusters": 1, "pairs": 2, "traversal": 1}  # how many factors


def draw(
    run: str,
    figure: FigureName,
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
    """Draw a figure of a run on images into a file; None leaves a number or a choice to the figure."""
    opened = open_factorial(run, "draw")
    if not opened.image:
        raise ValueError(f"figure: {figure} needs a run on images, {run} is one on tables")
    options = {"factors": factors, "rows": rows, "draws": draws, "most": most, "hold": hold}
    options["data_root"] = data_root
    for name, value in options.items():
        if value is not None and name not in OPTIONS[figure]:
            raise ValueError(f"{name}: {figure} does not take it")
    check_seed(seed)
    ending = ".gif" if figure == "traversal" else ".png"
    target = Path(out) if out is not None else opened.folder / FIGURES / f"{figure}{ending}"
    check_ending(target, (ending,))
    if out is not None:
        check_spares_data(opened, target)
    chosen = None if factors is None else parse_factors(factors, opened)
    expected = _CHOSEN.get(figure)
    if chosen is not None and expected is not None and len(chosen) != expected:
        raise ValueError(f"factors: {figure} takes {expected} of them, got '{factors}'")
    held = {} if hold is None else parse_settings(hold, opened, "hold")
    if held.keys() & set(chosen or ()):
        raise ValueError(f"hold: expected other factors than those of --factors, got '{hold}'")
    numbers = {name: options[name] for name in ("rows", "draws", "most") if options[name] is not None}
    model = opened.load_model(resolve_device(device))
    assert isinstance(model, FactorialMixtureVAE)
    if figure == "information":
        drawn: Figure | list[np.ndarray] = _information(opened, model, data_root)
    else:
        drawn = _make(figure, factors_of_run(opened, model), chosen, held, seed, numbers)
    if isinstance(drawn, Figure):
        figures.save(drawn, target)
    else:
        figures.save_animation(drawn, target)
    print(f"wrote {target}")
    return 0


def _make(
    figure: FigureName,
    factors: Factors,
    chosen: list[int] | None,
    held: dict[int, int],
    seed: int,
    numbers: dict[str, Any],
) -> Figure | list[np.ndarray]:
    """The figure or an animation's frames; ``numbers``: those of rows, draws and most that are given."""
    if figure == "attributes":
        return figures.attribute_grid(factors, chosen, seed=seed, **numbers)
    if figure == "spread":
        return figures.spread(factors, seed=seed, **numbers)
    if figure == "factors":
        return figures.attribute_rows(factors, seed=seed, **numbers)
    if figure == "components":
        return figures.component_grid(factors)
    if figure == "pairs":
        i, j = chosen or _busiest(factors, 2, held)
        return figures.pair_grid(factors, i, j, seed=seed, held=held, **numbers)
    (factor,) = chosen or _busiest(factors, 1, held)
    if figure == "clusters":
        return figures.clusters(factors, factor, seed=seed, **numbers)
    renamed = {"bases" if name == "rows" else name: value for name, value in numbers.items()}
    return figures.traversal(factors, factor, seed=seed, **renamed)


def _information(run: Run, model: FactorialMixtureVAE, data_root: str | None) -> Figure:
    """What the code of each factor tells of each label, on test data (validation data if there are none)."""
    dataset = run.load_data(data_root)
    rows = dataset.valid if dataset.test is None else dataset.test
    if rows.labels is None:
        raise ValueError(f"figure: information needs data with labels, '{dataset.name}' has none")
    encoded = encode_split(model, rows, device=next(model.parameters()).device)
    found = mutual_information(encoded.codes, encoded.labels).normalized
    varying = ~np.isnan(found[0])
    names = [name for name, known in zip(dataset.label_names, varying, strict=True) if known]
    title = "Mutual information of code and label, as a share of the label's entropy"
    return figures.property_matrix(found[:, varying], run.factor_names, names, title)


def _busiest(factors: Factors, count: int, held: Collection[int]) -> list[int]:
    """So many factors, those with most components in use, that are not held; in their own order."""
    free = [factor for factor in range(len(factors.sizes)) if factor not in held]
    if len(free) < count:
        raise ValueError(f"factors: {count} that are not held are needed, the run has {len(free)}")
    return sorted(sorted(free, key=lambda factor: -int(factors.used(factor).sum()))[:count])
