import pytest

from pyro_fmvae.infer import RobbinsMonro


@pytest.mark.parametrize(("delay", "forgetting"), [(2000.0, 0.7), (2000.0, 0.52), (0.0, 1.0)])
def test_values(delay, forgetting):
    rate = RobbinsMonro(delay, forgetting)
    for step in (0, 1, 10, 100_000):
        assert rate(step) == pytest.approx(1 / (delay + step + 1) ** forgetting, rel=1e-14)
        assert 0 < rate(step) <= 1


def test_values_of_the_paper():
    """Not the 0.01 that the paper says its rates begin with."""
    assert RobbinsMonro(2000, 0.7)(0) == pytest.approx(0.0049, abs=5e-5)
    assert RobbinsMonro(2000, 0.52)(0) == pytest.approx(0.0192, abs=5e-5)


def test_first_step_rescales_all_steps():
    plain, rescaled = RobbinsMonro(10, 0.6), RobbinsMonro(10, 0.6, first_step=0.01)
    assert rescaled(0) == 0.01
    for step in (0, 1, 50):
        assert rescaled(step) / rescaled(0) == pytest.approx(plain(step) / plain(0), rel=1e-14)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("delay", -1.0, "delay: expected a finite number >= 0, got -1.0"),
        ("delay", float("nan"), "delay: expected a finite number >= 0, got nan"),
        ("delay", float("inf"), "delay: expected a finite number >= 0, got inf"),
        ("forgetting", 0.5, r"forgetting: expected a number in \(1/2, 1\], got 0.5"),
        ("forgetting", 1.01, r"forgetting: expected a number in \(1/2, 1\], got 1.01"),
        ("forgetting", -0.7, r"forgetting: expected a number in \(1/2, 1\], got -0.7"),
        ("first_step", 0.0, r"first_step: expected a number in \(0, 1\], got 0.0"),
        ("first_step", 1.5, r"first_step: expected a number in \(0, 1\], got 1.5"),
    ],
)
def test_arguments_out_of_range(argument, value, message):
    with pytest.raises(ValueError, match=message):
        RobbinsMonro(**{argument: value})
