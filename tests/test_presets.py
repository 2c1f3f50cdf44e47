"""Configuration files of published schedules: each trains, scaled down to a few steps."""

import json
from pathlib import Path

import pytest

from tests.small_runs import succeed, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

PRESETS = sorted((Path(__file__).resolve().parent.parent / "examples" / "presets").glob("*.yaml"))
SMALL = "--hidden 8 --pretrain-iterations 6 --joint-iterations 14 --batch-size 16 --eager true --device cpu"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_preset(preset, tmp_path):
    files = write_files(tmp_path)
    data = {"vsc-har": files["table"], "vsc-fashion-mnist": files["grey"], "vsc-celeba": files["colour"]}
    given = ["--data", data[preset.stem]] if preset.stem in data else []
    succeed("train", "--config", preset, *given, *SMALL.split(), "--out", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"] == "vsc"
    assert config["sparse_prior"] == "select"
    begin, end = config["warm_up"]
    assert 0 < begin < end < 1
    assert config["joint_learning_rate"] == pytest.approx(config["learning_rate"] / 10)
    assert config["final_learning_rate"] in (
        None,
        config["joint_learning_rate"],
    )  # the source's does not fall
    phases = [
        json.loads(line)["phase"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert list(dict.fromkeys(phases)) == ["pretrain", "joint"]


def test_there_are_presets():
    assert len(PRESETS) == 5
