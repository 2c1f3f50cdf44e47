import pytest

from pyro_fmvae.app.runs.duration import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (3599, "59 min 59 s"),
        (3725, "1 h 2 min"),
        (7200, "2 h"),
    ],
)
def test_the_two_greatest_units(seconds, text):
    assert duration(seconds) == text
