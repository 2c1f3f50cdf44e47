"""Nearness by mean, code and density, against definitions written out from arrays and densities."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributions import Normal

import pyro_fmvae
from tests.small_runs import command, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {
    "grey": ("grey", {"factors": "3,2,2"}),
    "rows": ("csv", {"model": "mixture", "labels": 1, "factors": "2,3", "covariance": "diagonal"}),
    "vae": ("table", {"model": "vae"}),
}
N = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    places = {kind: files[data] for kind, (data, _) in KINDS.items()}
    options = {kind: given for kind, (_, given) in KINDS.items()}
    folders = train_all(tmp_path_factory.mktemp("runs"), places, options)
    return {kind: pyro_fmvae.load(folder, device="cpu") for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def greys(files):
    with np.load(files["grey"]) as archive:
        return archive["x"]


def test_by_mean(runs, greys):
    mean = runs["grey"].encode(greys)["mean"].astype(np.float64)
    distances = np.sqrt(np.square(mean[:5, None] - mean[None]).sum(-1))
    rows, values = runs["grey"].index(greys).search(greys[:5], N)
    assert rows[:, 0].tolist() == list(range(5))
    np.testing.assert_allclose(values, np.sort(distances, 1)[:, :N], atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(distances, rows, 1), values, atol=1e-3)


def assert_by_code(found, codes, mean):
    """Fewest differing codes first, and among equal numbers the smallest distance."""
    for query, (rows, values) in enumerate(zip(*found, strict=True)):
        differing = (codes != codes[query]).sum(1)
        distances = np.square(mean - mean[query]).sum(1)
        expected = np.lexsort((distances, differing))[: len(rows)]
        np.testing.assert_array_equal(values, differing[expected])
        np.testing.assert_array_equal(rows, expected)


def test_by_code_and_then_by_mean(runs, greys, monkeypatch):
    run = runs["grey"]
    monkeypatch.setattr(run.model, "codes", lambda x: (x.flatten(1)[:, :3] > 0).long())  # all eight occur
    codes = greys.reshape(len(greys), -1)[:, :3] > 127
    assert len(np.unique(codes, axis=0)) == 8
    found = run.index(greys, by="code").search(greys[:5], 40)
    mean = run.model.posterior(torch.from_numpy(greys / 127.5 - 1).float()).mean
    assert_by_code(found, codes, mean.detach().numpy())


def test_rows_of_a_mixture_by_code(runs, files):
    x = np.loadtxt(files["csv"], delimiter=",", skiprows=1)[:, :3]
    encoded = runs["rows"].encode(x)
    found = runs["rows"].index(x, by="code").search(x[:5], N)
    assert_by_code(found, encoded["codes"], encoded["mean"])


def test_by_density(runs, greys):
    """Σ γ E[log N] by drawing μ, α and z: within four standard errors, for every pair of eight points."""
    run, draws, dim = runs["grey"], 3000, 2
    encoded = run.encode(greys[:N])
    mean, scale = (torch.from_numpy(encoded[name]).double() for name in ("mean", "scale"))
    noise = torch.randn(draws, *mean.shape)
    z = (mean + scale * noise).unflatten(-1, (-1, dim))  # [draws, N, I, D]
    per_draw = 0.0
    for group in run.model.factor_groups():
        mu, alpha = group.loc_precision().sample((draws,)).double().unbind(-2)  # [draws, I_g, K, D]
        for place, factor in enumerate(group.factors):
            component = Normal(mu[:, None, place], alpha[:, None, place].rsqrt())
            table = component.log_prob(z[:, :, factor, None]).sum(-1)  # [draws, N, K]
            gamma = torch.from_numpy(encoded[f"responsibilities_{factor}"]).double()
            per_draw = per_draw + torch.einsum("qk,spk->sqp", gamma, table)
    expected, error = per_draw.mean(0), per_draw.std(0) / draws**0.5

    rows, values = run.index(greys[:N], by="density").search(greys[:N], N)
    assert (np.diff(values, axis=1) <= 0).all()
    found = torch.zeros(N, N).double().scatter(1, torch.from_numpy(rows), torch.from_numpy(values).double())
    assert ((found - expected).abs() < 4 * error + 1e-4).all()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("vae", {"by": "code"}, "by: code needs factors, but vae has none"),
        ("vae", {"by": "density"}, "by: density needs a factorial mixture prior, but vae has none"),
        ("rows", {"by": "density"}, "by: density needs a factorial mixture prior, but mixture has none"),
        ("vae", {"by": "colour"}, "by: expected one of mean, code, density, got 'colour'"),
        ("rows", {"by": "code", "quantised": True}, "quantised: expected by 'mean', got 'code'"),
        ("vae", {"quantised": True}, "quantised: expected 10,000 points or more, got 60"),
    ],
)
def test_what_cannot_be_searched_is_refused(kind, options, message, runs, files):
    x = np.loadtxt(files["csv"], delimiter=",", skiprows=1)[:, :3]
    with pytest.raises(ValueError, match=message):
        runs[kind].index(x, **options)


def test_numbers_out_of_range(runs, greys):
    index = runs["grey"].index(greys[:4])
    with pytest.raises(ValueError, match="n: expected"):
        index.search(greys[:1], 0)
    assert index.search(greys[:2], 99)[0].shape == (2, 4)
    with pytest.raises(ValueError, match="array: expected observations"):
        index.search(greys[0])


# ---------------------------------------------------------------------- the command


def test_the_command_finds_what_python_finds(runs, greys, files, tmp_path):
    run = runs["grey"]
    out = succeed("search", run.run.folder, "--like", files["grey"], "-n", 3, "--out", tmp_path / "found.csv")
    assert out == f"wrote {tmp_path / 'found.csv'}: 3 of 60 for each of 60\n"
    table = np.genfromtxt(tmp_path / "found.csv", delimiter=",", names=True)
    rows, values = run.index(greys).search(greys, 3)
    assert table.dtype.names == ("query", "rank", "row", "mean")
    np.testing.assert_array_equal(table["row"], rows.ravel())
    np.testing.assert_allclose(table["mean"], values.ravel(), rtol=1e-6)
    assert table["rank"][:4].tolist() == [1, 2, 3, 1]


def test_a_picture_is_searched_and_drawn(runs, greys, tmp_path):
    Image.fromarray(greys[7]).save(tmp_path / "me.png")
    like = ["--like", tmp_path / "me.png", "-n", 4]
    lines = succeed("search", runs["grey"].run.folder, *like, "--by", "code").splitlines()
    assert lines[0].split() == ["query", "rank", "row", "code"]
    assert lines[1].split() == ["0", "1", "7", "0"]
    succeed("search", runs["grey"].run.folder, *like, "--out", tmp_path / "found.png")
    with Image.open(tmp_path / "found.png") as sheet:
        assert sheet.width > 5 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--like", "none.png"], "none.png"),
        (["-n", "0"], "n: expected"),
        (["--by", "colour"], "by: expected one of mean, code, density"),
        (["--out", "found.txt"], "out: expected a name that ends in .csv or .parquet or .png"),
    ],
)
def test_bad_arguments_are_one_line(options, message, runs, files):
    given = ["search", runs["grey"].run.folder, "--like", files["grey"], *options]
    status, _, err = command(*given)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1
