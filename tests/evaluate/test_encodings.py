import numpy as np
import pytest
import torch

from pyro_fmvae.data import Split
from pyro_fmvae.evaluate import Encodings, encode_split
from pyro_fmvae.evaluate.encodings import learnable
from tests.models.small import binary_data, small_model

pytestmark = pytest.mark.usefixtures("single_precision")


def split(n=30):
    return Split(binary_data(n).bool(), torch.arange(2 * n).reshape(n, 2) % 3)


def test_rows_are_encoded_in_their_order(monkeypatch):
    monkeypatch.setattr("pyro_fmvae.evaluate.encodings._BATCH", 7)
    model, rows = small_model((3, 2), dim=4), split()
    encoded = encode_split(model, rows)
    x = rows.observations
    means = model.encoder(x)[0].detach()
    assert encoded.latents.shape == (30, 2, 4)
    np.testing.assert_allclose(encoded.latents[:, 1], means[:, 4:].numpy(), atol=1e-6)
    assert (encoded.codes == model.codes(x).numpy()).all()
    assert (encoded.labels == rows.labels.numpy()).all()
    assert (encoded.num_blocks, encoded.num_properties) == (2, 2)


def test_a_random_part_depends_on_the_seed_alone():
    model, rows = small_model((3, 2)), split()
    rows.labels[:, 0] = torch.arange(30)
    first, again, other = (encode_split(model, rows, 10, seed=seed).labels[:, 0] for seed in (0, 0, 1))
    assert len(set(first)) == 10
    assert (first == again).all()
    assert set(first) != set(other)
    assert (encode_split(model, rows, 30).labels[:, 0] == np.arange(30)).all()


def test_draws_have_the_moments_of_the_encoder_and_depend_on_the_seed_alone():
    model = small_model((3, 2), dim=4)
    rows = Split(
        binary_data(1).bool().expand(4000, -1, -1).contiguous(), torch.zeros(4000, 1, dtype=torch.int64)
    )
    loc, scale = (t.detach().view(2, 4) for t in model.encoder(rows.observations[:1]))
    state = torch.get_rng_state()
    drawn = encode_split(model, rows, drawn=True, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    standard = (drawn.latents - loc.numpy()) / scale.numpy()
    assert np.abs(standard.mean(0)).max() < 4 / 4000**0.5
    assert np.abs(standard.std(0) - 1).max() < 4 / 8000**0.5
    torch.rand(1)
    assert (encode_split(model, rows, drawn=True, seed=1).latents == drawn.latents).all()
    assert (encode_split(model, rows, drawn=True, seed=2).latents != drawn.latents).all()


def test_wrong_splits():
    model = small_model()
    with pytest.raises(ValueError, match=r"^split: expected labels, got none"):
        encode_split(model, Split(binary_data(3).bool()))
    with pytest.raises(ValueError, match=r"^num_rows: expected a number >= 1, got 0"):
        encode_split(model, split(), 0)


@pytest.mark.parametrize(
    ("means", "codes", "labels", "message"),
    [
        ((0, 2, 3), (0, 2), (0, 1), r"^labels: expected at least one point"),
        ((4, 2), (4, 2), (4, 1), r"^latents, codes, labels: expected \[n, I, D\]"),
        ((4, 2, 3), (4, 3), (4, 1), r"^latents, codes, labels: "),
        ((4, 2, 3), (4, 2), (4,), r"^latents, codes, labels: "),
        ((4, 2, 3), (4, 2), (5, 1), r"^labels: expected 4 rows, one per encoded point, got 5"),
    ],
)
def test_wrong_shapes(means, codes, labels, message):
    with pytest.raises(ValueError, match=message):
        Encodings(np.zeros(means), np.zeros(codes, int), np.zeros(labels, int))


def encodings(labels, blocks=2):
    labels = np.array(labels).T
    return Encodings(np.zeros((len(labels), blocks, 1)), np.zeros((len(labels), blocks), int), labels)


def test_learnable_properties():
    train = encodings([[0, 1, -1], [0, 0, 0], [0, 1, 1], [-1, 2, -1], [-1, -1, -1]])
    test = encodings([[0, 0], [0, 1], [-1, -1], [0, 1], [0, 1]])
    assert learnable(train, test) == [0]
    with pytest.raises(ValueError, match=r"^labels: expected a property with at least two known values"):
        learnable(encodings([[0, 0]]), encodings([[0, 1]]))
    with pytest.raises(ValueError, match=r"^test: expected blocks, dimensions and properties"):
        learnable(train, encodings([[0, 1]]))
