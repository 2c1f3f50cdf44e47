"""A run in one file: it encodes, draws and scores as the run does, and tells nothing of data and places."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pyro_fmvae
from pyro_fmvae import checkpoint
from pyro_fmvae.app.recipes.settings import is_own
from pyro_fmvae.app.runs import Run, trained
from pyro_fmvae.app.runs.factor_names import rename_all
from tests.small_runs import command, succeed, train, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {  # kind → data, and options of its training
    "labelled": ("binary", {"labels": 0.5, "factors": "2,2,3"}),
    "rows": ("csv", {"model": "mixture", "labels": 1, "factors": "2,3", "covariance": "diagonal"}),
    "vae": ("table", {"model": "vae"}),
    "vsc": ("grey", {"model": "vsc"}),
}
TRAINED_ON = 48  # points of each data set


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def folders(files, tmp_path_factory):
    places = {kind: files[data] for kind, (data, _) in KINDS.items()}
    options = {kind: given for kind, (_, given) in KINDS.items()}
    return train_all(tmp_path_factory.mktemp("runs"), places, options)


@pytest.fixture(scope="module")
def exported(folders, tmp_path_factory):
    """Path of the file by kind, in a folder without any data."""
    parent = tmp_path_factory.mktemp("exported")
    for kind, folder in folders.items():
        pyro_fmvae.load(folder, "cpu").export(parent / kind / "model.fmvae")
    return {kind: parent / kind / "model.fmvae" for kind in folders}


def data_of(path):
    if path.suffix == ".csv":
        return np.loadtxt(path, delimiter=",", skiprows=1)[:, :3]
    with np.load(path) as archive:
        return archive["x"]


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_run(kind, folders, exported, files):
    run, alone = (pyro_fmvae.load(path, "cpu") for path in (folders[kind], exported[kind]))
    x = data_of(files[KINDS[kind][0]])
    assert_equal(alone.encode(x), run.encode(x))
    assert_equal(alone.sample(5, seed=3), run.sample(5, seed=3))
    expected = run.score(x)
    expected.pop("nearest", None)  # the training data are not there
    assert_equal(alone.score(x), expected)


def test_it_keeps_the_names_of_components(folders, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(folders["labelled"], folder)
    rename_all(Run.open(folder), 2, None, {1: "round"})
    again = tmp_path / "again.fmvae"
    pyro_fmvae.load(folder, "cpu").export(tmp_path / "model.fmvae")
    pyro_fmvae.load(tmp_path / "model.fmvae", "cpu").export(again)
    assert pyro_fmvae.load(again, "cpu").run.recipe.given_names == {2: {1: "round"}}


@pytest.mark.parametrize("kind", KINDS)
def test_it_holds_neither_data_nor_places(kind, exported, files, tmp_path_factory):
    content = exported[kind].read_bytes()
    for place in (files[KINDS[kind][0]].parent, tmp_path_factory.getbasetemp(), Path.home()):
        assert str(place).encode() not in content
    state, _ = checkpoint.load_file(exported[kind])
    shapes = [tuple(tensor.shape) for tensor in state["model"].values()]
    assert not any(size in (TRAINED_ON, 60) for shape in shapes for size in shape)


def test_an_exported_model_is_exported_again(exported, tmp_path):
    pyro_fmvae.load(exported["labelled"], "cpu").export(tmp_path / "again.fmvae")
    assert (tmp_path / "again.fmvae").read_bytes() == exported["labelled"].read_bytes()


def test_commands_take_it(folders, exported, files, tmp_path):
    for run, name in ((folders["labelled"], "run"), (exported["labelled"], "file")):
        succeed("encode", run, "--data", files["binary"], "--out", tmp_path / f"{name}.csv")
        succeed("sample", run, "--codes", "1,*,*", "--out", tmp_path / f"{name}.npz")
    for ending in ("csv", "npz"):
        assert (tmp_path / f"file.{ending}").read_bytes() == (tmp_path / f"run.{ending}").read_bytes()
    moved = ["--data-root", files["binary"].parent]
    assert succeed("evaluate", exported["labelled"], *moved) == succeed("evaluate", folders["labelled"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "RUN"], "is an exported model, without the records of its training"),
        (["train", "--resume", "RUN"], "is an exported model, without the state of its training"),
        (["draw", "RUN", "attributes"], "is an exported model without a folder of figures"),
        (["evaluate", "RUN"], "does not exist; give the folder that now holds 'binary.npz' with --data-root"),
        (
            ["export", "ROWS", "--out", "encoder.pt2"],
            "expected a model with an encoder, but --model mixture has",
        ),
        (["export", "RUN", "--out", "model.zip"], "expected a name that ends in .fmvae or .md"),
    ],
)
def test_what_takes_more_than_the_model_is_refused(arguments, message, exported):
    paths = {"RUN": exported["labelled"], "ROWS": exported["rows"]}
    status, _, err = command(*(paths.get(one, one) for one in arguments))
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "sha256 is another"),
        (lambda content: content[: len(content) // 2], "damaged"),
        (lambda _: b"", "damaged"),
    ],
)
def test_damage_is_told_in_one_line(damage, message, exported, tmp_path):
    path = tmp_path / "model.fmvae"
    path.write_bytes(damage(exported["labelled"].read_bytes()))
    status, _, err = command("sample", path, "--out", tmp_path / "x.npz")
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_checkpoint_under_its_name_is_none(folders, tmp_path):
    shutil.copy(folders["vae"] / "checkpoint" / checkpoint.TENSORS, tmp_path / "model.fmvae")
    with pytest.raises(ValueError, match="not an exported model"):
        pyro_fmvae.load(tmp_path / "model.fmvae")


def test_options_of_a_stranger_are_checked(exported, tmp_path):
    state, _ = checkpoint.load_file(exported["vae"])
    state["config"]["batch_size"] = "many"
    checkpoint.save_file(tmp_path / "model.fmvae", state)
    with pytest.raises(ValueError, match=r"model\.fmvae is damaged \(batch_size: expected an integer"):
        Run.open(tmp_path / "model.fmvae")


def test_data_under_the_name_of_a_published_set_stay_ones_own(files, tmp_path):
    folder = tmp_path / "smiley"
    shutil.copy(files["table"], folder.with_suffix(".npz"))
    run = Run.open(train_one(tmp_path, folder.with_suffix(".npz")))
    renamed = run.with_options(data=str(folder))
    assert is_own(renamed.config)
    pyro_fmvae.TrainedRun(renamed, "cpu").export(tmp_path / "model.fmvae")
    assert is_own(Run.open(tmp_path / "model.fmvae").config)


def train_one(parent, data):
    status, _, err = train(parent / "run", data, model="vae")
    assert status == 0, err
    return parent / "run"


def test_the_card_tells_data_budget_measures_and_versions(folders, exported, tmp_path):
    succeed("export", folders["labelled"], "--out", tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    for text in (
        "48 binary pictures of 4×3 pixels",
        "`side` (0, 1); `noise` (0, 1)",
        "--labels 0.5",
        "pretrain 3, prior 3, joint 3, refine 3",
        "ELBO",
        "majority",
        f"pyro_fmvae {pyro_fmvae.__version__}",
        "torch",
    ):
        assert text in card
    assert card.startswith("---\nlibrary_name: pyro_fmvae\n")
    assert str(folders["labelled"].parent) not in card
    succeed("export", exported["labelled"], "--out", tmp_path / "again.md")
    assert (tmp_path / "again.md").read_text(encoding="utf-8") == card


# ---------------------------------------------------------------------- hub


def test_a_folder_of_this_machine_is_a_hub(exported, tmp_path):
    run = pyro_fmvae.from_pretrained(exported["vae"].parent, device="cpu")
    assert run.run.recipe.name == "vae"
    with pytest.raises(FileNotFoundError, match=r"no exported model \(model\.fmvae\) there"):
        pyro_fmvae.from_pretrained(tmp_path)


def test_what_is_pushed_comes_back(exported, tmp_path, monkeypatch):
    """Against a local folder in the place of the hub: no test uses the network."""
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="pip install 'pyro_fmvae[hub]'")
    asked = {}

    class Hub:
        def __init__(self, token):
            asked["token"] = token

        def create_repo(self, repository, private, exist_ok):
            (tmp_path / repository).mkdir(parents=True, exist_ok=exist_ok)
            asked["private"] = private

        def upload_folder(self, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, tmp_path / repo_id, dirs_exist_ok=True)
            return SimpleNamespace(commit_url=f"https://hub.example/{repo_id}/commit/1")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repo_id, name, **_: str(tmp_path / repo_id / name)
    )
    run = pyro_fmvae.load(exported["labelled"], "cpu")
    assert run.push_to_hub("somebody/faces", token="secret").endswith("somebody/faces/commit/1")
    assert asked == {"token": "secret", "private": True}
    assert sorted(path.name for path in (tmp_path / "somebody/faces").iterdir()) == [
        "README.md",
        trained.MODEL,
    ]
    again = pyro_fmvae.from_pretrained("somebody/faces", device="cpu")
    assert_equal(again.sample(3), run.sample(3))


def test_without_huggingface_hub_it_says_what_to_install(exported, monkeypatch):
    monkeypatch.setattr(trained, "find_spec", lambda _: None)
    run = pyro_fmvae.load(exported["vae"], "cpu")
    with pytest.raises(ValueError, match=r"pip install 'pyro_fmvae\[hub\]'"):
        run.push_to_hub("somebody/faces")
    with pytest.raises(ValueError, match=r"pip install 'pyro_fmvae\[hub\]'"):
        pyro_fmvae.from_pretrained("somebody/faces")
