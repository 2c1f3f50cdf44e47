"""A finished run in Python: arrays in, arrays out, in the units and with the names of the run's data."""

import base64
from collections.abc import Callable
from functools import cached_property
from html import escape
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from pyro_fmvae.app.runs.by_batches import (
    COMPARED,
    Given,
    decode_rows,
    draw_rows,
    encode_rows,
    given_rows,
    in_order,
    joined,
    map_rows,
    naming_far_rows,
    scored_parts,
)
from pyro_fmvae.app.runs.closing_table import lines
from pyro_fmvae.app.runs.factor_names import Settings, codes_to_draw, components_of, values_of
from pyro_fmvae.app.runs.pages.evidence import Evidence
from pyro_fmvae.app.runs.pages.measure_tables import terms_of
from pyro_fmvae.app.runs.run import FIGURES, Run
from pyro_fmvae.app.runs.search import Index
from pyro_fmvae.data import Split
from pyro_fmvae.data.count_table import CountTable
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.evaluate import NEAREST, Neighbours, differential_expression, edit, with_new_batch
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.learn.options import count, nonnegative

# Models on a hub: a repository with the exported model and its card. It needs huggingface_hub.

MODEL: Final = "model.fmvae"
CARD: Final = "README.md"


def push(run: Run, model: Any, repository: str, private: bool, token: str | None) -> str:
    """Upload a run's model and card to a repository, which is made if there is none.

    Args:
        run, model: the run, and its model.
        repository: such as ``user/faces``.
        private: keep a new repository private.
        token: of the account; None: that of ``hf auth login``.

    Returns:
        The address of the commit.

    Raises:
        ValueError: huggingface_hub is not installed.
    """
    _check_installed()
    from huggingface_hub import HfApi

    from pyro_fmvae.app.runs.export import export

    hub = HfApi(token=token)
    with TemporaryDirectory() as folder:
        for name in (MODEL, CARD):
            export(run, model, Path(folder, name))
        hub.create_repo(repository, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"pyro_fmvae: {run.recipe.title}"
        )
    return str(commit.commit_url)


def fetch(name: str | Path, revision: str | None, token: str | None) -> Path:
    """The model file of a local folder, or of a repository, which is downloaded once.

    Args:
        name: the folder, or the repository, such as ``user/faces``.
        revision: of the repository: branch, tag or commit.
        token: of the account.

    Raises:
        FileNotFoundError: the folder holds no exported model.
        ValueError: huggingface_hub is not installed.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / MODEL).is_file():
            raise FileNotFoundError(f"{folder}: no exported model ({MODEL}) there")
        return folder / MODEL
    _check_installed()
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(str(name), MODEL, revision=revision, token=token))


def _check_installed() -> None:
    if find_spec("huggingface_hub") is None:
        raise ValueError("name: a hub needs huggingface_hub: pip install 'pyro_fmvae[hub]'")


# A run as a notebook shows it.

PICTURES: Final = ("factors", "dictionary", "reconstructions", "columns", "training")
"""Figures that stand for a run: the first of them that it has."""


def card(run: Run) -> str:
    """HTML of a run: its validation measures, its closing table, and one of its figures, embedded.

    Args:
        run: the run; records or figures that it lacks are left out.
    """
    evidence = Evidence.of(run)
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in _measures(evidence).items()
    )
    html = f"<p><b>{escape(str(run.folder))}</b></p><table>{rows}</table>"
    if evidence.report:
        html += f"<pre>{escape(chr(10).join(lines(evidence.report)))}</pre>"
    figures = (run.folder / FIGURES / f"{name}.png" for name in PICTURES)
    figure = next((path for path in figures if path.is_file()), None)
    if figure is None:
        return html
    content = base64.b64encode(figure.read_bytes()).decode("ascii")
    return f"{html}<img alt='{figure.stem}' src='data:image/png;base64,{content}'>"


def _measures(evidence: Evidence) -> dict[str, str]:
    """Model, data and the record of the model that was kept, or the last one, as text."""
    run, record = evidence.run, evidence.closing
    data = f"{Path(run.config.data).name}, {run.recipe.num_data:,} training points"
    described = {"model": run.recipe.title, "data": data}
    if record:
        described["step"] = f"{record['step']:,}, in phase {record['phase']}"
        terms = {f"validation {term}": record[term] for term in terms_of(evidence)}
        described |= {term: f"{value:.2f} nats per point" for term, value in terms.items()}
    used = {name: f"{number} of {size} components in use" for name, (number, size) in evidence.used.items()}
    return described | used


class TrainedRun:
    """A run with its model in memory. :func:`~pyro_fmvae.load` makes one.

    Arrays of data are [n, H, W], [n, H, W, 3] or [n, D], as in a ``.npz`` file: pictures as uint8, or as
    floats in [0, 1]; binary pixels as bool or as 0 and 1; tables in the units of their columns, which a data
    frame names, with the words of the training data. Sparse matrices of SciPy become dense. All are
    preprocessed as in the training. Whatever the number of rows, the model sees 500 at once, so that memory
    grows only with the data and the results. In place of an array, a path stands for the data of a file, or
    for the pictures of a folder, which are cropped and resized as in the training and come sorted by name.

    What the model decodes has the same units: means of pixels in [0, 1], or means of columns. The model is
    never changed, and neither are the states of random generators.

    Args:
        run: the run.
        device: where to compute.

    Raises:
        FileNotFoundError, ValueError: the run has no checkpoint, or it is damaged.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self.run, self.device = run, device
        self.model = run.load_model(device)

    # ------------------------------------------------------------------ codes

    def encode(self, array: Given) -> dict[str, np.ndarray]:
        """Encode data.

        Args:
            array: n observations.

        Returns:
            The arrays that the command ``encode`` writes, by name, each [n, ...]: ``mean`` of q(z | x), which
            :meth:`decode` takes; of a factorial model also ``codes`` and ``responsibilities_0``, ....

        Raises:
            ValueError: data of another shape, kind or range than the run's, or without a finite bound.
        """
        rows = self.rows(array)
        with self._naming(rows):
            return encode_rows(self.model, in_order(rows, self.device))

    def decode(self, z: ArrayLike) -> np.ndarray:
        """Decode latent vectors.

        Args:
            z: finite numbers [n, J], such as the ``mean`` of :meth:`encode`.

        Returns:
            E[x | z] in the data's units, ``[n, *event_shape]``: pixels in [0, 1], columns in float64.

        Raises:
            ValueError: another shape, or numbers that are not finite.
        """
        values, width = np.asarray(z), self.model.latent_dim
        if values.ndim != 2 or not len(values) or values.shape[1] != width or values.dtype.kind not in "buif":
            raise ValueError(f"z: expected numbers [n, {width}], got {values.dtype} {list(values.shape)}")
        if not np.isfinite(values).all():
            raise ValueError("z: expected finite numbers, got NaN or infinity")
        latent = torch.from_numpy(values.astype(np.float32)).to(self.device)
        return in_units(self.run.recipe.preprocessing, decode_rows(self.model, latent))

    def predict(self, array: Given) -> dict[str, np.ndarray]:
        """Predict the labels that the run was trained on.

        Labels that the networks have not learnt are predicted without them, as the closing table says.

        Args:
            array: n observations.

        Returns:
            Property → its most probable value for each observation, [n]: names, or integers where the values
            of the training data had no names.

        Raises:
            ValueError: a run without labels, or bad data: see :meth:`encode`.
        """
        run = self.run
        if not run.recipe.labelled:
            raise ValueError(f"run: predict needs labels, {run.folder} was trained without; see encode")
        codes = self._map(self.rows(array), self.model.predicted_codes).numpy()
        return {
            run.recipe.label_names[factor]: values_of(factor, codes[:, factor], run)
            for factor in run.recipe.labelled
        }

    # ------------------------------------------------------------------ generation

    def sample(
        self, n: int, codes: Settings | ArrayLike | None = None, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """Draw from the model.

        Args:
            n: number of draws.
            codes: properties to hold, such as ``{"eyes": "sunglasses", 3: 1}``; or component of each factor,
                integers [I] or [n, I], -1 where it is to be drawn. None draws everything.
            seed: of the draws.

        Returns:
            The arrays that the command ``sample`` writes: ``x`` in the data's units, ``[n, *event_shape]``;
            ``z`` [n, J], and of a factorial model ``codes`` [n, I].

        Raises:
            ValueError: a number out of range, an unknown property or value, codes of a model without factors,
                or a model without a density of z.
        """
        count(1)("n", n)
        count(0)("seed", seed)
        if codes is not None:
            self.run.recipe.check_factors("codes", "choosing them")
        mean, arrays = draw_rows(self.run.recipe, self.model, codes_to_draw(n, codes, self.run), seed)
        return {"x": in_units(self.run.recipe.preprocessing, mean), **arrays}

    def edit(self, array: Given, settings: Settings | None = None, /, **properties: str | int) -> np.ndarray:
        """Change properties of data: encode, give some factors other components, decode.

        The other factors keep their latent variables.

        Args:
            array: n observations.
            settings: property → value, for what cannot be a keyword: ``{"hair colour": "red", 3: 1}``.
            **properties: the same by keyword, such as ``eyes="sunglasses"``.

        Returns:
            The edited data, ``[n, *event_shape]``: of greys and colours in uint8 or in files, uint8; else as
            :meth:`decode`.

        Raises:
            ValueError: a model without factors, an unknown property or value, one given twice, or bad data:
                see :meth:`encode`.
        """
        self.run.recipe.check_factors("run", "edit")
        changes = components_of("settings", [*(settings or {}).items(), *properties.items()], self.run)
        if not changes:
            raise ValueError("settings: expected a property to change, such as eyes=1, got none")
        changed = self._map(self.rows(array), lambda x: edit(self.model, x, changes))
        read = isinstance(array, str | PathLike)
        if (read or np.asarray(array).dtype == np.uint8) and self.run.recipe.preprocessing.signed:
            return to_uint8(self.run.recipe.preprocessing.undo(changed))
        return in_units(self.run.recipe.preprocessing, changed)

    # ------------------------------------------------------------------ outliers

    def score(self, array: Given, num_samples: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
        """Score how little the model expects each observation: the higher, the more outlying.

        Args:
            array: n observations.
            num_samples: draws of z per observation.
            seed: of the draws.

        Returns:
            The scores that the command ``score`` writes, by name, each float64 [n]; inf where there is no
            finite number. See :func:`pyro_fmvae.evaluate.outlier_scores`, and for ``nearest``
            :class:`pyro_fmvae.evaluate.Neighbours`; this one is left out where the training data are not what
            and where they were.

        Raises:
            ValueError: a number out of range, or data of another shape, kind or range than the run's.
        """
        count(1)("num_samples", num_samples)
        count(0)("seed", seed)
        rows = self.rows(array)
        scores = joined(scored_parts(self.run.recipe, self.model, rows, self.device, num_samples, seed))
        if self._neighbours is not None:
            scores[NEAREST] = self._neighbours.distances(in_order(rows, self.device))
        return scores

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        """The first training points; None if the model has no such score or their data are not there."""
        if not (self.run.recipe.gaussian_codes and self.model.bounded):
            return None
        try:
            train = self.run.load_data().train
        except (FileNotFoundError, ValueError):
            return None
        return Neighbours(self.model, in_order(train, self.device, COMPARED))

    # ------------------------------------------------------------------ search

    def index(self, array: Given, by: str = "mean", quantised: bool = False) -> Index:
        """Make data searchable: ``run.index(array).search(others, n=10)``.

        Args:
            array: n observations.
            by: ``mean``, ``code`` or ``density``, whose meanings :class:`~pyro_fmvae.app.runs.search.Index`
                has.
            quantised: of ``mean`` keep about a byte per two dimensions, for millions of points.

        Raises:
            ValueError: a measure that the model lacks, too few data to quantise, or bad data: see
                :meth:`encode`.
        """
        return Index(self.run.recipe, self.model, self.rows(array), self.device, by, quantised)

    # ------------------------------------------------------------------ cells

    def map_query(self, counts: Given, iterations: int = 300, seed: int = 0) -> dict[str, np.ndarray]:
        """Encode cells of one new batch, beside those of the training.

        The weights by which the networks know the new batch are learnt from its cells; all others stay, so
        that cells of other batches have the codes that they had. Cells of a known batch need :meth:`encode`.

        Args:
            counts: n cells of the new batch, [n, D], as for :meth:`encode` but without the batch's column.
            iterations: steps on at most 200 cells each.
            seed: of the steps.

        Returns:
            What :meth:`encode` returns.

        Raises:
            ValueError: a run without batches or an encoder, a number out of range, or bad data: see
                :meth:`encode`.
        """
        count(0)("iterations", iterations)
        count(0)("seed", seed)
        batches = len(self._counts("map_query").batches)
        if not batches:
            raise ValueError(f"run: map_query needs batches, {self.run.folder} has none; see encode")
        if self.run.recipe.indexed:
            raise ValueError(
                f"run: map_query needs an encoder, posterior 'free' of {self.run.folder} has none"
            )
        given = given_rows(self.run.recipe.preprocessing.decoded, counts, source="counts").observations
        new = pad(given, (0, 1), value=batches)
        model = with_new_batch(self.model, new.to(self.device), iterations, seed)
        return encode_rows(model, in_order(Split(new), self.device))

    def differential_expression(
        self,
        first: Given,
        second: Given,
        delta: float = 0.25,
        num_samples: int = 5000,
        offset: float = 0.1,
        seed: int = 0,
    ) -> dict[str, np.ndarray]:
        """How the expression of each gene differs between two groups of cells.

        Fold changes are those of pairs of cells, one of each group, at draws of z. Totals and batches do not
        count: expression is what is expected of a cell of typical total, averaged over the batches.

        Args:
            first, second: cells of both groups, as for :meth:`encode`.
            delta: size of a fold change that matters, in log2.
            num_samples: pairs.
            offset: counts that are added to both, so that genes with hardly any do not differ.
            seed: of the pairs and draws.

        Returns:
            For each of D genes, float64: ``lfc``, the posterior mean of the log2 fold change from the second
            group to the first; ``lfc_std``, its standard deviation; and ``probability`` that it is beyond
            delta in size.

        Raises:
            ValueError: a run of other data than counts, a number out of range, or bad data: see
                :meth:`encode`.
        """
        count(2)("num_samples", num_samples)
        count(0)("seed", seed)
        nonnegative("delta", delta)
        nonnegative("offset", offset)
        self._counts("differential_expression")
        one, other = (
            self.rows(part, name).observations.to(self.device)
            for name, part in (("first", first), ("second", second))
        )
        return differential_expression(self.model, one, other, delta, num_samples, offset, seed)._asdict()

    def _counts(self, method: str) -> CountTable:
        counts = self.run.recipe.preprocessing.counts
        if counts is None:
            raise ValueError(f"run: {method} needs a likelihood of counts, {self.run.folder} has none")
        return counts

    # ------------------------------------------------------------------ to take along

    def export(self, path: str | Path) -> None:
        """Write the run to one file, in one step.

        Args:
            path: ``model.fmvae``, with everything that :func:`~pyro_fmvae.load` and the commands need, but
                without data and paths; ``card.md``, a text about it; ``encoder.onnx`` or ``encoder.pt2``, the
                encoder with its responsibilities, for programs without this library.

        Raises:
            ValueError: another ending; of an encoder also a model or data without one that can stand alone.
        """
        from pyro_fmvae.app.runs.export import export

        export(self.run, self.model, Path(path))

    def push_to_hub(self, name: str, private: bool = True, token: str | None = None) -> str:
        """Upload the model and its card to the Hugging Face hub, for :func:`~pyro_fmvae.from_pretrained`.

        Args:
            name: of the repository, such as ``user/faces``; it is made if there is none.
            private: keep a new repository private.
            token: of the account; None: that of ``hf auth login``.

        Returns:
            The address of the commit.

        Raises:
            ValueError: huggingface_hub is not installed.
        """
        return push(self.run, self.model, name, private, token)

    # ------------------------------------------------------------------ in a notebook

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.run.folder)!r}: {self.run.recipe.title}, {self.run.config.data})"

    def _repr_html_(self) -> str:
        """The last measures on validation data, the closing table of the training, and one figure."""
        return card(self.run)

    # ------------------------------------------------------------------ what goes in and out

    def rows(self, array: Given, source: str = "array") -> Split:
        """Preprocess data as in the training: see :func:`~pyro_fmvae.app.runs.by_batches.given_rows`."""
        return given_rows(self.run.recipe.preprocessing, array, source=source)

    def _map(self, rows: Split, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the model's inputs, batch by batch: [n, ...] on the CPU."""
        with self._naming(rows):
            return map_rows(function, in_order(rows, self.device))

    def _naming(self, rows: Split) -> Any:
        return naming_far_rows(self.model, rows, self.device, argument="array")


# Opening a finished run for use in Python: from its folder, from a file, or from a hub of models.


def load(folder: str | Path, device: str | torch.device = "auto") -> TrainedRun:
    """Load a run for use in Python.

    Args:
        folder: the run's folder, such as ``runs/photos-001``, or an exported ``model.fmvae``.
        device: where to compute; ``auto`` is a GPU where there is one.

    Returns:
        The run with its best model; of an interrupted one, with its model as it was at the last checkpoint.

    Raises:
        FileNotFoundError: the run has no checkpoint.
        ValueError: the folder is no run, it is damaged, or there is no such device.
    """
    return TrainedRun(Run.open(Path(folder)), resolve_device(str(device)))


def from_pretrained(
    name: str | Path,
    device: str | torch.device = "auto",
    revision: str | None = None,
    token: str | None = None,
) -> TrainedRun:
    """Load a model that :meth:`TrainedRun.push_to_hub` uploaded. It needs huggingface_hub, and no pickle.

    Args:
        name: repository, such as ``user/faces``; or a folder on this machine that holds ``model.fmvae``.
        device: where to compute; ``auto`` is a GPU where there is one.
        revision: branch, tag or commit; None: the newest.
        token: of an account that may read the repository; None: that of ``hf auth login``.

    Raises:
        FileNotFoundError: the folder holds no exported model.
        ValueError: huggingface_hub is not installed, or the file is damaged.
    """
    return load(fetch(name, revision, token), device)
