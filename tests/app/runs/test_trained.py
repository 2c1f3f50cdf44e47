"""Arrays in Python give the very numbers that commands write into files."""

import base64
import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import pyro_fmvae
from pyro_fmvae.app.runs import trained
from pyro_fmvae.models import FactorialMixtureVAE
from tests.small_runs import command, succeed, train, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "python.md"
N, EYES = 30, ("closed", "open", "sunglasses")
CENTRE, SPREAD = np.array([1000.0, -3.0, 5e-4]), np.array([50.0, 1.0, 1e-5])
KINDS = {  # kind → data, and options of its training
    "binary": ("binary", {"labels": 0.5, "factors": "2,2,3"}),
    "grey": ("grey", {"factors": "3,2"}),
    "colour": ("colour", {"labels": 1, "factors": "2,4"}),
    "photos": ("photos", {"labels": 1, "factors": "3,4", "image_size": 8}),
    "units": ("units", {"labels": 1, "factors": "2,2"}),
    "vae": ("units", {"model": "vae"}),
    "point": ("binary", {"model": "vae", "posterior": "point"}),
    "vsc": ("grey", {"model": "vsc"}),
    "bsc": ("units", {"model": "bsc", "latent_dim": 4, "joint_iterations": 3}),
}
FACTORIAL = [kind for kind, (_, options) in KINDS.items() if "model" not in options]
DRAWN = ("photos", "vae")  # with figures


def write_photos(folder, side=8):
    """N pictures in colour, and a table of their eyes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    lines = ["file,eyes"]
    for number in range(N):
        eyes = number % len(EYES)
        pixels = rng.integers(0, 80, (side, side, 3)).astype(np.uint8) + np.uint8(80 * eyes)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{EYES[eyes]}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def arrays(files):
    """Raw data by name of the file."""
    found = {}
    for name in ("binary", "grey", "colour"):
        with np.load(files[name]) as archive:
            found[name] = archive["x"]
    found["units"] = np.loadtxt(files["units"], delimiter=",", skiprows=1)[:, :3]
    names = sorted(files["photos"].glob("*.png"), key=lambda path: path.name)
    found["photos"] = np.stack([np.asarray(Image.open(path)) for path in names])
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    paths = write_files(folder)
    rng = np.random.default_rng(2)
    with np.load(paths["colour"]) as archive:
        labels = archive["labels"]
    colour = rng.integers(0, 256, (len(labels), 4, 3, 3)).astype(np.uint8)
    np.savez(paths["colour"], x=colour, labels=labels, label_names=np.array(["side"]))
    table = CENTRE + SPREAD * rng.normal(labels[:, None] * 4.0, 1.0, (len(labels), 3))
    rows = [
        ",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(table, labels, strict=True)
    ]
    paths["units"] = folder / "units.csv"
    paths["units"].write_text("\n".join(["mass,charge,size,label:side", *rows]) + "\n")
    paths["photos"] = write_photos(folder / "photos")
    return paths


@pytest.fixture(scope="module")
def folders(files, tmp_path_factory):
    """Folders of tiny runs by kind; those of `DRAWN` have figures."""
    places = {kind: files[data] for kind, (data, _) in KINDS.items()}
    options = {kind: given for kind, (_, given) in KINDS.items()}
    return train_all(tmp_path_factory.mktemp("runs"), places, options, drawn=DRAWN)


@pytest.fixture(scope="module")
def runs(folders):
    return {kind: pyro_fmvae.load(folder, device="cpu") for kind, folder in folders.items()}


def written(tmp_path, *arguments):
    """The arrays that a command writes."""
    succeed(*arguments, "--out", tmp_path / "out.npz", "--device", "cpu")
    with np.load(tmp_path / "out.npz") as archive:
        return dict(archive)


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


# ---------------------------------------------------------------------- the numbers of the commands


@pytest.mark.parametrize("kind", KINDS)
def test_encodings(runs, folders, files, arrays, tmp_path, kind):
    data = KINDS[kind][0]
    expected = written(tmp_path, "encode", folders[kind], "--data", files[data])
    found = runs[kind].encode(arrays[data])
    assert len(found["mean"]) == len(arrays[data])
    assert_same(found, {name: expected[name] for name in expected if name != "file"})


@pytest.mark.parametrize("kind", KINDS)
def test_scores(runs, folders, files, arrays, tmp_path, kind):
    data = KINDS[kind][0]
    options = ("--data", files[data], "--seed", "3", "--num-samples", "2")
    expected = written(tmp_path, "score", folders[kind], *options)
    found = runs[kind].score(arrays[data], num_samples=2, seed=3)
    assert_same(found, {name: expected[name] for name in expected if name != "file" and "_" not in name})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "point"])
def test_samples(runs, folders, tmp_path, kind):
    expected = written(tmp_path, "sample", folders[kind], "--grid", "3x4", "--seed", "5")
    torch.manual_seed(99)
    state = torch.get_rng_state()
    found = runs[kind].sample(12, seed=5)
    assert (torch.get_rng_state() == state).all()
    assert_same(found, expected)
    np.testing.assert_array_equal(runs[kind].decode(found["z"]), found["x"])
    assert (runs[kind].sample(12, seed=6)["z"] != found["z"]).any()


def test_integers_may_be_of_numpy(runs, arrays):
    two, run, x = np.int64(2), runs["binary"], arrays["binary"]
    np.testing.assert_array_equal(run.sample(two, seed=two)["z"], run.sample(2, seed=2)["z"])
    np.testing.assert_array_equal(run.score(x, two, two)["elbo"], run.score(x, 2, 2)["elbo"])
    for found, expected in zip(run.index(x).search(x, two), run.index(x).search(x, 2), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_samples_given_codes(runs, folders, tmp_path):
    expected = written(tmp_path, "sample", folders["photos"], "--grid", "2x3", "--codes", "2,*")
    for codes in ({"eyes": "sunglasses"}, {0: 2}, np.array([2, -1]), [[2, -1]] * 6):
        assert_same(runs["photos"].sample(6, codes=codes), expected)
    codes = np.stack([np.arange(3), np.arange(3)[::-1]], 1)
    np.testing.assert_array_equal(runs["photos"].sample(3, codes=codes)["codes"], codes)


@pytest.mark.parametrize(("kind", "text"), [("photos", "eyes=sunglasses,1=2"), ("binary", "side=1")])
def test_edits(runs, folders, files, arrays, tmp_path, kind, text):
    """Of a picture, as ``edit`` writes it."""
    pixels = arrays[KINDS[kind][0]][:1]
    Image.fromarray(pixels[0] if kind == "photos" else 255 * pixels[0]).save(tmp_path / "picture.png")
    options = ["--image", tmp_path / "picture.png", "--set", text, "--out", tmp_path / "edited.png"]
    succeed("edit", folders[kind], *options, "--device", "cpu")
    expected = np.asarray(Image.open(tmp_path / "edited.png"))
    settings = dict(part.split("=") for part in text.split(","))
    (found,) = runs[kind].edit(pixels, settings)
    if kind == "binary":
        assert found.dtype == np.float32
        found = (255 * found).round()
    np.testing.assert_array_equal(found, expected)
    assert (found != runs[kind].edit(pixels, {1: 0})[0]).any()


def test_paths_stand_for_their_data(runs, files, arrays):
    for kind in ("photos", "units"):
        assert_same(runs[kind].predict(str(files[kind])), runs[kind].predict(arrays[kind]))
    edited = runs["photos"].edit(files["photos"], eyes="open")
    np.testing.assert_array_equal(edited, runs["photos"].edit(arrays["photos"], eyes="open"))
    assert edited.dtype == np.uint8
    one = runs["photos"].predict(str(files["photos"] / "7.png"))["eyes"]
    assert one == runs["photos"].predict(np.asarray(Image.open(files["photos"] / "7.png"))[None])["eyes"]
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz"):
        runs["photos"].predict("nothing.npz")


# ---------------------------------------------------------------------- units and names


def test_columns_keep_their_units(runs, arrays):
    """Whatever little was learnt, what comes out lies where the columns do."""
    run, table = runs["units"], arrays["units"]
    z = run.encode(table)["mean"]
    for x in (run.decode(z), run.sample(100)["x"], run.edit(table, side=1)):
        assert x.dtype == np.float64 and x.shape[1:] == (3,)
        assert (np.abs(x - table.mean(0)) < 5 * table.std(0)).all()
    with torch.no_grad():
        standardised = run.model.observation.mean(run.model.decoder(torch.from_numpy(z))).double().numpy()
    units = standardised * run.run.recipe.preprocessing.std + run.run.recipe.preprocessing.mean
    np.testing.assert_allclose(run.decode(z), units, rtol=1e-6)


@pytest.mark.parametrize("kind", ["grey", "colour", "photos"])
def test_bytes_and_floats_are_the_same_pictures(runs, arrays, kind):
    run, pixels = runs[kind], arrays[kind]
    read_only = pixels.copy()
    read_only.flags.writeable = False
    codes = run.encode(read_only)["mean"]
    np.testing.assert_allclose(run.encode(pixels / 255)["mean"], codes, atol=1e-5)
    edited, floats = run.edit(pixels, {1: 0}), run.edit(pixels / 255, {1: 0})
    assert (edited.dtype, floats.dtype) == (np.uint8, np.float32)
    assert np.abs(edited - 255 * floats.clip(0, 1)).max() < 0.51
    assert run.decode(codes).shape == pixels.shape


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("binary", "point")])
def test_what_comes_out_can_go_in(runs, kind):
    x = runs[kind].sample(20)["x"]
    assert len(runs[kind].encode(x)["mean"]) == len(x)


def test_means_beyond_what_pixels_can_be_are_clamped(runs, monkeypatch):
    decode = FactorialMixtureVAE.decode
    monkeypatch.setattr(FactorialMixtureVAE, "decode", lambda *args: 9 * decode(*args))
    x = runs["grey"].sample(20)["x"]
    assert (x.min(), x.max()) == (0, 1)
    assert len(runs["grey"].encode(x)["mean"]) == len(x)


def test_binary_pixels_are_bool_or_numbers(runs, arrays):
    expected = runs["binary"].encode(arrays["binary"])
    for pixels in (arrays["binary"].astype(bool), arrays["binary"].astype(float), arrays["binary"].tolist()):
        assert_same(runs["binary"].encode(pixels), expected)


def test_predictions_have_the_names_of_values(runs, arrays):
    photos, binary = runs["photos"], runs["binary"]
    codes = photos.model.predicted_codes(photos.rows(arrays["photos"]).observations)
    assert_same(photos.predict(arrays["photos"]), {"eyes": np.array(EYES)[codes[:, 0]]})
    codes = binary.model.predicted_codes(binary.rows(arrays["binary"]).observations).numpy()
    assert_same(binary.predict(arrays["binary"]), {"side": codes[:, 0], "noise": codes[:, 1]})


def test_a_component_beyond_the_named_values_has_its_number(files, tmp_path, monkeypatch):
    assert train(tmp_path / "run", files["photos"], labels=1, factors="5", image_size=8)[0] == 0
    run = pyro_fmvae.load(tmp_path / "run", "cpu")
    monkeypatch.setattr(run.model, "predicted_codes", lambda x: torch.arange(len(x))[:, None] % 5)
    x = run.sample(5, codes={"eyes": 4})["x"]
    assert run.predict(x)["eyes"].tolist() == [*EYES, "3", "4"]


class Frame:
    """A data frame, as far as the library looks at one."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_columns_of_a_frame_are_compared(runs, arrays):
    frame = Frame(arrays["units"], ["mass", "charge", "size"])
    assert_same(runs["units"].encode(frame), runs["units"].encode(arrays["units"]))
    turned = Frame(arrays["units"][:, ::-1], ["size", "charge", "mass"])
    assert_same(runs["units"].encode(turned), runs["units"].encode(frame))
    with pytest.raises(ValueError, match="array: expected the columns mass, charge, size, got no 'size'"):
        runs["units"].encode(Frame(arrays["units"], ["mass", "charge", "width"]))


# ---------------------------------------------------------------------- batches


def test_the_model_sees_500_rows_at_once(runs, arrays, monkeypatch):
    run, seen = runs["binary"], []
    for place, name in (*product([FactorialMixtureVAE], ["encode", "decode"]), (trained, "edit")):
        function = getattr(place, name)

        def counted(model, x, *rest, own=function):
            seen.append(len(x))
            return own(model, x, *rest)

        monkeypatch.setattr(place, name, counted)
    many = np.tile(arrays["binary"], (17, 1, 1))  # 1,020 rows
    z = run.encode(many)["mean"]
    assert (len(z), seen) == (1020, [500, 500, 20])
    seen.clear()
    assert [len(run.decode(z)), len(run.sample(501)["x"]), len(run.edit(many, side=0))] == [1020, 501, 1020]
    assert seen == [500, 500, 20, 500, 1, 500, 500, 20]
    assert len(run.predict(many)["side"]) == 1020


# ---------------------------------------------------------------------- complaints

BINARY, GREY, TABLE = np.zeros((2, 4, 3)), np.zeros((2, 4, 3)), np.zeros((2, 3))
WRONG = [
    ("binary", lambda run: run.encode(BINARY[0]), r"array: expected observations \[n, \.\.\.\], got one"),
    ("binary", lambda run: run.encode(BINARY[:0]), r"array: expected at least one observation"),
    (
        "binary",
        lambda run: run.encode(np.zeros((2, 5, 5))),
        r"array: expected observations of shape \[4, 3\]",
    ),
    ("binary", lambda run: run.encode(3.0), r"array: expected observations of shape \[4, 3\]"),
    ("binary", lambda run: run.encode(BINARY + 0.5), "array: expected binary values"),
    ("binary", lambda run: run.predict([["a"]]), "array: expected numbers in every column, got words"),
    ("binary", lambda run: run.predict([BINARY, BINARY[0]]), "array: expected observations of one shape"),
    ("units", lambda run: run.predict([{"mass": 1}]), "array: expected numbers, or a data frame, got"),
    ("grey", lambda run: run.score(GREY + 7), r"array: expected uint8 or values in \[0, 1\]"),
    ("units", lambda run: run.encode(TABLE * np.nan), r"array: expected numbers, but some are missing"),
    ("units", lambda run: run.encode(TABLE + 1e30), "array: row 0 and 1 others are so far"),
    ("units", lambda run: run.edit(TABLE + 1e30, side=1), "array: row 0 and 1 others are so far"),
    ("binary", lambda run: run.decode(np.zeros(6)), r"z: expected numbers \[n, 6\], got float64 \[6\]"),
    ("binary", lambda run: run.decode(np.zeros((2, 5))), r"z: expected numbers \[n, 6\]"),
    ("binary", lambda run: run.decode(np.full((2, 6), np.nan)), "z: expected finite numbers"),
    ("binary", lambda run: run.edit(BINARY), "settings: expected a property to change"),
    (
        "binary",
        lambda run: run.edit(BINARY, hat=1),
        "settings: expected a factor, 0..2 or one of side, noise",
    ),
    ("binary", lambda run: run.edit(BINARY, side=2), "settings: expected 0..1 for factor 0, got '2'"),
    (
        "binary",
        lambda run: run.edit(BINARY, {0: 1}, side=1),
        "settings: expected different factors, got 'side'",
    ),
    (
        "photos",
        lambda run: run.sample(1, codes={"eyes": "red"}),
        "codes: expected 0..2 or one of closed, open",
    ),
    ("binary", lambda run: run.sample(0), "n: expected an integer in 1"),
    ("binary", lambda run: run.sample(1, seed=-1), "seed: expected an integer in 0"),
    ("binary", lambda run: run.score(BINARY, seed=-1), "seed: expected an integer in 0"),
    ("binary", lambda run: run.score(BINARY, num_samples=0), "num_samples: expected an integer in 1"),
    ("binary", lambda run: run.sample(1, codes=[0, 0]), r"codes: expected a dictionary or integers \[3\]"),
    (
        "binary",
        lambda run: run.sample(1, codes=[0, 0, 0.5]),
        r"codes: expected a dictionary or integers \[3\]",
    ),
    ("binary", lambda run: run.sample(1, codes=[0, 2, 0]), r"codes: expected components below \[2, 2, 3\]"),
    (
        "vsc",
        lambda run: run.sample(1, codes=[0]),
        r"codes: choosing them needs factors, but this run's model \(vsc\)",
    ),
    ("vsc", lambda run: run.edit(GREY, side=1), r"run: edit needs factors, but this run's model \(vsc\)"),
    ("vsc", lambda run: run.predict(GREY), "run: predict needs labels"),
    ("units", lambda run: run.map_query(TABLE), "run: map_query needs a likelihood of counts"),
    ("grey", lambda run: run.predict(GREY), "run: predict needs labels"),
    ("point", lambda run: run.sample(1), "run: an auto-encoder .* has no density of z"),
]


@pytest.mark.parametrize(("kind", "call", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_complaints(runs, kind, call, message):
    with pytest.raises(ValueError, match=message):
        call(runs[kind])


def test_what_is_no_run(folders, tmp_path):
    with pytest.raises(ValueError, match="is no run"):
        pyro_fmvae.load(tmp_path)
    with pytest.raises(ValueError, match="device: 'abacus' cannot be used"):
        pyro_fmvae.load(folders["binary"], device="abacus")


# ---------------------------------------------------------------------- in a notebook


def test_a_notebook_shows_measures_and_a_figure(runs, folders):
    html = runs["photos"]._repr_html_()
    records = map(json.loads, (folders["photos"] / "metrics.jsonl").read_text().splitlines())
    kept = json.loads((folders["photos"] / "kept.json").read_text())["kept"]
    (record,) = (
        one for one in records if (one["phase"], one["step"]) == (kept["phase"], kept["total_steps"])
    )
    for name in ("elbo", "reconstruction", "kl_z", "kl_r"):
        assert f"validation {name}</th><td>{record[name]:.2f} nats" in html
    assert f"eyes</th><td>{record['used_components'][0]} of 3 components in use" in html
    accuracy = json.loads((folders["photos"] / "report.json").read_text())["splits"]["test"]["accuracy"]
    assert re.search(rf"<pre>.*\n  eyes +\d+ +{accuracy['eyes']:.3f} .*</pre>", html, re.DOTALL)
    (content,) = re.findall(r"src='data:image/png;base64,([^']+)'", html)
    assert base64.b64decode(content) == (folders["photos"] / "figures" / "factors.png").read_bytes()
    assert "training.png" not in html and "alt='training'" in runs["vae"]._repr_html_()


def test_a_notebook_shows_what_there_is(runs):
    """Without figures, and without a bound."""
    html = runs["point"]._repr_html_()
    assert "validation reconstruction" in html and "validation elbo" not in html and "<img" not in html
    point = runs["point"].run
    assert repr(runs["point"]) == f"TrainedRun('{point.folder}': {point.recipe.title}, {point.config.data})"


def test_names_in_html_are_escaped(folders, tmp_path):
    copy = shutil.copytree(folders["binary"], tmp_path / "<script>")
    html = pyro_fmvae.load(copy, "cpu")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


# ---------------------------------------------------------------------- the page


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", side=64)
    text = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ pyro-fmvae train (.+)$", text, re.M)
    tiny = ["--network", "mlp", "--factors", "3,4", "--factor-dim", "2", "--hidden", "6", "--eager", "true"]
    phases = ["--pretrain-iterations", "3", "--prior-iterations", "3", "--joint-iterations", "3"]
    status, _, err = command("train", *line.split(), *tiny, *phases, "--refine-iterations", "3")
    assert status == 0, err
    given = dict(zip((tiny + phases)[::2], (tiny + phases)[1::2], strict=True))
    options = {flag[2:].replace("-", "_"): yaml.safe_load(value) for flag, value in given.items()}
    options |= {"factors": (3, 4), "hidden": (6,)}
    own = pyro_fmvae.train
    monkeypatch.setattr(
        pyro_fmvae, "train", lambda *args, max_minutes, **given: own(*args, **given | options), raising=False
    )
    namespace = {"__name__": PAGE.name}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert (namespace["edited"].dtype, namespace["edited"].shape) == (np.uint8, (10, 64, 64, 3))
    assert set(namespace["eyes"]) <= set(EYES)
    np.testing.assert_array_equal(
        namespace["drawn"], namespace["run"].sample(16, codes={"eyes": "open"}, seed=1)["x"]
    )
    assert sorted(namespace["unusual"]) == list(range(10))
