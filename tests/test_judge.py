"""The judge of examples/benchmarks: what it learns, and its verdicts on a model that makes no mistakes."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_fmvae.data import Split, whole
from pyro_fmvae.evaluate import to_location, transport
from tests.evaluate.exact import PROPERTIES, SIZES, STRIPES, exact_model, images, random_codes
from tests.models.small import small_model
from tests.scripts import imported
from tests.small_runs import train

with imported(Path(__file__).parents[1] / "examples" / "benchmarks", ["judge"]) as scripts:
    script = scripts.judge
train_judge, judged_edits, judged_generation = (
    script.train_judge,
    script.judged_edits,
    script.judged_generation,
)


class ExactJudge(script.Judge):
    """Rounds the stripes' means; ``mistaken`` swaps its answers to two properties."""

    mistaken = False

    def predict(self, x):
        values = torch.stack([x[:, rows].mean((1, 2)) for rows in STRIPES], -1).round().long()
        values = values.clamp(min=0)[:, list(PROPERTIES)]
        return values[:, [1, 0, 2]] if self.mistaken else values


def exact_judge():
    return ExactJudge((16, 16), [SIZES[i] for i in PROPERTIES])


VALUES = (2, 3)


def squares(n, seed=0, colour=False, binary=False):
    """16×18 images of one square, on the left or the right side (property 0), of three sizes (property 1)."""
    rng = np.random.default_rng(seed)
    side, size = rng.integers(0, 2, n), rng.integers(0, 3, n)
    x = np.zeros((n, 16, 18), dtype=np.uint8)
    for image, left, width in zip(x, side, 3 + 2 * size, strict=True):
        row, column = rng.integers(0, 8), 9 * left + rng.integers(0, 3)
        image[row : row + width, column : column + width] = 255
    stored = torch.from_numpy(x > 0) if binary else torch.from_numpy(x)
    if colour:
        stored = stored.unsqueeze(-1).expand(-1, -1, -1, 3).contiguous()
    return Split(stored, torch.from_numpy(np.stack([side, size], 1)), signed=not binary)


@pytest.mark.parametrize("kind", [{}, {"colour": True}, {"binary": True}])
def test_a_judge_learns_what_can_be_seen(kind):
    judge = train_judge(squares(400, **kind), VALUES, iterations=100)
    assert not judge.training
    assert not any(p.requires_grad for p in judge.parameters())
    x, labels = whole(squares(200, seed=1, **kind))
    assert (judge.accuracy(x, labels) > 0.95).all()
    predicted = judge.predict(x)
    assert (predicted.dtype, predicted.shape) == (torch.int64, (200, 2))


def test_unknown_labels_are_masked():
    train = squares(400)
    labels = train.labels.clone()
    labels[::2, 0] = -1
    labels[1::2, 1] = -1
    labels[:100] = -1
    x, truth = whole(squares(200, seed=1))
    judge = train_judge(Split(train.x, labels, signed=True), VALUES, iterations=100)
    assert (judge.accuracy(x, truth) > 0.95).all()
    hidden = truth.clone()
    hidden[:150, 0] = -1
    hidden[:, 1] = -1
    accuracy = judge.accuracy(x, hidden)
    assert accuracy[0] == (judge.predict(x[150:])[:, 0] == truth[150:, 0]).double().mean()
    assert accuracy[1].isnan()


def test_an_exact_model_generates_what_is_intended():
    generation = judged_generation(exact_model(), exact_judge(), 300)
    assert generation.images.shape == (300, 16, 16)
    assert generation.accuracy.tolist() == [1.0, 1.0]
    for column, size in enumerate((2, 3)):  # uniform: within four deviations
        counts = generation.intended[:, column].bincount(minlength=size)
        assert (counts - 300 / size).abs().max() < 4 * (300 / size) ** 0.5
    together = (3 * generation.intended[:, 0] + generation.intended[:, 1]).bincount(minlength=6)
    assert (together - 50).abs().max() < 4 * 50**0.5  # and independent
    # What nothing was intended for is drawn from the model: both components of factor 2 are as likely.
    free = generation.images[:, 12:].mean((1, 2)).round()
    assert 0.3 < free.mean() < 0.7


def test_generation_that_fails_is_told():
    judge = exact_judge()
    judge.mistaken = True
    generation = judged_generation(exact_model(), judge, 300)
    expected = (generation.intended[:, [1, 0]] == generation.intended).double().mean(0)
    assert torch.equal(generation.accuracy, expected)
    assert generation.accuracy.max() < 0.6
    shifted = judged_generation(exact_model(offset=1.0), exact_judge(), 50)
    assert shifted.accuracy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("placement", [to_location, transport])
@pytest.mark.parametrize("known", [True, False])
def test_an_exact_model_is_edited_as_asked(placement, known):
    codes = random_codes(60)
    x, _ = images(codes)
    labels = codes[:, list(PROPERTIES)]
    edits = judged_edits(
        exact_model(), exact_judge(), x, labels if known else -torch.ones_like(labels), placement=placement
    )
    assert edits.flipped.tolist() == [1.0, 1.0]
    assert edits.kept.tolist() == edits.kept_of_original.tolist() == [1.0, 1.0]
    assert edits.reconstructed.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("known", [True, False])
def test_edits_that_do_nothing_flip_nothing(known):
    """The new value is never the present one: the label, or the code if there is no label."""
    codes = random_codes(60)
    x, _ = images(codes)
    labels = codes[:, list(PROPERTIES)]
    stay = lambda block, old, new: block  # noqa: E731
    edits = judged_edits(
        exact_model(), exact_judge(), x, labels if known else -torch.ones_like(labels), placement=stay
    )
    assert edits.flipped.tolist() == [0.0, 0.0]
    assert edits.kept.tolist() == [1.0, 1.0]


def test_what_edits_break_is_told():
    """A decoder that shows the sum of two factors in the place of one changes what it should keep."""
    model, codes = exact_model(), random_codes(40)
    codes[:, 0] = codes[:, 0].clamp(max=1)  # the sum stays below 3
    x, _ = images(codes)
    plain = model.decoder

    class Mixing(torch.nn.Module):
        def forward(self, z):
            first = z[..., :1] + z[..., 1:2]
            return plain(torch.cat([first, z[..., 1:]], -1))

    model.decoder = Mixing()
    edits = judged_edits(model, exact_judge(), x, codes[:, list(PROPERTIES)])
    # Factor 1 (property 0) changes property 1, never 2: half of the others are kept. Factor 0 breaks nothing.
    assert edits.kept.tolist() == [0.5, 1.0]
    assert edits.kept_least.tolist() == [0.0, 1.0]
    wrong = (codes[:, 1] == 1).double().mean().item()
    assert edits.reconstructed.tolist() == pytest.approx([1, 1 - wrong, 1])
    # Against the original: after the edit property 1 is right where factor 1 has become 0.
    assert edits.kept_of_original.tolist() == pytest.approx([(wrong + 1) / 2, 1.0])


def test_binary_images_are_the_more_probable_pixels():
    model = small_model((3,))
    z = torch.randn(8, 2) * 5
    means = model.observation.mean(model.decoder(z))
    shown = script.decoded(model, z)
    assert torch.equal(shown, (means >= 0.5).to(means.dtype))
    assert 0 < shown.mean() < 1


def test_the_script_judges_a_run(tmp_path, monkeypatch, capsys):
    torch.set_default_dtype(torch.float32)  # as a user has it; the fixture restores the tests' own
    labels = np.stack([np.arange(80) % 2, np.arange(80) // 2 % 3], 1)
    x = np.repeat(labels / (1, 2), 8, 1)[:, :, None].repeat(16, 2)  # one property above the other
    np.savez(tmp_path / "x.npz", x=x, labels=labels, label_names=np.array(["side", "tone"]))
    options = {"labels": 1.0, "factors": "2,3", "joint_iterations": 60}
    assert train(tmp_path / "run", tmp_path / "x.npz", **options)[0] == 0
    arguments = [
        "--samples=40",
        "--edits=20",
        "--iterations=60",
        "--split=train",
        f"--out={tmp_path / 'out'}",
    ]
    monkeypatch.setattr(sys, "argv", ["judge.py", str(tmp_path / "run"), *arguments])
    script.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["judge"] == {"side": 1.0, "tone": 1.0}
    assert (
        set(result["generated"]) == set(result["edited"]) == set(result["reconstructed"]) == {"side", "tone"}
    )
    for edited in result["edited"].values():
        assert set(edited) == {"flipped", "kept", "kept_least", "kept_of_original"}
        assert all(0 <= value <= 1 for value in edited.values())
    assert (result["samples"], result["edits"]) == (40, 20)
    with (tmp_path / "out" / "key.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "side", "tone", "judged side", "judged tone"] and len(rows) == 54
    assert (tmp_path / "out" / "sheet.png").read_bytes().startswith(b"\x89PNG")
