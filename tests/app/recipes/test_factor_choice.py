import numpy as np
import pytest

from tests.small_runs import command, succeed

pytestmark = pytest.mark.usefixtures("single_precision")

SHORT = ("--labels=0", "--joint-iterations=2", "--prior-iterations=2", "--eager", "--valid=0.1")


def write(path, clustered):
    """A table of 1,000 rows, two binary properties of which show in four columns each, or of noise."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, (1000, 2)) if clustered else rng.normal(size=(1000, 2))
    mixing = np.kron(np.eye(2), np.ones((1, 4)))
    np.savez(path, x=2 * values @ mixing + 0.3 * rng.normal(size=(1000, 8)), properties=values)


@pytest.mark.parametrize("given", ["--factor-dim=3", "--model=fmvae"])
def test_auto_finds_as_many_factors_as_there_are(tmp_path, given):
    write(tmp_path / "table.npz", True)
    longer = ("--pretrain-iterations=300", "--learning-rate=0.01")
    options = ("--model=fmvae", "--factors=auto", *longer, given, *SHORT)
    out = succeed(
        "train", "--data", tmp_path / "table.npz", "--out", tmp_path / "run", *options, figures=True
    )
    assert "factors found: 2,2\n" in out
    config = (tmp_path / "run" / "config.json").read_text()
    assert '"factors": [2, 2]' in " ".join(config.split()).replace("[ 2, 2 ]", "[2, 2]")
    assert f'"factor_dim": {3 if "3" in given else 16}' in config
    assert (tmp_path / "run" / "figures" / "spectrum.png").exists()


@pytest.mark.parametrize(
    ("iterations", "message"), [(50, "auto expected a direction"), (0, "auto needs --pretrain-iterations")]
)
def test_auto_says_so_where_nothing_is_found(tmp_path, iterations, message):
    write(tmp_path / "table.npz", False)
    options = ("--model=fmvae", "--factors=auto", f"--pretrain-iterations={iterations}", *SHORT)
    status, _, errors = command(
        "train", "--data", tmp_path / "table.npz", "--out", tmp_path / "run", *options
    )
    assert status == 2 and message in errors
