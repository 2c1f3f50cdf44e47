import numpy as np
import pytest
import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.data import Split, whole
from pyro_fmvae.evaluate import Judge, load_judge, save_judge, train_judge
from pyro_fmvae.evaluate.judge import _blur, _loss, share

SIZES = (2, 3)


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
    judge = train_judge(squares(400, **kind), SIZES, iterations=100)
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
    judge = train_judge(Split(train.x, labels, signed=True), SIZES, iterations=100)
    assert (judge.accuracy(x, truth) > 0.95).all()
    hidden = truth.clone()
    hidden[:150, 0] = -1
    hidden[:, 1] = -1
    accuracy = judge.accuracy(x, hidden)
    assert accuracy[0] == (judge.predict(x[150:])[:, 0] == truth[150:, 0]).double().mean()
    assert accuracy[1].isnan()


def test_loss_sums_known_properties_per_image():
    logits = [torch.randn(3, 2), torch.randn(3, 4)]
    labels = torch.tensor([[0, -1], [-1, -1], [1, 3]])
    first, second = (values.log_softmax(-1) for values in logits)
    expected = -(first[0, 0] + first[2, 1] + second[2, 3]) / 3
    torch.testing.assert_close(_loss(logits, labels), expected)
    assert _loss(logits, torch.full((3, 2), -1)) == 0


@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (28, 28), (32, 32, 3), (64, 64, 3)])
def test_any_image_size(shape):
    logits = Judge(shape, SIZES)(torch.randn(2, *shape, dtype=torch.float32))
    assert [part.shape for part in logits] == [(2, 2), (2, 3)]


def test_training_depends_on_the_seed_alone():
    train, state = squares(100), torch.get_rng_state()
    first = train_judge(train, SIZES, seed=1, iterations=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    again, other = (train_judge(train, SIZES, seed=seed, iterations=3).state_dict() for seed in (1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "weight" in name)


@pytest.mark.parametrize("shape", [(4, 16, 18), (4, 16, 18, 3)])
def test_blur_mixes_each_image_with_its_neighbourhood_means(shape):
    x = torch.randn(shape)
    blurred = _blur(x, torch.Generator().manual_seed(0))
    assert blurred.shape == x.shape
    means = torch.stack([x[:, i : i + 14, j : j + 16] for i in range(3) for j in range(3)]).mean(0)
    inner = x[:, 1:-1, 1:-1]
    weights = ((blurred[:, 1:-1, 1:-1] - inner) / (means - inner)).flatten(1)
    assert ((weights > 0) & (weights < 1)).all()
    torch.testing.assert_close(weights, weights[:, :1].expand_as(weights))
    assert len(weights[:, 0].unique()) == 4
    constant = torch.full(shape, 0.7)  # the border is no darker
    torch.testing.assert_close(_blur(constant, torch.Generator().manual_seed(0)), constant)


def test_only_greys_and_colours_are_blurred(monkeypatch):
    called = []
    monkeypatch.setattr("pyro_fmvae.evaluate.judge._blur", lambda x, _: called.append(len(x)) or x)
    train_judge(squares(10, binary=True), SIZES, iterations=1)
    assert called == []
    train_judge(squares(10), SIZES, iterations=1)
    assert called == [10]


def test_share_of_nothing_is_nan():
    hits = torch.tensor([[True, True], [False, True]])
    counted = torch.tensor([[True, False], [True, False]])
    assert share(hits, counted).tolist() == [0.5, pytest.approx(float("nan"), nan_ok=True)]


def test_a_saved_judge_comes_back(tmp_path):
    judge = train_judge(squares(50, colour=True), SIZES, iterations=2)
    save_judge(judge, tmp_path / "judge")
    loaded = load_judge(tmp_path / "judge")
    x, _ = whole(squares(20, seed=1, colour=True))
    assert (loaded.image_shape, loaded.label_sizes) == ((16, 18, 3), SIZES)
    assert all(torch.equal(a, b) for a, b in zip(judge(x), loaded(x), strict=True))
    assert not any(p.requires_grad for p in loaded.parameters())


def test_what_is_no_judge_is_not_loaded(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_judge(tmp_path)
    judge = Judge((16, 16), SIZES)
    for state in (
        {"weights": {}},
        {"image_shape": [16, 16], "label_sizes": [2], "weights": judge.state_dict()},
        {"image_shape": [16, 16], "label_sizes": None, "weights": {}},
    ):
        checkpoint.save(tmp_path / "other", state)
        with pytest.raises(ValueError, match=r"judge: .* holds no judge|label_sizes must be"):
            load_judge(tmp_path / "other")


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        (
            (15, 16),
            SIZES,
            r"^image_shape: expected \(H, W\) or \(H, W, 3\) with H and W >= 16, got \(15, 16\)",
        ),
        ((16, 16, 4), SIZES, r"^image_shape: "),
        ((100,), SIZES, r"^image_shape: "),
        ((16, 16), (2, 0), r"^label_sizes\[1\] must be a positive integer, got 0"),
        ((16, 16), (), r"^label_sizes must not be empty"),
    ],
)
def test_wrong_shapes_and_sizes(shape, sizes, message):
    with pytest.raises(ValueError, match=message):
        Judge(shape, sizes)


def test_wrong_training():
    good = squares(10)
    cases = [
        (Split(good.x), SIZES, {}, r"^train: expected labels, got none"),
        (good, (2,), {}, r"^label_sizes: expected 2, one per property, got \(2,\)"),
        (good, (2, 2), {}, r"^labels: expected known values below label_sizes \(2, 2\)"),
        (Split(good.x, torch.full((10, 2), -1)), SIZES, {}, r"^labels: expected known values"),
        (good, SIZES, {"iterations": 0}, r"^iterations: expected a number >= 1, got 0"),
    ]
    for split, sizes, options, message in cases:
        with pytest.raises(ValueError, match=message):
            train_judge(split, sizes, **options)
    with pytest.raises(ValueError, match=r"^x must have shape \[..., 16, 16\]"):
        Judge((16, 16), SIZES)(torch.zeros(2, 16, 17))
