"""The pictures that a finished run leaves behind."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.building import Model, SparseCoder
from pyro_fmvae.codes import decode, latent_code, latent_codes, true_sources
from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.data.sets.bars import bars_truth
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, SOURCES
from pyro_fmvae.evaluate.recovery import match_units
from pyro_fmvae.evaluate.sources import activity, correlation_matrix
from pyro_fmvae.figures.attribute_grid import default_choice
from pyro_fmvae.figures.columns import MOST_COLUMNS
from pyro_fmvae.models import (
    VAE,
    FactorialMixtureVAE,
    SpikeAndSlabSparseCoding,
    VariationalSparseCoding,
)
from pyro_fmvae.runs.run import FIGURES, METRICS, Run

TRAINING = "training"  # the figure that every run has, and no other command draws
RECONSTRUCTED = 20
ENCODED, ENCODING_BATCH = 2000, 500
EXAMPLES, SWEPT = 6, 2  # of sparse codes
DRAWN, DRAWS = 200, 20  # points whose causes are drawn, and how often
OF_NETWORKS = {"kl_r", "kl_global"}  # nothing but zeros without factors


def factors_of(
    model: FactorialMixtureVAE,
    names: Sequence[str] = (),
    value_names: Sequence[Sequence[str]] = (),
    preprocessing: Preprocessing | None = None,
) -> figures.Factors:
    """What the pictures of factors need to know of a model.

    Args:
        model: trained.
        names: of the leading factors, those with labels; the others have their number, as in codes.
        value_names: for each of those, what its components are called, or nothing.
        preprocessing: of the data. Pixels of pictures are in [0, 1] then, whatever the model's are; tables
            stay as the model sees them, standardised.
    """
    image = preprocessing is not None and preprocessing.kind is not Kind.TABLE
    undo = preprocessing.undo if preprocessing is not None and image else _same
    unit = 0.5 if preprocessing is not None and preprocessing.signed else 1.0
    observation, decoder = model.observation, model.decoder
    count = len(model.num_components)
    means: dict[int, Tensor] = {}
    shares: dict[int, Tensor] = {}
    for group in model.factor_groups():
        means |= dict(zip(group.factors, group.locations(), strict=True))
        shares |= dict(zip(group.factors, group.counts().clamp(min=0), strict=True))
    return figures.Factors(
        decode=lambda z: undo(observation.mean(decoder(z))),
        sample_latent=model.sample_latent,
        means=[means[factor] for factor in range(count)],
        shares=[shares[factor] for factor in range(count)],
        names=(*names, *(f"factor {factor}" for factor in range(len(names), count))),
        std=lambda z: unit * observation.std(decoder(z)),
        draw=lambda z: undo(observation(decoder(z)).sample()),
        labelled=len(names),
        value_names=value_names,
    )


def factors_of_run(run: Run, model: FactorialMixtureVAE) -> figures.Factors:
    """What the pictures of factors need to know of a run's model: its labels' names, its pixels' scale."""
    names = [run.label_names[i] for i in run.labelled]
    values = [run.value_names[i] for i in run.labelled] if run.value_names else []
    return factors_of(model, names, values, run.preprocessing)


def _same(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def draw(run: Run, model: Model, rows: Split, split: str) -> None:
    """Draw every figure that suits the data into the run's folder; the curves of training come there last.

    Args:
        run: the run.
        model: as trained.
        rows: data to reconstruct.
        split: what they are called.
    """
    records = [json.loads(line) for line in (run.folder / METRICS).read_text().splitlines()]
    if isinstance(model, FactorialMixtureVAE):
        drawn = _of_factors(run, model, rows, records)
    elif isinstance(model, SparseCoder):
        drawn = _of_units(run, model, rows, records)
    else:
        drawn = _of_networks(run, model, rows, records) | _of_codes(run, model, rows, split)
    folder = run.folder / FIGURES
    with TemporaryDirectory(dir=run.folder) as temporary:
        for name, figure in drawn.items():
            figures.save(figure, Path(temporary) / f"{name}.png")
        folder.mkdir(exist_ok=True)
        # This one last, so that where it is, the others are.
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.stem == TRAINING):
            path.replace(folder / path.name)


def _of_networks(
    run: Run, model: VAE | VariationalSparseCoding, rows: Split, records: list[dict[str, Any]]
) -> dict[str, Figure]:
    """Those of a model without factors, by name."""
    drawn = {TRAINING: _training(records)}
    if run.image:
        drawn["reconstructions"] = _reconstructions(run, model, rows)
        if model.bounded:  # else there is no density of z to draw from
            mean = decode(model, model.sample_latent(64))
            drawn["samples"] = figures.sample_grid(run.preprocessing.undo(mean).cpu(), 8, 8)
    return drawn


def _training(records: list[dict[str, Any]]) -> Figure:
    """Curves of a model without factors."""
    return figures.training_curves(
        [{key: value for key, value in record.items() if key not in OF_NETWORKS} for record in records]
    )


def _of_units(run: Run, model: SparseCoder, rows: Split, records: list[dict[str, Any]]) -> dict[str, Figure]:
    """Those of a model whose units are learnt by EM, by name."""
    drawn = {TRAINING: _training(records)}
    followed = [record for record in records if "objective" in record and record["phase"] == "joint"]
    if followed:
        drawn["starts"] = figures.em_curves(followed, followed[-1]["start"])
    if len(model.event_shape) == 2:
        use = model.logits.sigmoid().expand(model.latent_dim).cpu()
        drawn["dictionary"] = figures.dictionary(_units(run, model), order=use)
        drawn["reconstructions"] = _reconstructions(run, model, rows)
        drawn["samples"] = figures.sample_grid(as_pixels(run, decode(model, model.sample_latent(64))), 8, 8)
        truth = bars_truth(run.config.data)
        if truth is not None:
            true, learnt = (units.double().cpu().numpy() for units in (truth.dictionary, model.dictionary))
            drawn["recovered"] = figures.recovered_units(true, learnt, match_units(learnt, true))
    if isinstance(model, SpikeAndSlabSparseCoding):
        (x, *_), *_ = Batches(
            rows.select(torch.arange(min(DRAWN, len(rows)))), DRAWN, shuffle=False, device=model.weight.device
        )
        draws = model.gibbs(x, DRAWS).flatten(0, 1).cpu()
        prior = model.logits.sigmoid(), model.loc, (0.5 * model.log_variance).exp()
        drawn["causes"] = figures.slab_histogram(draws, *(part.cpu() for part in prior))
    return drawn


def _units(run: Run, model: SparseCoder) -> Tensor:
    """What each unit shows, [H, h, w]; of patches that are split into on and off, the difference."""
    units, patches = model.dictionary.cpu(), run.preprocessing.patches
    return units if patches is None else patches.join(units)


def as_pixels(run: Run, x: Tensor) -> Tensor:
    """What the model gives as pixels in [0, 1]; real numbers from the least to the greatest of them."""
    x = run.preprocessing.undo(x).cpu()
    if run.preprocessing.kind is not Kind.REAL:
        return x
    known = x[~x.isnan()]
    low, high = known.min(), known.max()
    return ((x - low) / (high - low).clamp(min=1e-12)).nan_to_num(0.5)


def _of_codes(run: Run, model: VAE | VariationalSparseCoding, rows: Split, split: str) -> dict[str, Figure]:
    """Those of latent codes: what sources they found, if those are known; of sparse ones, what they do."""
    rows = rows.select(torch.arange(min(ENCODED, len(rows))))
    device = next(model.parameters()).device
    batches = Batches(rows, ENCODING_BATCH, shuffle=False, device=device)
    codes = latent_codes(model, batches)
    drawn: dict[str, Figure] = {}
    sources = true_sources(run.config, split, len(rows))
    if sources is not None:
        blocks = dict(zip(ATTRIBUTES, FEATURES, strict=True))
        matrices = {str(run.config.model): correlation_matrix(sources, codes.double().numpy())}
        drawn["correlations"] = figures.correlation_matrices(matrices, SOURCES, blocks)
    if not isinstance(model, VariationalSparseCoding):
        return drawn
    if rows.labels is not None and (rows.labels >= 0).any():
        drawn["activity"] = _class_activity(run, codes, rows.labels)
    if not run.image:
        return drawn

    def pictured(z: Tensor) -> Tensor:
        return run.preprocessing.undo(decode(model, z.to(device))).cpu()

    (x, *_), *_ = Batches(rows.select(torch.arange(min(EXAMPLES, len(rows)))), EXAMPLES, shuffle=False)
    examples = codes[: len(x)]
    images = run.preprocessing.undo(x)
    drawn["conditional-samples"] = figures.conditional_samples(pictured, images, examples, codes)
    drawn["toggles"] = figures.spike_toggles(pictured, examples, codes)
    active = examples[(examples != 0).any(1)]
    if len(active):
        drawn["sweeps"] = figures.value_sweeps(pictured, active[:SWEPT], codes)
    return drawn


def _class_activity(run: Run, codes: Tensor, labels: Tensor) -> Figure:
    """How often each latent is on, by class: those of the first label, or presence of each of several."""
    values = codes.double().numpy()
    if labels.shape[1] == 1:
        found = activity(values, labels[:, 0].numpy())
        titles = [_value_name(run, 0, value) for value in found.classes.tolist()]
        return figures.class_activity(found.share_by_class, titles, high=1.0)
    rows, titles = [], []
    for column, name in enumerate(run.label_names):
        found = activity(values, labels[:, column].numpy())
        rows += list(found.share_by_class)
        titles += [f"{name} {_value_name(run, column, value)}" for value in found.classes.tolist()]
    return figures.class_activity(np.stack(rows), titles, high=1.0)


def _value_name(run: Run, column: int, value: int) -> str:
    """What a value of a label is called, or its number."""
    names = run.value_names[column] if run.value_names else ()
    return names[value] if names else str(value)


def _of_factors(
    run: Run, model: FactorialMixtureVAE, rows: Split, records: list[dict[str, Any]]
) -> dict[str, Figure]:
    """Those of a model with factors, by name."""
    factors = factors_of_run(run, model)
    drawn = {TRAINING: figures.training_curves(records, factors.names)}
    if run.image:
        drawn["factors"] = figures.attribute_rows(factors)
        drawn["components"] = figures.component_grid(factors)
        drawn["reconstructions"] = _reconstructions(run, model, rows)
        samples = factors.decode_all(model.sample_latent(64))
        drawn["samples"] = figures.sample_grid(samples, 8, 8)
        drawn["spread"] = figures.spread(factors)
        if factors.labelled and default_choice(factors):
            drawn["attributes"] = figures.attribute_grid(factors)
    elif run.preprocessing.event_shape[0] <= MOST_COLUMNS:
        numbered = [f"column {number + 1}" for number in range(run.preprocessing.event_shape[0])]
        columns = run.preprocessing.column_names or numbered
        unit = "standardised value" if run.preprocessing.kind is Kind.TABLE else "probability"
        drawn["columns"] = figures.column_means(factors, columns, unit)
    return drawn


def _reconstructions(run: Run, model: Model, rows: Split) -> Figure:
    """Images beside what becomes of them."""
    examples = rows.select(torch.arange(min(RECONSTRUCTED, len(rows))))
    device = next(model.parameters()).device
    ((x, *_),) = Batches(examples, len(examples), shuffle=False, device=device)
    pairs = as_pixels(run, torch.stack([x, decode(model, latent_code(model, x))]))
    return figures.reconstructions(*pairs)
