from dataclasses import replace

import pytest

from pyro_fmvae.app.commands.factor_settings import parse_codes, parse_factors, parse_settings
from tests.app.commands.labelled_run import RUN

UNLABELLED = RUN.with_options(labels=0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", [0]), ("hair", [1]), ("2,eyes", [2, 0]), (" hair , 0 ", [1, 0]), ("0,1,2", [0, 1, 2])],
)
def test_factors(text, expected):
    assert parse_factors(text, RUN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hat", "factors: expected a factor, 0..2 or one of eyes, hair, got 'hat'"),
        ("3", "factors: expected a factor, 0..2 or one of eyes, hair, got '3'"),
        ("-1", "factors: expected a factor"),
        ("", "factors: expected a factor"),
        ("0,,1", "factors: expected a factor"),
        ("1,hair", "factors: expected different ones, got '1,hair'"),
    ],
)
def test_wrong_factors(text, message):
    with pytest.raises(ValueError) as error:
        parse_factors(text, RUN)
    assert str(error.value).startswith(message)


def test_names_go_before_numbers():
    numbered = replace(
        RUN, recipe=replace(RUN.recipe, label_names=("2", "hair", "hat"), value_names=(("1", "0"), (), ()))
    )
    assert parse_factors("2,hair", numbered) == [0, 1]
    assert parse_settings("2=1,1=1", numbered) == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eyes=1", {0: 1}),
        ("hair=dark,2=4", {1: 1, 2: 4}),
        ("1=blond", {1: 0}),
        (" hair = 2 , eyes=0", {1: 2, 0: 0}),
        ("hair=7", {1: 2}),  # no number of a component, so it is a name
    ],
)
def test_settings(text, expected):
    assert parse_settings(text, RUN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hat=1", "set: expected a factor, 0..2 or one of eyes, hair, got 'hat'"),
        ("hair=3", "set: expected 0..2 or one of blond, dark, 7 for factor 1, got '3'"),
        ("hair=red", "set: expected 0..2 or one of blond, dark, 7 for factor 1, got 'red'"),
        ("2=yes", "set: expected 0..4 for factor 2, got 'yes'"),
        ("eyes=-1", "set: expected 0..1 for factor 0, got '-1'"),
        ("eyes", "set: expected such as hat=1,6=3, got 'eyes'"),
        ("eyes=", "set: expected such as hat=1,6=3"),
        ("=1", "set: expected such as hat=1,6=3"),
        ("", "set: expected such as hat=1,6=3"),
        ("eyes=1,0=0", "set: expected different factors, got '0' a second time"),
    ],
)
def test_wrong_settings(text, message):
    with pytest.raises(ValueError) as error:
        parse_settings(text, RUN, "set")
    assert str(error.value).startswith(message)


def test_without_labels_there_are_only_numbers():
    assert parse_factors("2,0", UNLABELLED) == [2, 0]
    assert parse_settings("1=2", UNLABELLED) == {1: 2}
    with pytest.raises(ValueError, match=r"factors: expected a factor, 0\.\.2, got 'hair'"):
        parse_factors("hair", UNLABELLED)
    with pytest.raises(ValueError, match=r"settings: expected 0\.\.2 for factor 1, got 'dark'"):
        parse_settings("1=dark", UNLABELLED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, [-1, -1, -1]), ("1,blond,*", [1, 0, -1]), (" * , 7 ,4", [-1, 2, 4]), ("0,1,2", [0, 1, 2])],
)
def test_codes(text, expected):
    assert parse_codes(text, RUN).tolist() == [expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,blond", "codes: expected 3 of them, one per factor, got '1,blond'"),
        ("*,red,*", "codes: expected * or 0..2 or one of blond, dark, 7 for factor 1, got 'red'"),
        ("*,*,blond", "codes: expected * or 0..4 for factor 2, got 'blond'"),
    ],
)
def test_wrong_codes(text, message):
    with pytest.raises(ValueError) as error:
        parse_codes(text, RUN)
    assert str(error.value) == message
