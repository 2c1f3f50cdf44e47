"""Which of two models is the better one, and what is said of the one that is kept."""

from dataclasses import replace

import pytest

from pyro_fmvae.app.runs.closing_table import KEPT, Moment, SelectedModel, tolerance


def moment(value, right=None, known=100):
    return Moment("joint", 50, 150, value, right, known)


def test_the_greater_bound_is_better():
    assert moment(-10.0).worth_more_than(moment(-11.0))
    assert not moment(-11.0).worth_more_than(moment(-10.0))
    assert not moment(-10.0).worth_more_than(moment(-10.0))
    assert not moment(-10.0).worth_more_than(moment(-10.4), 0.5)
    assert moment(-10.0).worth_more_than(moment(-10.6), 0.5)


@pytest.mark.parametrize(
    ("known", "decides"),
    [(100, True), (10, False)],  # 0.9 and 0.7 are 3.6 standard errors apart, of ten labels 1.1
)
def test_clearly_more_labels_come_before_the_bound(known, decides):
    more, less = moment(-12.0, 0.9, known), moment(-10.0, 0.7, known)
    assert more.worth_more_than(less) is decides
    assert less.worth_more_than(more) is not decides


def test_labels_that_are_all_right_are_no_proof_if_they_are_few():
    assert not moment(-12.0, 1.0, 3).worth_more_than(moment(-10.0, 0.0, 3))
    assert moment(-12.0, 1.0, 30).worth_more_than(moment(-10.0, 0.0, 30))


def test_bounds_of_different_points_are_not_compared():
    """A point without a finite bound counts for more than all others."""
    whole = moment(-20.0)
    one, other, two = (replace(moment(-10.0), left_out=rows) for rows in ((3,), (4,), (3, 4)))
    assert whole.worth_more_than(one) and not one.worth_more_than(whole)
    assert one.worth_more_than(two) and not two.worth_more_than(one)
    assert not one.worth_more_than(other) and not other.worth_more_than(one)
    assert replace(one, value=-9.0).worth_more_than(one)
    parted = replace(KEPT_EARLY, end=replace(KEPT_EARLY.end, left_out=(2,)))
    assert KEPT_EARLY.parted and not parted.parted


@pytest.mark.parametrize(("value", "expected"), [(-1000.0, 0.5), (-20.0, 0.1), (20.0, 0.1), (0.0, 0.0)])
def test_the_end_may_fall_short_by_half_a_nat_or_half_a_percent(value, expected):
    assert tolerance(value) == pytest.approx(expected)


KEPT_EARLY = SelectedModel(
    measure="elbo",
    kept=Moment("joint", 1500, 3200, -17.9),
    end=Moment("joint", 3000, 4700, -82.4),
    points=17,
    training=-14.0,
    training_at_end=-6.0,
    stopped=False,
    advice="fewer iterations",
)


def test_closing_lines_name_the_step_and_warn():
    (kept,), (warning,) = KEPT_EARLY.summary(), KEPT_EARLY.warnings()
    assert kept == "kept: joint step 1,500, validation ELBO -17.90; at the end, joint step 3,000, -82.40"
    assert "ELBO of 17 of them rose from -14.00 to -6.00" in warning
    assert warning.startswith("the model has memorised the training points")
    assert "points fell from -17.90 to -82.40; fewer iterations would help" in warning
    early = replace(KEPT_EARLY, stopped=True)
    (stopped,), (warning,) = early.summary(), early.warnings()
    assert "joint step 3,000, where it was stopped early, -82.40" in stopped
    assert warning.startswith("the model began to memorise the training points")


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"training_at_end": -90.0}, 1),  # training data fared worse, too: nothing was learnt by heart
        ({"training_at_end": -13.95}, 1),  # hardly better
        ({"end": KEPT_EARLY.kept}, 0),
    ],
)
def test_no_warning_without_cause(changes, lines):
    kept = replace(KEPT_EARLY, **changes)
    assert len(kept.summary()) == lines and kept.warnings() == []


def test_written_and_read(tmp_path):
    assert SelectedModel.read(tmp_path) is None
    kept = replace(KEPT_EARLY, kept=replace(KEPT_EARLY.kept, left_out=(2, 5)))
    kept.write(tmp_path)
    assert SelectedModel.read(tmp_path) == kept
    assert [path.name for path in tmp_path.iterdir()] == [KEPT]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kept": {"phase": "joint"}, "end": {}, "parted": false}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / KEPT).write_text(text)
    with pytest.raises(ValueError, match=rf"^run: .*{KEPT} is damaged \("):
        SelectedModel.read(tmp_path)
