"""The card of a model that travels: what it is, what it learnt from, and how good it is, in Markdown."""

from dataclasses import replace

from pyro_fmvae.app.runs.closing_table import lines
from pyro_fmvae.app.runs.pages.evidence import Evidence, describe_data, lead
from pyro_fmvae.app.runs.run import Run, is_model_file, read_model, without_places

_HEADER = "---\nlibrary_name: pyro_fmvae\ntags:\n- pyro\n- {tag}\n---\n"
_USE = """```python
import pyro_fmvae

run = pyro_fmvae.load("model.fmvae")
print(run)
```"""


def model_card(run: Run) -> str:
    """Data, budget, measures and versions of a run, without its data and without any path.

    Args:
        run: the run. The card of an exported model is the one that it was exported with.
    """
    if is_model_file(run.folder):
        card: str = read_model(run.folder)["card"]
        return card
    run = replace(run, recipe=replace(run.recipe, config=without_places(run.config)))
    evidence = Evidence.of(run)
    versions = "\n".join(
        f"- {name} {number}" for name, number in evidence.derived.get("versions", {}).items()
    )
    parts = [
        f"# {run.config.data}: {run.recipe.title}",
        lead(evidence),
        f"## Data\n\n{describe_data(run)}.{_labels(run)} The file holds none of them.",
        f"## Training\n\nOptions that were given: `{evidence.given}`. {_length(evidence)}",
        f"## Measures\n\n{_measures(evidence)}",
        f"## Use\n\n{_USE}",
        f"## Versions\n\n{versions or 'Not known.'}",
    ]
    return _HEADER.format(tag=run.recipe.name) + "\n".join(f"{part}\n" for part in parts)


def _labels(run: Run) -> str:
    """The labels that were trained on, with the names of their values."""
    known = []
    for column in run.recipe.labelled:
        values = (run.recipe.value_text(column, value) for value in range(run.recipe.num_values[column]))
        known.append(f"`{run.recipe.label_names[column]}` ({', '.join(values)})")
    return f" Labels that were trained on: {'; '.join(known)}." if known else ""


def _length(evidence: Evidence) -> str:
    minutes, iterations = evidence.run.config.max_minutes, evidence.run.config.iterations
    lengths = ", ".join(f"{phase} {number:,}" for phase, number in iterations.items() if number)
    budget = f"{minutes:g} minutes by the clock" if minutes else f"iterations of each phase: {lengths}"
    return f"Budget: {budget}. Machine: {evidence.derived.get('machine', 'not known')}."


def _measures(evidence: Evidence) -> str:
    if not evidence.report:
        return "None were taken: the training was not finished."
    table = "\n".join(lines(evidence.report)).strip()
    return f"```text\n{table}\n```"
