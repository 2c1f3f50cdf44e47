import numpy as np
import pytest
import torch

from pyro_fmvae.figures import em_curves
from tests.figures.generator import overlaps, texts

RECORDS = [
    {"step": 20, "objective": [-3.0, -1.0, -2.0], "noise": [1.0, 0.5, 0.8]},
    {"step": 0, "objective": [-9.0, -8.0, -7.0], "noise": [3.0, 3.5, 3.8]},
    {"step": 10, "objective": [-4.0, -2.5, -1.5], "noise": [2.0, 1.5, 1.8]},
]


def lines(figure):
    """Values and width of every line of each of the two axes."""
    return [
        [(tuple(line.get_ydata()), line.get_linewidth(), line.get_color()) for line in axes.lines]
        for axes in figure.axes
    ]


def test_a_line_per_start_in_the_order_of_steps():
    figure = em_curves(RECORDS)
    objective, noise = lines(figure)
    assert {y for y, *_ in objective} == {(-9, -4, -3), (-8, -2.5, -1), (-7, -1.5, -2)}
    assert {y for y, *_ in noise} == {(3, 2, 1), (3.5, 1.5, 0.5), (3.8, 1.8, 0.8)}
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 10, 20]


@pytest.mark.parametrize(("chosen", "expected"), [(None, 1), (0, 0), (2, 2)])
def test_the_chosen_start_is_bold_and_on_top(chosen, expected):
    figure = em_curves(RECORDS, chosen)
    for key, found in zip(("objective", "noise"), lines(figure), strict=True):
        last = RECORDS[0][key][expected]
        *others, (y, width, colour) = found
        assert y[-1] == last
        assert len(others) == 2 and all(width > 2 * w and c != colour for _, w, c in others)
    objective, noise = RECORDS[0]["objective"][expected], RECORDS[0]["noise"][expected]
    text = f"chosen start: objective {objective:.2f}, noise {noise:g}".replace("-", "−")
    assert any(found.startswith(text) for found in texts(figure))
    assert "2 other starts" in texts(figure)


def test_starts_that_failed_are_not_chosen_and_leave_gaps():
    records = [
        {"step": n, "objective": np.array([np.nan, n, np.inf]), "noise": torch.ones(3)} for n in range(3)
    ]
    (*others, (chosen, *_)), _ = lines(em_curves(records))
    assert chosen == (0, 1, 2)
    assert all(np.isnan(y).all() for y, *_ in others)


def test_one_start_has_no_others():
    found = texts(em_curves([{"step": 3, "objective": [-1.0], "noise": [0.5]}]))
    assert "objective −1.00, noise 0.5" in found
    assert not any("start" in text for text in found)


def test_the_first_iterations_may_lie_outside_the_axes():
    def records(first):
        return [
            {"step": n, "objective": [first if n < 3 else -n / 40], "noise": [5.0 - n / 40]}
            for n in range(40)
        ]

    def says_so(figure):
        return any("outside" in text for text in texts(figure))

    figure = em_curves(records(-1e6))
    low, high = figure.axes[0].get_ylim()
    assert -1.2 < low < -39 / 40 and -3 / 40 < high < 0.1
    assert says_so(figure) and not says_so(em_curves(records(-0.5)))
    low, high = figure.axes[1].get_ylim()
    assert low < 5 - 39 / 40 and high > 5  # all of the noise is in sight
    low, high = em_curves(RECORDS).axes[0].get_ylim()
    assert low < -9 and high > -1


@pytest.mark.parametrize("steps", [1, 2, 300])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("starts", [1, 2, 12])
def test_no_text_overlaps(steps, scale, starts):
    rng = np.random.default_rng(0)
    records = [
        {"step": n, "objective": -scale * rng.random(starts), "noise": scale * rng.random(starts)}
        for n in range(steps)
    ]
    assert overlaps(em_curves(records)) == []


@pytest.mark.parametrize(
    ("records", "chosen", "message"),
    [
        ([], None, "records: expected at least one, got none"),
        ([{"step": 0, "objective": [1.0]}], None, "records: expected step, objective, noise in each"),
        (
            [*RECORDS, {"step": 30, "objective": [1.0], "noise": [1.0]}],
            None,
            r"records: .* shapes \[\(1,\), \(3,\)\]",
        ),
        ([{"step": 0, "objective": 1.0, "noise": 1.0}], None, r"records: .* got shapes \[\(\)\]"),
        ([{"step": 0, "objective": [np.nan], "noise": [1.0]}], None, "records: expected a finite objective"),
        (RECORDS, 3, "chosen: expected a start from 0 to 2, got 3"),
        (RECORDS, -1, "chosen: expected a start from 0 to 2, got -1"),
    ],
)
def test_errors(records, chosen, message):
    with pytest.raises(ValueError, match=message):
        em_curves(records, chosen)
