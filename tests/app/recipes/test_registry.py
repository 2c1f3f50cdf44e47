"""Which model has which option, how data are named and read, and what the help shows."""

import re

import pytest

from pyro_fmvae.app.cli import run_command
from pyro_fmvae.app.commands.parser import Parser
from pyro_fmvae.app.commands.training import add_arguments
from pyro_fmvae.app.recipes import RECIPES, configure
from pyro_fmvae.app.recipes.bsc import BSC
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.registry import DEFAULT, all_options, data_name, models_with, options_of
from pyro_fmvae.data import SparseOptions
from pyro_fmvae.learn.options import ESTIMATORS, TrainConfig, unset


def subclasses(kind):
    """All subclasses of a class in the package."""
    children = [child for child in kind.__subclasses__() if child.__module__.startswith("pyro_fmvae")]
    return {below for child in children for below in (child, *subclasses(child))}


def test_every_class_is_abstract_or_final_and_every_final_one_is_registered():
    for base, final in (
        (Recipe, set(RECIPES.values())),
        (TrainConfig, {*(r.options for r in RECIPES.values()), *ESTIMATORS.values()}),
    ):
        assert {kind for kind in subclasses(base) if not subclasses(kind)} == final
    assert all(recipe.__abstractmethods__ == frozenset() for recipe in RECIPES.values())
    assert all(kind.__abstractmethods__ for kind in subclasses(Recipe) - set(RECIPES.values()))
    assert Recipe.__abstractmethods__ == {"defaults_for", "build", "phases"}


def test_an_option_of_several_models_is_the_same_option():
    for option in all_options():
        declared = [options_of(model)[option] for model in models_with(option)]
        kinds = {(one.type, str(unset(one)), str(one.metadata["parse"])) for one in declared}
        assert len(kinds) == 1, option


@pytest.mark.parametrize("model", RECIPES)
def test_an_option_of_another_model_names_its_models(model):
    for name in sorted(all_options().keys() - options_of(model)):
        assert configure(model, **{name: unset(all_options()[name])}) == configure(model)
        with pytest.raises(ValueError, match=f"^{name}: an option of .*, not of {model}$"):
            configure(model, **{name: "something"})


def test_what_a_model_has_none_of_may_be_asked_for_as_none():
    assert configure("bsc", pretrain_iterations=0, labels=0.0) == configure("bsc")
    for name, value in (("pretrain_iterations", 1), ("recompute", True)):
        with pytest.raises(ValueError, match=f"^{name}: an option of "):
            configure("bsc", **{name: value})
    with pytest.raises(
        ValueError, match=r"^whiten: an option of bsc, max-sparse and linear-sparse, not of vae$"
    ):
        configure("vae", whiten=False)


def test_options_that_no_model_has():
    with pytest.raises(ValueError, match=r"^nonsense: there is no such option$"):
        configure("vae", nonsense=3)


def shown(capsys, *arguments, flag="--help-all"):
    """Options that a help shows."""
    with pytest.raises(SystemExit) as ended:
        run_command([str(argument) for argument in (*arguments, flag)])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    return text, set(re.findall(r"^  --([\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("model", RECIPES)
@pytest.mark.parametrize("written", ["--model {}", "--model={}"])
def test_help_of_a_model_shows_its_options_and_no_others(capsys, model, written):
    text, options = shown(capsys, "train", *written.format(model).split())
    own = {name.replace("_", "-") for name in options_of(model)}
    assert options == own | {
        *(
            "model",
            "config",
            "print_config",
            "out",
            "resume",
            "max-memory",
            "rank-timeout",
            "debug",
            "help-all",
        )
    }
    assert f"here {model}: {RECIPES[model].title}" in " ".join(text.split())
    assert text.startswith("usage: pyro-fmvae train [options]\n\n")


@pytest.mark.parametrize("arguments", [(), ("--seed", "1"), ("--model",), ("--model", "nonsense")])
def test_help_of_no_model_is_that_of_the_default_one_and_names_the_others(capsys, arguments):
    text, options = shown(capsys, "train") if not arguments[1:] else shown(capsys, "train", "--seed", "1")
    assert "labels" in options and "sparsity" not in options
    assert "give --model NAME --help-all, where NAME is vae, vsc, bsc" in " ".join(text.split())


@pytest.mark.parametrize("model", RECIPES)
def test_the_short_help_fits_a_screen_and_its_examples_are_valid(capsys, model):
    text, options = shown(capsys, "train", "--model", model, flag="--help")
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert f"here {model}: {RECIPES[model].title}" in text and "--help-all" in text
    assert {"data", "model", "max-minutes", "seed", "out", "resume", "config"} < options
    assert len(options) <= 11
    parser = Parser()
    add_arguments(parser, model)
    for name, example in re.findall(r"^  --([\w-]+) (\S+)", text, re.MULTILINE):
        if name != "config":  # which would have to be there
            assert parser.parse_args([f"--{name}", example])[name.replace("-", "_")] is not None


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_is_about_the_model_of_the_configuration_file(capsys, tmp_path, flag):
    file = tmp_path / "mine.yaml"
    file.write_text("model: vsc\nseed: 3\n")
    text, options = shown(capsys, "train", "--config", file, flag=flag)
    assert "here vsc" in " ".join(text.split()) and "labels" not in options
    text, _ = shown(capsys, "train", f"--config={file}", "--model", "bsc", flag=flag)
    assert "here bsc" in " ".join(text.split())
    file.write_text("seed: 3\n")
    text, _ = shown(capsys, "train", "--config", file, flag=flag)
    assert f"here {DEFAULT}" in " ".join(text.split())


def test_the_help_of_all_commands_fits_a_screen(capsys):
    text, _ = shown(capsys, flag="--help")
    assert len(text.splitlines()) <= 40


def test_bars_are_those_that_the_model_could_have_generated():
    names = [data_name(model, "bars") for model in ("bsc", "max-sparse", "linear-sparse")]
    assert names == ["bars-binary", "bars-max", "bars-linear"]
    assert data_name("bsc", "bars-max") == "bars-max"
    assert data_name("vae", "smiley") == "smiley"
    listed = "bars-binary, bars-max, bars-linear"
    for model in ("vae", "fmvae", "vsc"):
        with pytest.raises(ValueError) as error:
            data_name(model, "bars")
        assert str(error.value) == f"data: 'bars' is generated by the model; of {model} it is one of {listed}"


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ("max-sparse", {"patch_size": 8}, True),
        ("max-sparse", {"data": "scenes"}, True),
        ("max-sparse", {"patch_size": 8, "on_off": False}, False),
        ("max-sparse", {}, False),
        ("linear-sparse", {"patch_size": 8}, False),
        ("bsc", {"data": "scenes", "on_off": True}, True),
    ],
)
def test_patches_are_split_for_the_max_rule(model, given, expected):
    config = configure(model, **{"data": "mine", **given})
    assert RECIPES[model].reading(config, config.data).on_off == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": "mine.npz"}, SparseOptions(as_is=True)),
        ({"data": "pictures"}, SparseOptions(as_is=True)),
        ({"data": "bars-linear"}, SparseOptions(as_is=True)),
        ({"data": "mnist"}, SparseOptions()),
        ({"data": "scenes"}, SparseOptions()),
        ({"data": "pictures", "patch_size": 4}, SparseOptions(patch_size=4)),
        (
            {"data": "scenes", "patch_size": 8, "patches": 9, "whiten": False, "on_off": True},
            SparseOptions(patch_size=8, patches=9, whiten=False, on_off=True),
        ),
    ],
)
def test_data_of_a_coder_are_taken_as_they_are_or_cut(options, expected):
    assert BSC.reading(configure("bsc", **options), options["data"]) == expected
