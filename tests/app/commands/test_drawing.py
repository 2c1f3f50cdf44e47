import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image
from sklearn.metrics import mutual_info_score

from pyro_fmvae import figures
from pyro_fmvae.app.commands import drawing
from pyro_fmvae.app.recipes.pictures import factors_of_run
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import whole
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {
    "binary": {"labels": 0.5, "factors": "2,2,3"},
    "colour": {"factors": "4,2"},
    "lone": {"factors": "3"},
    "table": {"factors": "4"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Kind of data → folder of a run that was trained on it."""
    files = write_files(tmp_path_factory.mktemp("data"))
    parent = tmp_path_factory.mktemp("runs")
    for kind, options in KINDS.items():
        status, _, err = train(parent / kind, files.get(kind, files["grey"]), **options)
        assert status == 0, err
    config = json.loads((parent / "binary" / "config.json").read_text())
    config["derived"]["value_names"] = [["left", "right"], []]
    (parent / "binary" / "config.json").write_text(json.dumps(config))
    return {kind: parent / kind for kind in KINDS}


@pytest.fixture
def calls(monkeypatch):
    """Records the arguments of figures, in place of drawing them: pairs (positional, by name)."""
    found = []

    def record(*arguments, **named):
        found.append((arguments[1:], named))
        return figures.sample_grid(torch.zeros(1, 8, 8), 1, 1)

    for name in ("attribute_grid", "attribute_rows", "clusters", "component_grid", "pair_grid", "spread"):
        monkeypatch.setattr(drawing.figures, name, record)

    def animate(*arguments, **named):
        record(*arguments, **named)
        return [np.zeros((2, 2), dtype=np.uint8)]

    monkeypatch.setattr(drawing.figures, "traversal", animate)
    return found


@pytest.mark.parametrize("kind", ["binary", "colour"])
@pytest.mark.parametrize("figure", drawing.DRAWINGS)
def test_draw(runs, kind, figure):
    draws = ("--draws", 6) if "draws" in drawing.DRAWINGS[figure].options else ()
    out = succeed("draw", runs[kind], figure, *draws)
    path = runs[kind] / "figures" / f"{figure}{'.gif' if figure == 'traversal' else '.png'}"
    assert out == f"wrote {path}\n"
    with Image.open(path) as image:
        image.verify()
        assert image.format == ("GIF" if figure == "traversal" else "PNG")


def test_a_new_figure_is_one_entry(runs, monkeypatch, tmp_path):
    def shares(request):
        return figures.property_matrix(
            request.factors.shares[0][None], ["share"], ["left", "right"], "Shares"
        )

    monkeypatch.setitem(drawing.DRAWINGS, "shares", drawing.Drawing(shares))
    succeed("draw", runs["binary"], "shares", "--out", tmp_path / "a.png")
    assert imread(tmp_path / "a.png").size
    status, _, err = command("draw", runs["binary"], "shares", "--rows", 3)
    assert status == 2 and "rows: shares does not take it" in err


def test_the_file_is_the_figure(runs, tmp_path):
    arguments = ("--factors", "2,noise", "--draws", 7, "--most", 2, "--hold", "side=right", "--seed", 3)
    succeed("draw", runs["binary"], "pairs", *arguments, "--out", tmp_path / "new" / "a.png")
    run = Run.open(runs["binary"])
    factors = factors_of_run(run.recipe, run.load_model(torch.device("cpu")))
    figure = figures.pair_grid(factors, 2, 1, draws=7, most=2, seed=3, held={0: 1})
    figures.save(figure, tmp_path / "b.png")
    np.testing.assert_array_equal(imread(tmp_path / "new" / "a.png"), imread(tmp_path / "b.png"))


@pytest.mark.parametrize(
    ("text", "positional", "named"),
    [
        ("attributes", (None,), {"seed": 0}),
        ("attributes --factors noise,0 --rows 3 --seed 5", ([1, 0],), {"seed": 5, "rows": 3}),
        ("spread --rows 3", (), {"seed": 0, "rows": 3}),
        ("clusters --factors side --most 3 --draws 9", (0,), {"seed": 0, "most": 3, "draws": 9}),
        ("clusters --factors 2", (2,), {"seed": 0}),
        ("pairs --factors 2,0", (2, 0), {"seed": 0, "held": {}}),
        ("pairs --hold side=left", (1, 2), {"seed": 0, "held": {0: 0}}),
        ("pairs --hold 2=1 --most 4", (0, 1), {"seed": 0, "held": {2: 1}, "most": 4}),
        ("traversal --factors side --rows 2 --most 3", (0,), {"seed": 0, "bases": 2, "most": 3}),
        ("factors --rows 2 --seed 1", (), {"seed": 1, "rows": 2}),
        ("components", (), {}),
    ],
)
def test_options(runs, calls, text, positional, named):
    succeed("draw", runs["binary"], *text.split())
    assert calls == [(positional, named)]


def test_information_is_that_of_codes_and_labels_of_test_data(runs, monkeypatch):
    shown = []
    monkeypatch.setattr(drawing.figures, "property_matrix", lambda *args: shown.append(args) or Figure())
    monkeypatch.setattr(drawing.figures, "save", lambda *_: None)
    succeed("draw", runs["binary"], "information")
    ((values, rows, columns, _),) = shown
    assert (rows, columns) == (("side", "noise", "factor 2"), ["side", "noise"])
    run = Run.open(runs["binary"])
    x, labels = whole(run.load_data().test)
    codes = run.load_model(torch.device("cpu")).codes(x)
    for i, j in np.ndindex(3, 2):
        expected = mutual_info_score(labels[:, j], codes[:, i]) / mutual_info_score(
            labels[:, j], labels[:, j]
        )
        assert values[i, j] == pytest.approx(expected)


def test_factors_with_most_components_in_use_are_the_default(runs, calls, monkeypatch):
    def factors(*_):
        shares = [torch.tensor([1.0, 0, 0, 0]), torch.ones(2), torch.ones(3), torch.ones(2)]
        means = [torch.zeros(len(share), 1) for share in shares]
        return figures.Factors(lambda z: z, lambda n, codes: codes, means, shares)

    monkeypatch.setattr(drawing, "factors_of_run", factors)
    for figure in ("clusters", "pairs", "traversal"):
        succeed("draw", runs["binary"], figure)
    assert [positional for positional, _ in calls] == [(2,), (1, 2), (2,)]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("lone", "information", "figure: information needs data with labels"),
        ("table", "spread", "figure: spread needs a run on images"),
        ("binary", "", "error: required: figure (see"),
        ("binary", "faces", "error: figure: expected one of attributes, spread"),
        ("binary", "spread --factors side", "factors: spread does not take it"),
        ("binary", "attributes --hold side=1", "hold: attributes does not take it"),
        ("binary", "pairs --rows 3", "rows: pairs does not take it"),
        (
            "binary",
            "pairs --factors 0,1 --hold side=1",
            "hold: expected other factors than those of --factors",
        ),
        ("binary", "components --most 3", "most: components does not take it"),
        ("binary", "traversal --draws 3", "draws: traversal does not take it"),
        ("binary", "spread --out x.gif", "out: expected a name that ends in .png"),
        ("binary", "traversal --out x.png", "out: expected a name that ends in .gif"),
        ("binary", "spread --seed -1", "seed: expected"),
        ("binary", "spread --rows 0", "rows: expected a number >= 1, got 0"),
        ("binary", "spread --rows many", "--rows: expected an integer"),
        ("binary", "attributes --factors hat", "factors: expected a factor, 0..2 or one of side, noise"),
        ("binary", "clusters --factors 0,1", "factors: clusters takes 1 of them, got '0,1'"),
        ("binary", "pairs --factors 0", "factors: pairs takes 2 of them, got '0'"),
        ("binary", "pairs --factors 0,1 --hold 1=0", "hold: expected other factors than those of --factors"),
        ("binary", "pairs --hold side=up", "hold: expected 0..1 or one of left, right for factor 0"),
        ("binary", "pairs --hold 0=0,1=0", "factors: 2 that are not held are needed, the run has 1"),
        ("lone", "pairs", "factors: 2 that are not held are needed, the run has 1"),
        ("binary", "spread --device abacus", "device: 'abacus' cannot be used here"),
    ],
)
def test_errors(runs, tmp_path, monkeypatch, kind, text, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = command("draw", runs[kind], *text.split())
    assert status == 2 and out == ""
    assert message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
