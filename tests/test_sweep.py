"""The tables of results in examples: which commands a row takes, what its file says, tables and figures."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from pyro_fmvae.app.cli import build_parser
from pyro_fmvae.app.recipes.registry import DEFAULT, all_options, configure
from tests.scripts import imported

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MODULES = (
    *("sweep", "sweep_bounds", "mnist_sweep", "omniglot_sweep", "mnist_clusters", "digits_figure"),
    *("mnist_dynamic", "omniglot_clusters", "generalisation"),
)
SWEEPS = ("mnist_sweep", "omniglot_sweep", "mnist_clusters", "mnist_dynamic", "omniglot_clusters")
PRETRAINED, JOINT = 100, 40


@pytest.fixture(scope="module")
def s():
    """The scripts, which import each other by their bare names."""
    with imported(EXAMPLES, MODULES) as modules:
        yield modules


class Program:
    """Stands for the program: makes the folders of runs and prints what it was asked, as measures."""

    def __init__(self):
        self.calls = []
        self.failing = None  # an argument of a command that fails

    def __call__(self, *arguments):
        assert all(isinstance(argument, str) for argument in arguments)
        self.calls.append(arguments)
        if self.failing in arguments:
            raise SystemExit(3)
        command, *rest = arguments
        if command == "evaluate":
            place = rest.index("--data-root")
            return json.dumps({"elbo": -90.5, "asked": [*rest[1:place], *rest[place + 2 :]]})
        given = dict(zip(rest[::2], rest[1::2], strict=True))
        if "--resume" not in given:
            make_run(Path(given["--out"]), given)
        return "1,000 points: ELBO\n"

    def commands(self):
        """Each call in short: the command and the run, or what is resumed."""
        return [
            f"{c[0]} {Path(c[1]).name}" if c[0] == "evaluate" else f"{place[2:]} {Path(given[place]).name}"
            for c in self.calls
            for given in [dict(zip(c[1::2], c[2::2], strict=False))]
            for place in ["--resume" if "--resume" in given else "--out"]
        ]


def make_run(folder, given):
    start = "--pretrained" not in given
    config = {
        "data": "mnist",
        "model": given.get("--model", "fmvae"),
        "seed": int(given["--seed"]),
        "pretrained": given.get("--pretrained"),
        "factors": [int(size) for size in given.get("--factors", "1").split(",")],
        "factor_dim": 64,
        "pretrain_iterations": PRETRAINED if start else 5,
        "prior_iterations": 3,
        "joint_iterations": 0 if start else JOINT,
        "refine_iterations": 0,
        "device": "cpu",
        "learning_rate": 0.1,
        "derived": {"num_data": 7, "versions": {"torch": "2.0"}},
    }
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "state.safetensors").touch()
    (folder / "config.json").write_text(json.dumps(config))
    records = [{"step": 0, "seconds": 1.5}, {"step": JOINT, "seconds": 36.25}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def program(s, monkeypatch):
    program = Program()
    monkeypatch.setattr(s.sweep, "call", program)
    return program


@pytest.fixture
def small(s, program, tmp_path):
    """Two rows that start from a third."""
    common = {"data": "mnist", "data_root": "/secret/data", "seed": 2}
    evaluate = {"bounds": {"split": "valid", "num_samples": 5}, "tight": {"points": 500}}
    rows = [
        s.sweep.Row("start", {**common, "model": "vae"}),
        s.sweep.Row("one", {**common, "factors": (4,)}, evaluate, "start", {"prior": "mixture"}),
        s.sweep.Row("other", {**common, "factors": (2, 2)}, evaluate, "start"),
    ]
    return s.sweep.Sweep(rows, tmp_path / "rows")


def chosen(s, monkeypatch, *arguments):
    """Options as the command line gives them."""
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    return s.sweep.arguments("about", "out", s.sweep_bounds.add_options)


def rows_of(s, script, options):
    module = getattr(s, script)
    return list((module.rows if hasattr(module, "rows") else module.SETTING.rows)(options))


def width(row):
    """Dimensions of z."""
    return len(row.train.get("factors", (1,))) * row.train["factor_dim"]


# --- running rows


def test_the_row_that_others_start_from_is_run_first_and_once(small, program):
    small.run()
    assert program.commands() == [
        *("out start", "out one", "evaluate one", "evaluate one"),
        *("out other", "evaluate other", "evaluate other"),
    ]
    assert sorted(path.name for path in small.out.glob("*.json")) == ["one.json", "other.json"]
    train = dict(zip(program.calls[1][1::2], program.calls[1][2::2], strict=True))
    assert train["--pretrained"] == str(small.out / "runs" / "start")
    assert train["--out"] == str(small.out / "runs" / "one")
    assert train["--data-root"] == "/secret/data" and train["--factors"] == "4"
    asked = ("--split", "valid", "--num-samples", "5")
    assert program.calls[2] == ("evaluate", train["--out"], *asked, "--data-root", "/secret/data")


def test_a_finished_row_is_not_run_again(s, small, program):
    small.run()
    before = {path: path.read_bytes() for path in small.out.glob("*.json")}
    program.calls.clear()
    s.sweep.Sweep(list(small.rows.values()), small.out).run(["one", "other"])
    assert program.calls == []
    assert {path: path.read_bytes() for path in small.out.glob("*.json")} == before


def test_an_interrupted_run_is_resumed(small, program):
    begin(small)
    small.run(["one"])
    assert program.commands() == ["resume start", "resume one", "evaluate one", "evaluate one"]
    folder = str(small.out / "runs" / "one")
    assert program.calls[1] == ("train", "--resume", folder, "--data-root", "/secret/data")


def begin(sweep):
    """The folders of a row's run and of the one that it starts from, both with checkpoints."""
    for name, given in (
        ("start", {"--model": "vae"}),
        ("one", {"--pretrained": "/x/runs/start", "--factors": "4"}),
    ):
        make_run(sweep.runs / name, {"--seed": "2", **given})


FILES = {  # what is left of a run that was killed early
    "config": ["config.json"],
    "log": ["config.json", "train.log", "metrics.jsonl", "checkpoint/.state.safetensors.1.tmp"],
    "temporary": [".config.json.1.tmp"],
    "nothing": [],
}


@pytest.mark.parametrize("left", FILES)
def test_a_run_that_was_killed_before_anything_was_saved_is_begun_anew(small, program, left):
    begin(small)
    folder = small.runs / "one"
    keep(folder, FILES[left])
    if left == "log":
        (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    small.run(["one"])
    assert program.commands() == ["resume start", "out one", "evaluate one", "evaluate one"]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", "config.json", "metrics.jsonl"]


def keep(folder, files):
    """Make these all that is in a run's folder."""
    config = (folder / "config.json").read_text()
    shutil.rmtree(folder)
    folder.mkdir()
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(config)


def test_a_run_that_was_begun_with_other_options_is_not_taken_for_the_row(small, program):
    make_run(small.out / "runs" / "start", {"--seed": "3", "--model": "vae"})
    with pytest.raises(SystemExit, match=r"rows: .*start was begun with seed 3, not 2$"):
        small.run(["one"])
    assert program.calls == []


def test_a_row_that_was_made_with_other_options_is_not_taken_for_this_one(s, small, program):
    small.run(["one"])
    row = small.rows["one"]
    other = replace(row, evaluate={"bounds": {"split": "test"}, "tight": {"points": 500}})
    with pytest.raises(SystemExit, match=r"rows: .*one.json was made with other options, by .*valid.*test"):
        s.sweep.Sweep([small.rows["start"], other], small.out).run(["one"])
    restarted = replace(small.rows["start"], train={"data": "mnist"})
    s.sweep.Sweep([restarted, row], small.out).run(["one"])  # what it started from is in the file


@pytest.mark.parametrize(("failing", "calls"), [("vae", 1), ("4", 2), ("500", 4)])
def test_a_failing_command_stops_it_and_leaves_no_file(small, program, failing, calls):
    program.failing = failing
    with pytest.raises(SystemExit) as stopped:
        small.run()
    assert stopped.value.code == 3
    assert len(program.calls) == calls
    assert list(small.out.glob("*.json")) == [] and small.results() == []


@pytest.mark.parametrize("names", [["five"], ["one", "five"], [""]])
def test_unknown_names_are_refused_before_anything_is_run(small, program, names):
    with pytest.raises(SystemExit) as refused:
        small.run(names)
    assert refused.value.code == f"rows: expected some of start, one, other, got {names[-1]}"
    assert program.calls == []


def test_what_the_file_of_a_row_says(s, small, monkeypatch):
    monkeypatch.setattr(s.sweep, "machine", lambda device: f"a fast {device}")
    small.run(["one"])
    text = (small.out / "one.json").read_text()
    assert text.endswith("}\n") and str(small.out) not in text and "secret" not in text
    assert json.loads(text) == {
        "name": "one",
        "prior": "mixture",
        "seed": 2,
        "factors": [4],
        "factor_dim": 64,
        "pretrain_iterations": PRETRAINED + 5,  # with those of the run that it starts from
        "prior_iterations": 3,
        "joint_iterations": JOINT,
        "refine_iterations": 0,
        "seconds": 2 * 36.25,
        "machine": "a fast cpu",
        "versions": {"torch": "2.0"},
        "commands": [
            "pyro-fmvae train --data mnist --data-root DIR --seed 2 --model vae --out runs/start",
            "pyro-fmvae train --data mnist --data-root DIR --seed 2 --factors 4 --pretrained runs/start"
            " --out runs/one",
            "pyro-fmvae evaluate runs/one --split valid --num-samples 5",
            "pyro-fmvae evaluate runs/one --points 500",
        ],
        "result": {
            "bounds": {"elbo": -90.5, "asked": ["--split", "valid", "--num-samples", "5"]},
            "tight": {"elbo": -90.5, "asked": ["--points", "500"]},
        },
    }


def test_a_row_may_start_from_one_that_starts_from_another(s, small, program):
    last = s.sweep.Row("last", {**small.rows["start"].train}, {"bounds": {}}, "one")
    s.sweep.Sweep([*small.rows.values(), last], small.out).run(["last"])
    assert program.commands() == [
        *("out start", "out one", "evaluate one", "evaluate one"),
        *("out last", "evaluate last"),
    ]
    content = json.loads((small.out / "last.json").read_text())
    assert (
        content["pretrain_iterations"] == PRETRAINED + 5 + JOINT + 5 and content["joint_iterations"] == JOINT
    )
    assert content["seconds"] == 3 * 36.25
    assert [text[text.index("runs/") :] for text in content["commands"]] == [
        "runs/start",
        "runs/start --out runs/one",
        "runs/one --out runs/last",
        "runs/last",
    ]


# --- the parts


def test_options_of_the_command_line(s):
    values = {"factors": (2, 30), "autocast": True, "eager": False, "final_learning_rate": 1e-5, "data": "X"}
    assert s.sweep.options(values) == [
        *("--factors", "2,30", "--autocast", "true", "--eager", "false"),
        *("--final-learning-rate", "1e-05", "--data", "X"),
    ]
    assert s.sweep.options({}) == []


def test_scaled_iterations_are_at_least_one_but_zero_stays_zero(s):
    train = {"pretrain_iterations": 1000, "joint_iterations": 0, "seed": 5, "prior_restarts": 12}
    assert s.sweep.scaled(train, 0.0301) == {**train, "pretrain_iterations": 30}
    assert s.sweep.scaled(train, 1e-9) == {**train, "pretrain_iterations": 1}
    assert s.sweep.scaled(train, 1.0) == train
    assert s.sweep.scaled({"restart_every": 3000, "reseed_every": 0}, 0.01) == {
        "restart_every": 30,
        "reseed_every": 0,
    }
    few = s.sweep.scaled({"restart_every": 3000, "joint_iterations": 30_000}, 1e-5)
    assert s.sweep.options(few) == ["--restart-every", "0", "--joint-iterations", "1"]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes `python -m pyro_fmvae` another program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path / "pyro_fmvae.py"


def test_a_command_that_fails_ends_the_sweep_with_its_exit_status(s, stand_in):
    stand_in.write_text("import sys; print(sys.argv[1:]); sys.exit(len(sys.argv) - 1)")
    assert s.sweep.call() == "[]\n"
    with pytest.raises(SystemExit) as stopped:
        s.sweep.call("evaluate", "5")
    assert stopped.value.code == 2


# --- scripts


@pytest.mark.parametrize("script", SWEEPS)
def test_rows_have_names_of_their_own_and_start_from_earlier_ones(s, monkeypatch, script):
    rows = rows_of(s, script, chosen(s, monkeypatch))
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    for place, row in enumerate(rows):
        assert row.name.endswith(f"-seed{row.train['seed']}")
        if row.name.startswith("pretrained"):
            assert row.pretrained is None and not row.evaluate and row.train["model"] == "vae"
            continue
        start = rows[names.index(row.pretrained)]
        assert names.index(row.pretrained) < place and start.train["seed"] == row.train["seed"]
        assert row.evaluate and all(given["split"] == "valid" for given in row.evaluate.values())
        assert row.train.get("model") != "vae" or "factors" not in row.train
        assert width(row) == width(start)


@pytest.mark.parametrize("script", SWEEPS)
def test_the_program_takes_the_options_of_every_row(s, monkeypatch, script):
    options = ("--data-root", "there", "--device", "cpu", "--split", "test", "--scale", "0.01")
    parser = build_parser()
    rows = rows_of(s, script, chosen(s, monkeypatch, *options))
    for row in rows if script != "mnist_clusters" else rows[:13]:  # the others differ in the seed
        parsed = parser.parse_args(["train", *s.sweep.options(row.train), "--out", "runs/x"]).train
        options = {name: getattr(parsed, name) for name in all_options()}
        config = configure(parsed.model or DEFAULT, **options)
        assert {name: getattr(config, name) for name in row.train} == dict(row.train)
        assert (config.data_root, config.device) == ("there", "cpu")
        for given in row.evaluate.values():
            asked = parser.parse_args(["evaluate", "runs/x", *s.sweep.options(given)]).evaluate
            assert {name: getattr(asked, name) for name in given} == dict(given)
            assert asked.split == "test"


def test_rows_of_the_bounds(s, monkeypatch):
    mixtures = {(8,): (0,), (2,): (0, 1), (6, 6): (0,)}
    setting = s.sweep_bounds.Bounds("data", mixtures, long={(8,): (0, 2), (6, 6): (0,)})
    rows = {row.name: row for row in setting.rows(chosen(s, monkeypatch))}
    assert list(rows) == [
        *("pretrained-seed0", "pretrained-seed1", "pretrained-seed2", "K8-seed0", "K2-seed0", "K2-seed1"),
        *("K6x6-seed0", "normal-seed0", "normal-seed1"),
        *("K8-long-seed0", "K8-long-seed2", "K6x6-long-seed0"),
    ]
    assert rows["K6x6-seed0"].train["factors"] == (6, 6)
    assert rows["K8-long-seed0"].train["joint_iterations"] > rows["K8-seed0"].train["joint_iterations"]
    assert rows["normal-seed0"].train["joint_iterations"] == rows["K8-seed0"].train["joint_iterations"]
    assert rows["normal-seed1"].about["prior"] == "N(0, I)" and rows["K2-seed1"].about["prior"] == "mixture"
    assert list(rows["K2-seed1"].evaluate) == ["bounds", "tight"]
    few = s.sweep_bounds.Bounds("data", {(2,): (0,)}).rows(chosen(s, monkeypatch))
    assert [row.name for row in few] == ["pretrained-seed0", "K2-seed0", "normal-seed0"]


def test_main_lists_runs_and_reports(s, small, program, monkeypatch, capsys, tmp_path):
    out = tmp_path / "rows"

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["script", "--out", str(out), *arguments])
        rows = list(small.rows.values())
        s.sweep.main("about", "out", lambda _: rows, lambda records, path: f"{len(records)} {path}")
        return capsys.readouterr().out

    assert main("--list") == "start\none\nother\n"
    assert main("--report") == "0 None\n" and program.calls == []
    shown = main("--rows", "one", "--figure", "f.png").splitlines()
    assert (
        shown[0]
        == "start: pyro-fmvae train --data mnist --data-root DIR --seed 2 --model vae --out runs/start"
    )
    assert shown[-1] == "1 f.png"
    assert program.commands() == ["out start", "out one", "evaluate one", "evaluate one"]


# --- tables and figures


def record(factors=(16,), prior="mixture", seed=0, joint=40_000, elbo=-88.0):
    bounds = {"elbo": elbo, "reconstruction": -63.0, "kl_z": 24.25, "kl_r": 0.755, "collapsed": elbo + 0.5}
    return {
        "prior": prior,
        "factors": factors and list(factors),
        "seed": seed,
        "pretrain_iterations": 10_000,
        "joint_iterations": joint,
        "seconds": 5400.0,
        "result": {
            "bounds": {**bounds, "used_components": [] if factors is None else [k - 1 for k in factors]},
            "tight": {"elbo": elbo - 3, "importance_weighted": elbo + 1},
        },
    }


def normal(**changes):
    return record(None, "N(0, I)", **changes)


def test_table_of_bounds(s):
    lines = s.sweep_bounds.table([record(), record((8, 4), seed=1), normal(elbo=-90)]).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0][:5] == ["prior", "factors", "seed", "iterations", "ELBO (eq. 11)"]
    assert rows[0][5:] == ["reconstruction", "KL[z]", "KL[r]", "in use", "collapsed", "IW gain", "hours"]
    assert rows[1] == ["---"] * len(rows[0])
    numbers = ["10,000 + 40,000", "-88.00", "-63.00", "24.25", "0.76"]
    assert rows[2] == ["mixture", "16", "0", *numbers, "15", "-87.50", "4.00", "1.50"]
    assert rows[3] == ["mixture", "8 and 4", "1", *numbers, "7, 3", "-87.50", "4.00", "1.50"]
    numbers[1] = "-90.00"
    assert rows[4] == ["N(0, I)", "", "0", *numbers, "", "-89.50", "4.00", "1.50"]
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


SETS = {
    "two budgets and a baseline": [
        *(record((k,), seed=seed, elbo=-88 + 0.1 * k - seed) for k in (64, 2, 16) for seed in (0, 1, 2)),
        *(record((64,), joint=100_000, elbo=-80), record((8, 8))),
        *(normal(elbo=-91), normal(seed=1, elbo=-90)),
    ],
    "one budget": [record((2,)), record((512,), elbo=-87)],
    "one row": [record((256,))],
    "only a baseline": [normal()],
}


@pytest.fixture
def axes(s, monkeypatch):
    """The panels of figures, which stay open."""
    kept = []
    monkeypatch.setattr(s.sweep_bounds.plt, "close", kept.append)
    yield lambda: kept[-1].axes
    monkeypatch.undo()
    for shown in kept:
        plt.close(shown)


@pytest.mark.parametrize("published", [{512: -85.77}, {}])
@pytest.mark.parametrize("name", SETS)
def test_figure_3_is_drawn_from_whatever_rows_there_are(s, axes, tmp_path, name, published):
    s.sweep_bounds.figure_3(SETS[name], tmp_path / "f.png", published)
    with Image.open(tmp_path / "f.png") as image:
        assert image.format == "PNG" and image.width > 3 * image.height
        panels = np.array_split(np.asarray(image.convert("L")), 4, axis=1)
    assert all((panel < 128).sum() > 500 for panel in panels)  # ink
    sizes = {r["factors"][0] for r in SETS[name] if r["factors"] and len(r["factors"]) == 1} | set(published)
    for axis in axes():
        assert [label.get_text() for label in axis.get_xticklabels()] == [str(k) for k in sorted(sizes)]
    assert any(line.get_marker() == "*" for line in axes()[0].lines) == bool(published)
    assert not any(line.get_marker() == "*" for axis in axes()[1:] for line in axis.lines)


def test_figure_3_joins_means_over_seeds_and_shows_the_baselines_range(s, axes, tmp_path):
    s.sweep_bounds.figure_3(SETS["two budgets and a baseline"], tmp_path / "f.png", {})
    elbo, *_ = axes()
    lines = {line.get_label(): line.get_xydata().tolist() for line in elbo.lines}
    assert np.allclose(lines["mixture, 40,000 iterations"], [[2, -88.8], [16, -87.4], [64, -82.6]])
    assert lines["mixture, 100,000 iterations"] == [[64, -80]]
    assert [y for _, y in lines["N(0, I), 40,000 iterations"]] == [-90.5, -90.5]
    (band,) = elbo.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == (-91, -90)
    assert sorted(text.get_text() for text in elbo.figure.legends[0].texts) == sorted(
        label for label in lines if not label.startswith("_")
    )


def test_rows_of_generalisation_differ_in_what_they_measure_alone(s, monkeypatch):
    rows = {row.name: row for row in s.generalisation.rows(chosen(s, monkeypatch, "--split", "test"))}
    assert len(rows) == 2 * (1 + len(s.generalisation.KINDS))
    measured = {"final_learning_rate", "weight_decay", "augmentation"}
    parser = build_parser()
    for seed in s.generalisation.SEEDS:
        start = rows[f"pretrained-seed{seed}"]
        assert (start.pretrained, start.evaluate, start.train["seed"]) == (None, {}, seed)
        of_seed = [rows[f"{name}-seed{seed}"] for name in s.generalisation.KINDS]
        assert {row.pretrained for row in of_seed} == {start.name}
        others = [{k: v for k, v in row.train.items() if k not in measured} for row in of_seed]
        assert all(other == others[0] for other in others)
        learning = [tuple(row.train.get(name, 0) for name in sorted(measured)) for row in of_seed]
        assert learning == [(0, 1e-3, 0), (0, 1e-5, 0), (0, 1e-5, 0.05), (0.33, 1e-5, 0), (0.33, 1e-5, 0.05)]
        for row in of_seed:
            assert [given["split"] for given in row.evaluate.values()] == ["test", "train"]
            parsed = parser.parse_args(["train", *s.sweep.options(row.train), "--out", "x"]).train
            assert {name: getattr(parsed, name) for name in row.train} == dict(row.train)


def test_summary_of_generalisation(s):
    record = {
        "kind": "decay",
        "seed": 1,
        "learning": {"final_learning_rate": 1e-5, "weight_decay": 0.05},
        "result": {
            "held out": {"elbo": -90.25, "used_components": [7]},
            "training": {"elbo": -88.0, "used_components": [8]},
        },
        "seconds": 400.0,
    }
    head, rule, line = s.generalisation.report([record], None).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line == "| decay | 1 | 1e-05 | 0.05 | 0 | -90.25 | -88.00 | 2.25 | 7 | 7 |"


def test_summary_of_clusters(s):
    def unlabelled(kind, elbo, accuracy):
        measures = {"accuracy": accuracy, "majority": accuracy + 0.01, "nmi": accuracy - 0.1}
        return {
            "kind": kind,
            "result": {"result": {"elbo": elbo, "accuracy": {}, "clustering": {"digit": measures}}},
        }

    def labelled(elbo, accuracy):
        return {
            "kind": "labels",
            "result": {"result": {"elbo": elbo, "accuracy": {"digit": accuracy}, "clustering": {}}},
        }

    def viewed(elbo, of_views, accuracy):
        record = unlabelled("K10-views", elbo, accuracy)
        record["result"]["result"]["views"] = {"elbo": of_views}
        return record

    records = [
        labelled(-99, 0.95),
        *(unlabelled("K20", elbo, a) for elbo, a in ((-100, 0.5), (-97, 0.75), (-98, 0.875), (-99, 0.25))),
        unlabelled("K10", -90, 0.5),
        viewed(-90, -80, 0.5),
        viewed(-80, -90, 0.25),
    ]
    head, rule, *lines = s.mnist_clusters.report(records, None).splitlines()
    assert head.count("|") == rule.count("|") == 8
    assert lines == [
        "| K10 | 1 | accuracy | 0.5000 | 0.5000 | 0.5000 | 0.5000 |",
        "| K10 | 1 | majority | 0.5100 | 0.5100 | 0.5100 | 0.5100 |",
        "| K10 | 1 | nmi | 0.4000 | 0.4000 | 0.4000 | 0.4000 |",
        "| K10-views | 2 | accuracy | 0.3750 | 0.2500 | 0.5000 | 0.5000 |",
        "| K10-views | 2 | majority | 0.3850 | 0.2600 | 0.5100 | 0.5100 |",
        "| K10-views | 2 | nmi | 0.2750 | 0.1500 | 0.4000 | 0.4000 |",
        "| K20 | 4 | accuracy | 0.6250 | 0.2500 | 0.8750 | 0.7500 |",
        "| K20 | 4 | majority | 0.6350 | 0.2600 | 0.8850 | 0.7600 |",
        "| K20 | 4 | nmi | 0.5250 | 0.1500 | 0.7750 | 0.6500 |",
        "| labels | 1 | accuracy | 0.9500 | 0.9500 | 0.9500 | 0.9500 |",
    ]
    assert len(s.mnist_clusters.report([], None).splitlines()) == 2


def clusters(kind, accuracy):
    named = "labels" in kind
    measures = {"accuracy": accuracy, "majority": accuracy, "nmi": accuracy}
    result = {
        "elbo": -90.0,
        "accuracy": {"digit": accuracy} if named else {},
        "clustering": {} if named else {"digit": measures},
    }
    return {"kind": kind, "split": "valid", "result": {"result": result}}


def test_figure_of_digits_has_a_dot_for_each_seed_and_the_mean(s, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(s.digits_figure.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    records = [
        *(clusters("K10", a) for a in (0.9, 0.8)),
        *(clusters("labels-views-10", a) for a in (0.98, 0.9, 0.94)),
        *(clusters("labels-views", a) for a in (0.96, 1.0)),  # no logarithm of its error
        *(clusters("K20", 0.5), clusters("labels-views-20", 0.5)),
    ]
    s.mnist_clusters.report(records, tmp_path / "f.png")
    (axes,) = drawn[0].axes
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    shift = s.digits_figure.SHIFTS
    np.testing.assert_allclose(lines["ours, one view"], [[shift["one view"], 0.15]])
    np.testing.assert_allclose(lines["ours, several views"], [[10, 0.06], [100, 0.02]])
    dots = [line.get_xydata() for line in axes.lines if line.get_alpha() == 0.5]
    assert [len(seeds) for seeds in dots] == [2, 3, 2]
    np.testing.assert_allclose(
        np.concatenate(dots)[2:], [[10, 0.02], [10, 0.1], [10, 0.06], [100, 0.04], [100, 0.001]]
    )
    assert [text.get_text() for text in axes.texts] == [name for name, *_ in s.digits_figure.PUBLISHED]
    assert "validation images" in drawn[0].get_supxlabel()
    s.mnist_clusters.report([], tmp_path / "f.png")
    assert len(drawn) == 1


def test_likelihoods_of_dynamic_digits_stand_beside_published_ones(s):
    measures = {"elbo": -86.0, "importance_weighted": -82.25, "used_components": [70]}
    about = {"network": "mlp", "split": "test", "seconds": 1800, "result": {"tight": measures}}
    records = [{**about, "prior": "K512"}, {**about, "prior": "normal"}]
    *_, first, second, old, vamp, exemplar = s.mnist_dynamic.report(records, None).splitlines()
    assert first == "| mlp | K512 | test | -86.00 | -82.25 | 70 | 0.50 |"
    assert second == "| mlp | normal | test | -86.00 | -82.25 |  | 0.50 |"
    assert all(text.startswith("| published |") for text in (old, vamp, exemplar)) and "-84.45" in old


def test_clusters_of_characters_are_means_over_seeds(s):
    def record(kind, share):
        measures = {"ami": share, "ari": share / 2}
        return {
            "kind": kind,
            "result": {
                "result": {
                    "elbo": -100 * share,
                    "clustering": dict.fromkeys(s.omniglot_clusters.LABELS, measures),
                }
            },
        }

    records = [record("plain", 0.5), record("views", 0.6), record("views", 0.8)]
    _, _, plain, views = s.omniglot_clusters.report(records, None).splitlines()
    assert plain == "| plain | 1 | -50.00 | 0.500 | 0.250 | 0.500 | 0.250 |"
    assert views == "| views | 2 | -70.00 | 0.700 | 0.350 | 0.700 | 0.350 |"
