"""Runs of estimators, which learn the states of sequences and the topics of texts: folder, measures, page."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from matplotlib.figure import Figure

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.registry import configure, find_texts, titles
from pyro_fmvae.app.recipes.settings import table_options, with_columns
from pyro_fmvae.app.runs.closing_table import REPORT, undamaged
from pyro_fmvae.app.runs.pages import PAGE, markup
from pyro_fmvae.app.runs.run import CONFIG, DERIVED, FIGURES, check_new, new_folder, read_values
from pyro_fmvae.data.column_plan import date_texts, plan_from_json, plan_to_json
from pyro_fmvae.data.own.files import read
from pyro_fmvae.data.own.raw import Raw, warn_unseen
from pyro_fmvae.data.splitting import fingerprint
from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.memory import check_fits
from pyro_fmvae.files.untrusted import read_json
from pyro_fmvae.learn.options import (
    ESTIMATORS,
    SEQUENCES,
    SHARE,
    TOPICS,
    EstimatorOptions,
    SequenceOptions,
    TopicOptions,
)
from pyro_fmvae.sklearn import HiddenMarkovModel, TopicModel
from pyro_fmvae.sklearn.topic_model import WORDS

STATE: Final = "estimator.safetensors"
PICTURE: Final = "states-or-topics.png"
STATES, CHANCES = "state", "probability"  # that encode writes of sequences
KEPT, ALL = "kept for testing", "all"
SMALL_COUNTS: Final = 30
"""Mean below which whole numbers are Poisson counts: above it, a Gaussian does as well, and may be wider."""
WIDEST_FULL: Final = 60
"""Most columns of numbers that have full covariances."""
FEW_TEXTS: Final = 20
"""Texts from which on words are left out that hardly any or most of them have."""
STEPS_SHOWN, SERIES_SHOWN, COLUMNS_SHOWN = 400, 3, 4
TOP_WORDS: Final = 10
_BYTES: Final = 20  # of memory for a byte of text: its words are objects
COLOURS: Final = ("#dfe7f0", "#f3dcae", "#e9a59a", "#cfe3cf", "#ddd0ea", "#f0f0c8", "#cde4ea", "#eed6c4")


class EstimatorRun(ABC):
    """A run of an estimator.

    Args:
        config: options; data has a full path.
        known: what the data gave, as JSON has it; none before they were read.

    Attributes:
        estimator: as fitted.
    """

    name: ClassVar[str]
    """As given to ``--model``."""
    estimator: Any

    def __init__(self, config: Any, known: dict[str, Any]) -> None:
        self.config, self.known = config, known

    @property
    def number(self) -> int | None:
        """The number of states or topics that is asked for."""
        found: int | None = self.config.factors[0] if self.config.factors else None
        return found

    @property
    def test(self) -> float:
        """Share of the data that is kept for testing."""
        return SHARE if self.config.test is None else float(self.config.test)

    @abstractmethod
    def read(self, path: Path) -> Any:
        """Data of a file or folder; the first time, what is known of them is found out.

        Raises:
            FileNotFoundError, ValueError: there are none, or they do not fit the run.
        """

    @property
    @abstractmethod
    def said(self) -> str:
        """A line on how the data were understood."""

    @abstractmethod
    def make(self) -> Any:
        """The estimator of what is known, not fitted."""

    @abstractmethod
    def learn(self, data: Any) -> None:
        """Fit :attr:`estimator` to what is not kept for testing."""

    @abstractmethod
    def measures(self, data: Any, own: bool) -> dict[str, Any]:
        """Measures of the data; of the run's own, those of what was kept for testing."""

    @abstractmethod
    def codes(self, data: Any) -> dict[str, np.ndarray]:
        """Arrays that ``encode`` writes, [n] or [n, K], in the order of the file or of the names of files."""

    @abstractmethod
    def tables(self, data: Any) -> dict[str, list[list[str]]]:
        """Tables of the page by title; the first row of each is its head."""

    @abstractmethod
    def draw(self, data: Any) -> Figure:
        """The picture of the page."""

    def load(self, data: str | None) -> tuple[Any, bool]:
        """The data of a command, and whether they are those of the training.

        Raises:
            ValueError: those of the training have changed.
        """
        if data is not None:
            return self.read(Path(data)), False
        found, before = self.read(Path(self.config.data)), self.known["fingerprint"]
        if before != self.known["read"]:
            raise ValueError(
                f"data: {self.config.data} has changed since this run was started; train again, or pass "
                "the new data with --data"
            )
        return found, True

    def write(self, folder: Path, report: dict[str, Any], picture: Figure) -> None:
        """Write everything into the folder of the run, the page last.

        Args:
            folder: empty.
            report: measures and tables.
            picture: see :meth:`draw`.
        """
        path = Path(self.config.data)
        known = {name: value for name, value in self.known.items() if name != "read"}
        config = self.config.to_dict() | {"data": _relative(path, folder), DERIVED: known}
        checkpoint.save_file(folder / STATE, self.estimator.state())
        for name, content in ((CONFIG, config), (REPORT, report)):
            text = json.dumps(content, indent=1) + "\n"
            checkpoint.write_atomically(folder / name, partial(Path.write_text, data=text))
        (folder / FIGURES).mkdir()
        figures.save(picture, folder / FIGURES / PICTURE)
        write_page(folder, folder / PAGE)


class SequenceRun(EstimatorRun):
    """States of the rows of a table in time."""

    name = SEQUENCES
    config: SequenceOptions

    def read(self, path: Path) -> "TimedRows":
        config, unseen = self.config, dict[str, Counter[str]]()
        for option, name in (("time", config.time), ("series", config.series)):
            if name in (STATES, CHANCES):
                raise ValueError(
                    f"{option}: expected a name other than {STATES!r} and {CHANCES!r}, which encode writes, "
                    f"got {name!r}; rename the column"
                )
        asked = replace(table_options(config), labels=(config.series,) if config.series else ())
        plan = plan_from_json(self.known.get("plan", ()))
        raw = read(path, True, asked, plan, unseen=unseen)
        warn_unseen(unseen, str(path))
        series = np.zeros(len(raw.x), dtype=np.int64)
        names = np.array([""])
        if config.series is not None:
            if raw.labels is None or config.series not in raw.label_names:
                raise ValueError(f"series: expected a column of {path}, got {config.series!r}")
            place = raw.label_names.index(config.series)
            series, words = raw.labels[:, place], raw.value_names[place] if raw.value_names else ()
            if (series < 0).any():
                row = int((series < 0).argmax())
                raise ValueError(f"{path}, row {row + 1}: expected a value in {config.series!r}, got none")
            values, series = np.unique(series, return_inverse=True)
            names = np.array([words[value] if words else str(value) for value in values])
        times, shown = self._times(raw, path)
        order = np.lexsort((times, series))
        same = (np.diff(times[order]) == 0) & (np.diff(series[order]) == 0)
        if same.any():
            print(
                f"time: {same.sum():,} rows have the time of another row of their sequence, and stay in the "
                "order of the file; --series names the sequences",
                file=sys.stderr,
            )
        if not self.known:
            self._describe(raw)
        columns = self.known["columns"]
        if len(raw.x[0]) <= max(columns):
            raise ValueError(f"{path}: expected the columns {', '.join(self.known['names'])}")
        x = raw.x[order][:, columns].astype(np.float64)
        self.known["read"] = fingerprint(np.column_stack([x, series[order]]))
        self.known.setdefault("fingerprint", self.known["read"])
        return TimedRows(x, np.bincount(series), names, order, shown)

    def _times(self, raw: Raw, path: Path) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers that order the rows, float64 [n], and their texts, None without a column of times."""
        name = self.config.time
        if name is None:
            return np.arange(len(raw.x), dtype=float), None
        planned = {column.name: column for column in raw.plan}
        if not planned:
            raise ValueError(
                f"time: expected a table with names of columns, got {path}, which has none; leave --time "
                "out: rows are then in order"
            )
        if name not in planned:
            raise ValueError(f"time: expected a column out of {', '.join(planned)}, got {name!r}")
        times, column = raw.x[:, raw.column_names.index(name)].astype(float), planned[name]
        if column.kind == "constant":
            raise ValueError(
                f"time: expected a column that orders the rows, got {name!r}, which is the same in all of "
                "them; take another column, or leave --time out: rows are then in order"
            )
        if column.words or np.isnan(times).any():
            row = 0 if column.words else int(np.isnan(times).argmax())
            raise ValueError(
                f"{path}, row {row + 1}: expected a number or a date in {name!r}, got neither; "
                "write dates as 2024-01-31, or leave the row out"
            )
        if column.kind == "date":
            return times, date_texts(times)
        whole = (times % 1 == 0).all() and np.abs(times).max() < 2**53
        return times, times.astype(np.int64) if whole else times

    def _describe(self, raw: Raw) -> None:
        """Find out which columns are learnt, and what each holds."""
        plan, place = raw.plan, 0
        taken = dict[int, str]()
        for column in plan:
            width = len(column.features)
            if column.name != self.config.time and not column.ignored and column.kind != "constant":
                taken |= dict.fromkeys(range(place, place + width), column.kind)
            place += width
        if not plan:
            taken = dict.fromkeys(range(raw.x.shape[1]), "number")
        if not taken:
            raise ValueError("data: expected a column to learn beside time and series, got none")
        columns, levels = list(taken), raw.levels or ((),) * raw.x.shape[1]
        categorical = [i for i, c in enumerate(columns) if levels[c] or taken[c] == "boolean"]
        counts = []
        for number, feature in enumerate(columns):
            whole = taken[feature] in ("count", "integer") and number not in categorical
            values = raw.x[:, feature]
            if whole and np.nanmin(values) >= 0 and np.nanmean(values) < SMALL_COUNTS:
                counts.append(number)
        self.known |= {
            "plan": plan_to_json(plan),
            "columns": columns,
            "names": [raw.column_names[c] if raw.column_names else f"column {c + 1}" for c in columns],
            "words": [list(levels[c]) for c in columns],
            "categorical": categorical,
            "counts": counts,
        }

    @property
    def said(self) -> str:
        known = self.known
        kinds = dict.fromkeys(known["categorical"], "category") | dict.fromkeys(known["counts"], "count")
        each = (f"{name} ({kinds.get(place, 'number')})" for place, name in enumerate(known["names"]))
        return f"columns: {', '.join(each)}"

    def make(self) -> HiddenMarkovModel:
        known = self.known
        numbers = len(known["columns"]) - len(known["categorical"]) - len(known["counts"])
        return HiddenMarkovModel(
            self.number or "auto",
            covariance_type="full" if numbers <= WIDEST_FULL else "diag",
            categorical_features=known["categorical"] or None,
            count_features=known["counts"] or None,
            random_state=self.config.seed,
            device=self.config.device,
        )

    def learn(self, data: "TimedRows") -> None:
        first = data.before(self.test)
        self.estimator = self.make().fit(first.x, lengths=first.lengths)

    def measures(self, data: "TimedRows", own: bool) -> dict[str, Any]:
        total, number = self.estimator.score(data.x, lengths=data.lengths), len(data.x)
        first = data.before(self.test if own else 0.0)
        if len(first.x) < number:
            total -= self.estimator.score(first.x, lengths=first.lengths)
            number -= len(first.x)
        return {
            "states": self.estimator.n_components_,
            "sequences": len(data.lengths),
            "part": KEPT if number < len(data.x) else ALL,
            "n": number,
            "log_likelihood": total / number,
        }

    def codes(self, data: "TimedRows") -> dict[str, np.ndarray]:
        model, back = self.estimator, np.argsort(data.places)
        found = {} if data.times is None else {str(self.config.time): data.times}
        if self.config.series is not None:
            found[self.config.series] = np.repeat(data.names, data.lengths)[back]
        found[STATES] = model.predict(data.x, lengths=data.lengths)[back]
        found[CHANCES] = model.predict_proba(data.x, lengths=data.lengths)[back]
        return found

    def tables(self, data: "TimedRows") -> dict[str, list[list[str]]]:
        model, names = self.estimator, self.known["names"]
        shares = model.predict_proba(data.x, lengths=data.lengths).mean(0)
        means, moves = model.state_means(), model.transmat_
        states = [["state", "share of the steps", "steps that it lasts", *names]]
        for state, share in enumerate(shares):
            lasts = markup.number(1 / max(1 - moves[state, state], 1e-6), 1)
            cells = [self._mean(column, means[state, column], state) for column in range(len(names))]
            states.append([str(state), f"{100 * share:.0f} %", lasts, *cells])
        numbers = list(map(str, range(len(moves))))
        after = [["from state", *(f"to {number}" for number in numbers)]]
        after += [
            [state, *(f"{chance:.3f}" for chance in row)] for state, row in zip(numbers, moves, strict=True)
        ]
        return {"States": states, "Probabilities of the next state": after}

    def _mean(self, column: int, mean: float, state: int) -> str:
        """The mean of a column in a state, or its most probable word."""
        if column not in self.known["categorical"]:
            return f"{mean:.4g}"
        probabilities = self.estimator.probabilities_[column][state]
        most, words = int(probabilities.argmax()), self.known["words"][column]
        return f"{words[most] if most < len(words) else most} ({100 * probabilities[most]:.0f} %)"

    def draw(self, data: "TimedRows") -> Figure:
        """The columns of the first series over the colours of their states."""
        names, path = self.known["names"], self.estimator.predict(data.x, lengths=data.lengths)
        shown = [c for c in range(len(names)) if c not in self.known["categorical"]] or list(
            range(len(names))
        )
        series, columns = min(len(data.lengths), SERIES_SHOWN), shown[:COLUMNS_SHOWN]
        figure = Figure(figsize=(3.2 + 4.0 * series, 0.6 + 1.5 * len(columns)), layout="constrained")
        grid = figure.subplots(len(columns), series, squeeze=False, sharex="col")
        ends = np.cumsum(data.lengths)
        for number, end in enumerate(ends[:series]):
            steps = slice(max(end - data.lengths[number], end - STEPS_SHOWN), end)
            first = data.lengths[number] - (steps.stop - steps.start)
            place = first + np.arange(steps.stop - steps.start)
            for axes, column in zip(grid[:, number], columns, strict=True):
                for state in range(self.estimator.n_components_):
                    where = (path[steps] == state).repeat(2)
                    edges = place.repeat(2) + np.tile([-0.5, 0.5], len(place))
                    colour, across = COLOURS[state % len(COLOURS)], axes.get_xaxis_transform()
                    axes.fill_between(edges, 0, 1, where, color=colour, lw=0, transform=across)
                axes.plot(place, data.x[steps, column], ".-", color="0.2", lw=0.8, ms=3)
                axes.set_xlim(place[0] - 0.5, place[-1] + 0.5)
                axes.set_ylabel(names[column] if number == 0 else "")
            grid[0, number].set_title(data.names[number], fontsize=10)
            grid[-1, number].set_xlabel("step")
        return figure


class TimedRows:
    """Rows of a table, one sequence after the other.

    Attributes:
        x: float64 [n, D].
        lengths: of the sequences, int64 [B].
        names: of the sequences, [B].
        places: where the rows stand in the file, int64 [n].
        times: of the rows of the file, as they are written, [n]; None without a column of times.
    """

    def __init__(
        self,
        x: np.ndarray,
        lengths: np.ndarray,
        names: np.ndarray,
        places: np.ndarray,
        times: np.ndarray | None,
    ) -> None:
        self.x, self.lengths, self.names, self.places, self.times = x, lengths, names, places, times

    def before(self, share: float) -> "TimedRows":
        """Each sequence without so large a share of steps at its end, and at least its first step."""
        lengths = np.maximum(self.lengths - np.round(share * self.lengths).astype(int), 1)
        steps = np.concatenate([np.arange(size) for size in self.lengths])
        first = steps < np.repeat(lengths, self.lengths)
        return TimedRows(self.x[first], lengths, self.names, self.places[first], None)


class TextRun(EstimatorRun):
    """Topics of the texts in a folder."""

    name = TOPICS

    def read(self, path: Path) -> "Texts":
        names = find_texts(path)
        if not names:
            raise ValueError(f"data: expected a folder of .txt files alone, got {path}")
        sizes = sum((path / name).stat().st_size for name in names)
        check_fits(_BYTES * sizes, str(path))
        texts = [_decoded((path / name).read_bytes()) for name in names]
        whole = json.dumps([names, texts]).encode()
        self.known["read"] = fingerprint(np.frombuffer(whole, dtype=np.uint8))
        if "fingerprint" not in self.known:
            order = np.random.default_rng(self.config.seed).permutation(len(names))
            tested = order[: round(self.test * len(names))]
            self.known |= {"fingerprint": self.known["read"], "tested": sorted(names[row] for row in tested)}
        return Texts(np.array(names), [WORDS.findall(text.lower()) for text in texts])

    @property
    def said(self) -> str:
        return f"{len(self.known['tested']):,} texts are kept for testing"

    def make(self) -> TopicModel:
        return TopicModel(self.number or TopicModel().n_components, random_state=self.config.seed)

    def learn(self, data: "Texts") -> None:
        """See :meth:`EstimatorRun.learn`; words that hardly any or most texts have are left out."""
        texts = data.select(~np.isin(data.names, self.known["tested"])).words
        often = Counter(word for text in texts for word in {*text})
        least, most = (2, len(texts) / 2) if len(texts) >= FEW_TEXTS else (1, len(texts))
        taken = {word for word, count in often.items() if least <= count <= most}
        if not taken:
            raise ValueError("data: expected words that several texts have, but not all of them; got none")
        self.estimator = self.make().fit([[word for word in text if word in taken] for text in texts])

    def measures(self, data: "Texts", own: bool) -> dict[str, Any]:
        tested = np.isin(data.names, self.known["tested"]) if own and self.known["tested"] else None
        rows = data if tested is None else data.select(tested)
        model, vocabulary = self.estimator, set(self.estimator.vocabulary_)
        words = sum(word in vocabulary for text in rows.words for word in text)
        return {
            "topics": len(model.components_),
            "part": ALL if tested is None else KEPT,
            "n": len(rows.names),
            "words": words,
            "perplexity": model.perplexity(rows.words) if words else None,
            "npmi": float(self._coherence(data).mean()),
        }

    def _coherence(self, data: "Texts") -> np.ndarray:
        found: np.ndarray = self.estimator.coherence(data.words, TOP_WORDS)
        return found

    def codes(self, data: "Texts") -> dict[str, np.ndarray]:
        shares = self.estimator.transform(data.words)
        return {"text": data.names, "topic": shares.argmax(1), "share": shares}

    def tables(self, data: "Texts") -> dict[str, list[list[str]]]:
        shares, coherence = self._shares(data), self._coherence(data)
        rows = [["topic", "share of the words", "NPMI", "most probable words"]]
        for topic, words in enumerate(self.estimator.top_words(TOP_WORDS)):
            cells = f"{100 * shares[topic]:.1f} %", markup.number(coherence[topic], 2), ", ".join(words)
            rows.append([str(topic), *cells])
        return {"Topics": rows}

    def _shares(self, data: "Texts") -> np.ndarray:
        """Share of the words that each topic has, [K]."""
        vocabulary = set(self.estimator.vocabulary_)
        sizes = np.array([sum(word in vocabulary for word in text) for text in data.words])
        found: np.ndarray = sizes @ self.estimator.transform(data.words) / max(sizes.sum(), 1)
        return found

    def draw(self, data: "Texts") -> Figure:
        """The share of each topic beside its first words."""
        shares, words = self._shares(data), self.estimator.top_words(5)
        order = np.argsort(shares)
        figure = Figure(figsize=(7.0, 0.8 + 0.28 * len(order)), layout="constrained")
        axes = figure.subplots()
        axes.barh(np.arange(len(order)), 100 * shares[order], color="#7d9cc0")
        axes.set_yticks(np.arange(len(order)), [f"{', '.join(words[k])}  ({k})" for k in order], fontsize=8)
        axes.set_xlabel("share of the words, %")
        return figure


class Texts:
    """The words of texts, with the names of their files."""

    def __init__(self, names: np.ndarray, words: list[list[str]]) -> None:
        self.names, self.words = names, words

    def select(self, chosen: np.ndarray) -> "Texts":
        """Some of the texts, by bools [n]."""
        return Texts(
            self.names[chosen], [text for text, there in zip(self.words, chosen, strict=True) if there]
        )


RUNS: Final[Mapping[type[EstimatorOptions], type[EstimatorRun]]] = {
    SequenceOptions: SequenceRun,
    TopicOptions: TextRun,
}


def train(config: EstimatorOptions, out: str | None) -> int:
    """Learn, measure what was kept for testing, and write the run.

    Args:
        config: options as given.
        out: folder of the run, which must not exist; None: a new one in ``runs/``.

    Returns:
        The exit status.

    Raises:
        FileNotFoundError, ValueError: bad data or options.
    """
    if out is not None:
        check_new(out)
    path = Path(config.data).resolve()
    run = RUNS[type(config)](replace(with_columns(config, {}), data=str(path)), {})
    data = run.read(path)
    print(run.said)
    run.learn(data)
    measures = run.measures(data, True)
    report, picture = {"measures": measures, "tables": run.tables(data)}, run.draw(data)
    folder = new_folder(Path(out) if out else Path("runs") / path.stem, not out)
    run.write(folder, report, picture)
    if measures["part"] == ALL:
        print("no data are held out: the measures are those of the training data", file=sys.stderr)
    print(", ".join(f"{name} {_text(value)}" for name, value in measures.items()))
    print(f"report in {folder / PAGE}, everything else in {folder}")
    return 0


def opened(folder: str | Path, device: str = "auto") -> EstimatorRun | None:
    """The run of an estimator in a folder, on a device; None if the folder holds another run, or none at all.

    Raises:
        FileNotFoundError, ValueError: a file of it is missing or damaged.
    """
    place = Path(folder)
    if not (place / CONFIG).is_file():
        return None
    values = read_values(place)
    if not isinstance(values, dict) or values.get("model") not in [*ESTIMATORS]:
        return None
    with undamaged(place):
        model, known = values["model"], dict(values[DERIVED])
        names = {one.name for one in fields(ESTIMATORS[model])}
        listed = {name: value for name, value in values.items() if name in names}
        given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in listed.items()}
        if "device" in ESTIMATORS[model].used:
            given["device"] = device
        given["data"] = str((place.resolve() / values["data"]).resolve())
        run = RUNS[ESTIMATORS[model]](configure(**given), known)
        state, _ = checkpoint.load_file(place / STATE)
        run.estimator = run.make().restore(state)
    return run


def write_page(folder: Path, target: Path) -> None:
    """Write the page of a run of an estimator.

    Raises:
        FileNotFoundError, ValueError: the run is damaged.
    """
    with undamaged(folder):
        values, report = read_values(folder), read_json(folder / REPORT)
        measures = {name: _text(value) for name, value in report["measures"].items()}
        tables = [
            markup.section(title, [markup.table(head, rows)])
            for title, (head, *rows) in report["tables"].items()
        ]
        png = (folder / FIGURES / PICTURE).read_bytes()
        title = f"{Path(values['data']).name}: {titles()[values['model']]}"
    picture = markup.figure(png, "what was found", chart=True)
    parts = [
        markup.section("Measures", [markup.facts(measures)]),
        *tables,
        markup.section("Picture", [picture]),
    ]
    markup.write_document(target, title, parts)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _relative(path: Path, folder: Path) -> str:
    """A path from a folder, which does not name the user's home; on another drive, the full one."""
    try:
        return os.path.relpath(path, folder.resolve())
    except ValueError:
        return str(path)


def _decoded(content: bytes) -> str:
    """A text in UTF-8, or else in Windows-1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")
