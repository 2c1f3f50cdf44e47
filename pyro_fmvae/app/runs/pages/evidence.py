"""Facts about a run that its folder holds, whatever of them there is."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyro_fmvae.app.runs.closing_table import METRICS, REPORT, SelectedModel, duration, read_report
from pyro_fmvae.data import Kind
from pyro_fmvae.files.untrusted import check_type, parse_json
from pyro_fmvae.learn.options import as_typed, flag

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run


LINE: Final = {
    "step": int,
    "phase": str,
    "elbo": float | None,
    "reconstruction": float,
    "seconds": float,
    "used_components": list[int] | None,
}
"""Types of what pages take from a line of ``metrics.jsonl``; None also stands for what it lacks."""


@dataclass(frozen=True)
class Evidence:
    """Facts known of a run: its training and its result."""

    run: "Run"
    records: list[dict[str, Any]]
    """Records of ``metrics.jsonl``, without damaged lines."""
    report: dict[str, Any]
    """Contents of ``report.json``; empty where there is none."""
    kept: SelectedModel | None
    """Which model the run stands for; None of an unfinished run."""
    derived: dict[str, Any]
    """What ``config.json`` holds beside options."""

    @classmethod
    def of(cls, run: "Run") -> "Evidence":
        """Read the folder of a run."""
        records = []
        path = run.folder / METRICS
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            with suppress(ValueError, AttributeError):
                record = parse_json(line)
                for name, hint in LINE.items():
                    check_type(name, record.get(name), hint)
                records.append(record)
        measured, kept = read_report(run.folder / REPORT), SelectedModel.read(run.folder)
        return cls(run, records, measured, kept, run.derived)

    @property
    def tested(self) -> dict[str, Any]:
        """Measures of the split that the report is about; empty where there is no report."""
        measures: dict[str, Any] = self.report.get("splits", {}).get(self.report.get("split"), {})
        return measures

    @property
    def bounded(self) -> bool:
        """False if the model has no bound, as an auto-encoder."""
        return "elbo" not in self.tested or self.tested["elbo"] is not None

    @property
    def last_phase(self) -> list[dict[str, Any]]:
        """The records of the last phase."""
        return [record for record in self.records if record["phase"] == self.records[-1]["phase"]]

    @property
    def closing(self) -> dict[str, Any]:
        """The record of the model that was kept, else the last one; empty where there are no records."""
        kept = (self.kept.kept.phase, self.kept.kept.total_steps) if self.kept else None
        found = [one for one in self.records if (one["phase"], one["step"]) == kept]
        return (found or self.records or [{}])[-1]

    @property
    def used(self) -> dict[str, tuple[int, int]]:
        """Factor → number of its components in use, and of all."""
        used = self.closing.get("used_components", [])
        pairs = zip(self.run.recipe.factor_names, used, self.run.recipe.factors, strict=False)
        return {name: (number, size) for name, number, size in pairs}

    @property
    def given(self) -> str:
        """The options that were given, as they are typed."""
        values = self.run.config.to_dict()
        typed = (f"{flag(name)} {as_typed(values[name])}" for name in self.run.given if name in values)
        return " ".join(typed) or "none"

    @property
    def options(self) -> dict[str, str]:
        """Every option, resolved, to be read: numbers are rounded, and ``none`` stands for nothing."""
        return {flag(name): _read(value) for name, value in self.run.config.to_dict().items()}


def _read(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_read, value)) or "none"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return {None: "none", True: "yes", False: "no"}[value] if isinstance(value, bool | None) else str(value)


def lead(evidence: Evidence) -> str:
    """One sentence: what was trained on what, and how long."""
    run = evidence.run
    title = run.recipe.title
    text = f"{title[0].upper()}{title[1:]}, trained on {describe_data(run)} from {Path(run.config.data).name}"
    if evidence.records:
        last = evidence.records[-1]
        text += f": {last['step']:,} steps in {duration(last['seconds'])}"
    return text + "."


def describe_data(run: "Run") -> str:
    """The training data in a few words, such as ``1,439 grey pictures of 8×8 pixels``."""
    preprocessing, number = run.recipe.preprocessing, f"{run.recipe.num_data:,}"
    shape = preprocessing.event_shape
    size = "×".join(map(str, shape[:2]))
    colour = "colour" if len(shape) == 3 else "binary" if preprocessing.binary else "grey"
    kinds = {
        Kind.PATCHES: f"{number} patches of pictures",
        Kind.TABLE: f"{number} rows of {shape[0]} columns",
        Kind.COUNTS: f"{number} rows of counts in {preprocessing.decoded.event_shape[0]} columns",
    }
    plain = (
        f"{number} {colour} pictures of {size} pixels"
        if run.recipe.image
        else f"{number} points of {shape[0]} numbers"
    )
    return kinds.get(preprocessing.kind, plain)
