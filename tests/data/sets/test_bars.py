import math

import pytest
import torch

from pyro_fmvae.data import BarsTruth, Kind, bars_truth, load
from pyro_fmvae.data.sets.bars import NAMES, bars

KINDS = ("binary", "linear", "max")
N = 20_000


def absent_or(truth, power):
    """E[cause ** power], of a binary or a spike-and-slab cause."""
    loc, scale = (1.0, 0.0) if truth.loc is None else (truth.loc, truth.scale)
    moments = {1: loc, 2: loc**2 + scale**2}
    return truth.probs * moments[power]


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_that_of_the_published_setting(kind):
    truth = bars_truth(f"bars-{kind}")
    assert isinstance(truth, BarsTruth) and truth.kind == kind
    height, loc, scale, noise = (1, None, None, 0.1) if kind == "binary" else (10, 1, 0.2, 1)
    assert (truth.probs, truth.loc, truth.scale, truth.noise) == (2 / 8, loc, scale, noise)
    assert truth.dictionary.shape == (8, 4, 4) and truth.dictionary.dtype == torch.float64
    for row in range(4):
        expected = torch.zeros(2, 4, 4)
        expected[0, row], expected[1, :, row] = height, height
        assert torch.equal(truth.dictionary[[row, 4 + row]], expected)


@pytest.mark.parametrize("name", ["bars", "smiley", "", "binary"])
def test_other_data_sets_have_no_such_truth(name):
    assert bars_truth(name) is None


@pytest.mark.parametrize("kind", KINDS)
def test_causes_have_the_stated_moments(kind):
    truth, causes = bars_truth(f"bars-{kind}"), bars(kind, num_data=N).causes
    assert causes.dtype == torch.float64 and causes.shape == (N, 8)
    on = causes != 0
    share = on.double().mean(0)
    assert ((share - truth.probs).abs() < 4 * math.sqrt(truth.probs * (1 - truth.probs) / N)).all()
    assert (on.double().T.corrcoef().triu(1).abs() < 4 / math.sqrt(N)).all()
    shown = causes[on]
    if kind == "binary":
        assert (shown == 1).all()
    else:
        assert abs(shown.mean() - 1) < 4 * 0.2 / math.sqrt(len(shown))
        assert abs(shown.std() - 0.2) < 4 * 0.2 / math.sqrt(2 * len(shown))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of_pixels_is_the_noise(kind):
    truth, (x, causes) = bars_truth(f"bars-{kind}"), bars(kind, num_data=N)
    mean = torch.zeros(N, 4, 4)
    for unit in range(8):
        shown = causes[:, unit, None, None] * truth.dictionary[unit]
        mean = torch.maximum(mean, shown) if kind == "max" else mean + shown
    noise = x - mean
    assert ((noise.mean(0) / truth.noise).abs() < 4 / math.sqrt(N)).all()
    assert ((noise.std(0) / truth.noise - 1).abs() < 4 / math.sqrt(2 * N)).all()
    assert (noise.flatten(1).T.corrcoef().triu(1).abs() < 4.5 / math.sqrt(N)).all()  # 120 pairs


@pytest.mark.parametrize("kind", ["binary", "linear"])
def test_pixels_of_a_sum_have_the_moments_of_two_causes(kind):
    truth, x = bars_truth(f"bars-{kind}"), bars(kind, num_data=N).x
    height = truth.dictionary.max().item()
    first, second = (absent_or(truth, power) for power in (1, 2))
    variance = 2 * height**2 * (second - first**2) + truth.noise**2
    assert ((x.mean(0) - 2 * height * first).abs() < 4 * math.sqrt(variance / N)).all()
    # Pixels of a row share the cause of that row alone.
    product = (x[:, 0, 0] - x[:, 0, 0].mean()) * (x[:, 0, 1] - x[:, 0, 1].mean())
    assert abs(product.mean() - height**2 * (second - first**2)) < 4 * product.std() / math.sqrt(N)


def test_pixels_of_a_maximum_have_the_mean_of_the_larger_cause():
    truth, x = bars_truth("bars-max"), bars("max", num_data=N).x
    # One cause: E[s]. Two of N(1, 0.2²): the mean of the larger is 1 + 0.2 / sqrt(π).
    one, two = 2 * truth.probs * (1 - truth.probs), truth.probs**2
    expected = 10 * (one * truth.loc + two * (truth.loc + truth.scale / math.sqrt(math.pi)))
    assert ((x.mean(0) - expected).abs() < 4 * x.std(0) / math.sqrt(N)).all()


def test_another_size():
    x, causes = bars("linear", size=5, num_data=7)
    assert x.shape == (7, 5, 5) and x.dtype == torch.float64 and causes.shape == (7, 10)
    share = (bars("linear", size=5, num_data=N).causes != 0).double().mean()
    assert abs(share - 0.2) < 4 * 0.4 / math.sqrt(10 * N)


def test_equal_seeds_give_equal_images_whatever_the_default_dtype(single_precision):
    first, other = bars("max", seed=3), bars("max", seed=4)
    torch.set_default_dtype(torch.float64)
    again = bars("max", seed=3)
    assert torch.equal(first.x, again.x) and torch.equal(first.causes, again.causes)
    assert not torch.equal(first.x, other.x)


@pytest.mark.parametrize("kind", KINDS)
def test_load(kind):
    data, again = load(f"bars-{kind}"), load(f"bars-{kind}", seed=1)
    assert f"bars-{kind}" in NAMES and data.name == f"bars-{kind}"
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [500, 100, 500]
    assert data.preprocessing.kind is Kind.REAL and data.event_shape == (4, 4)
    assert data.train.labels is None and data.label_names == ()
    assert data.train.x.dtype == torch.float32 and not data.train.signed
    assert torch.equal(data.train.x, bars(kind, seed=1).x.float())
    assert torch.equal(data.train.x, again.train.x)
    assert not torch.equal(data.train.x, data.test.x) and not torch.equal(data.valid.x, data.test.x[:100])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "sum"}, "kind: expected one of binary, linear, max, got 'sum'"),
        ({"kind": "max", "size": 1}, "size: expected at least 2, got 1"),
        ({"kind": "max", "num_data": 0}, "num_data: expected at least 1, got 0"),
        ({"kind": "max", "seed": -1}, "seed: expected at least 0, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        bars(**arguments)
