import logging

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.distributions import Bernoulli, Normal

from pyro_fmvae import BernoulliObservation, FactorialMixtureVAE
from pyro_fmvae.learn.fmvae_phases import PriorFitting
from pyro_fmvae.learn.independent_components import (
    IndependentComponents,
    Unit,
    basis,
    blocks_of,
    dependent,
    found_sizes,
    joined,
    start_from_components,
    telling_directions,
)
from pyro_fmvae.learn.options import FMVAEOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.models.change_of_basis import change_basis
from pyro_fmvae.nn import MLPDecoder, MLPEncoder, SideBySide

POINTS = 2000


def orthogonal(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def planted(values, noise=4, seed=0):
    """Sources of unit variance, of which the leading ones are two clusters each, and the clusters."""
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, 2, (POINTS, values))
    lying = rng.normal(size=(POINTS, values)) * 0.2 + 2 * clusters - 1
    return np.concatenate([lying, rng.normal(size=(POINTS, noise))], 1), clusters


def linear_model(sizes, dim, mixing, labelled=()):
    """A model whose x are mixed sources; the pretrained posterior of these is nearly a point."""
    size = len(sizes) * dim
    encoder, decoder = MLPEncoder((size,), size, ()), MLPDecoder(size, (size,), 1, ())
    with torch.no_grad():
        encoder.head.linear.weight.zero_()[:size] = torch.eye(size)
        encoder.head.linear.bias.zero_()[size:] = -4.0
        decoder.linear.weight.copy_(torch.eye(size))
        decoder.linear.bias.zero_()
    observation = BernoulliObservation(1)
    return FactorialMixtureVAE(encoder, decoder, observation, sizes, dim, POINTS, labelled)


def test_planted_factors_of_a_linear_decoder_are_found():
    sources, clusters = planted(4)
    x = torch.tensor(sources @ orthogonal(8).T, dtype=torch.get_default_dtype())
    model = linear_model((2, 2, 2, 2), 2, 8)
    phase = PriorFitting(model, FMVAEOptions(independent_start=True), Budget(iterations=1))
    phase.prepare([x])
    codes = model.eval().codes(x)
    assert phase.measures()["clustered"] == 4
    assert sorted(phase.measures()["starts"][:4]) == [0, 1, 2, 3]
    found = [max(range(4), key=lambda f: adjusted_rand_score(clusters[:, i], codes[:, f])) for i in range(4)]
    assert sorted(found) == [0, 1, 2, 3]
    for value, factor in enumerate(found):
        assert adjusted_rand_score(clusters[:, value], codes[:, factor]) == 1
        head = model.encoder(x)[0][:, 2 * factor].detach() > 0  # whatever λ is
        assert adjusted_rand_score(clusters[:, value], head) == 1
    for unit, factor in zip(phase.start.units, phase.measures()["starts"], strict=True):
        assert not unit.clustered or adjusted_rand_score(unit.assignments, codes[:, factor]) == 1


def test_change_of_basis_leaves_the_bound_where_q_is_isotropic():
    torch.manual_seed(0)
    encoder, decoder = MLPEncoder((5,), 6, (7,)), MLPDecoder(6, (5,), 1, (7,))
    with torch.no_grad():
        encoder.head.linear.weight[6:] = encoder.head.linear.weight[6:].mean(0)  # one scale for all of z
    x, noise = torch.bernoulli(torch.full((20, 5), 0.5)), torch.randn(20, 6)

    def bound(noise):
        loc, scale = encoder(x)
        z = loc + scale * noise
        prior, posterior = Normal(0.0, 1.0).log_prob(z).sum(-1), Normal(loc, scale).log_prob(z).sum(-1)
        return Bernoulli(logits=decoder(z).squeeze(-2)).log_prob(x).sum(-1) + prior - posterior

    turn = torch.tensor(orthogonal(6))
    before = bound(noise)
    change_basis(encoder, decoder, turn, turn.T, torch.zeros(6), torch.ones(6))
    torch.testing.assert_close(bound(noise @ turn.T.to(noise)), before, rtol=1e-5, atol=1e-5)


def test_change_of_basis_keeps_reconstructions_and_has_the_nearest_diagonal_posterior():
    torch.manual_seed(1)
    encoder, decoder = MLPEncoder((5,), 4, (7,)), MLPDecoder(4, (5,), 1, (7,))
    with torch.no_grad():  # variances that are the same for every x, but differ between dimensions
        encoder.head.linear.weight[4:] = 0.0
        encoder.head.linear.bias[4:] = torch.tensor([0.0, -1.0, -2.0, -3.0])
    x, to, centre = torch.randn(9, 5), torch.randn(4, 4).double(), torch.randn(4).double()
    loc, scale = encoder(x)
    decoded = decoder(loc)
    change_basis(encoder, decoder, to, torch.linalg.inv(to), centre, scale[0].double().square())
    new_loc, new_scale = encoder(x)
    torch.testing.assert_close(decoder(new_loc), decoded, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(new_loc, ((loc.double() - centre) @ to.T).to(loc), rtol=1e-4, atol=1e-4)
    covariance = to @ scale[0].double().square().diag() @ to.T
    nearest = torch.linalg.inv(covariance).diagonal().reciprocal()  # of diagonal Gaussians, by KL(q || p)
    torch.testing.assert_close(new_scale[0].square().double(), nearest, rtol=1e-4, atol=1e-4)


def unit(number, assignments, bits=1.0, directions=1):
    numbers = tuple(range(number, number + directions))
    return Unit(numbers, numbers, np.asarray(assignments), bits)


def test_labels_have_the_directions_that_tell_them_and_none_is_used_twice():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (400, 2))
    units = [
        unit(i, v) for i, v in enumerate([rng.integers(0, 2, 400), y[:, 1], y[:, 0], rng.integers(0, 2, 400)])
    ]
    units += [unit(4, np.where(rng.random(400) < 0.02, 1 - y[:, 1], y[:, 1]))]  # tells the second label, too
    labels = np.where(np.arange(400)[:, None] < 40, y, -1)
    blocks = blocks_of(units, (2, 2, 2, 2), (1, 1, 1, 1), (0, 1), labels)
    numbers = [[number for each in block for number in each.directions] for block in blocks]
    assert numbers[:2] == [[2], [1]]
    assert sorted(numbers[2] + numbers[3]) == [0, 3]


def test_free_blocks_have_nothing_of_the_means_of_labels():
    """Three values lie in two directions, none of which an independent component of the codes is."""
    sources, clusters = planted(1, 3)
    rng = np.random.default_rng(1)
    value = rng.integers(0, 3, POINTS)
    triangle = np.stack([np.cos(value * 2 * np.pi / 3), np.sin(value * 2 * np.pi / 3)], 1) * 1.2
    sources = np.concatenate([triangle + 0.5 * rng.normal(size=(POINTS, 2)), sources], 1)
    loc = torch.tensor(sources @ orthogonal(6).T, dtype=torch.get_default_dtype())
    model = linear_model((3, 2), 3, 6, labelled=(0,))
    labels = torch.where(torch.arange(POINTS) % 2 == 0, torch.tensor(value), -1)[:, None]
    start = start_from_components(model, loc, torch.full_like(loc, 0.1), labels, 0)
    hidden = value[1::2]
    means = np.stack([start.loc[1::2].numpy()[hidden == k].mean(0) for k in range(3)])
    apart = means.std(0)
    assert (apart[:2] > 0.5).all() and (apart[2:] < 0.1).all()
    assert adjusted_rand_score(clusters[:, 0], start.responsibilities[1].argmax(-1)) == 1
    torch.testing.assert_close(model.encoder(loc)[0], start.loc, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("known", "values", "room", "number"), [(0, 3, 9, 0), (1, 3, 9, 0), (40, 3, 9, 2)])
def test_directions_of_a_label_are_as_many_as_tell_points_beside(known, values, room, number):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, values, 400)
    codes = rng.normal(size=(400, 12))
    given = np.where(np.arange(400) < known, labels, -1)
    assert len(telling_directions(codes, given, room)) == 0  # chance alone
    codes[:, :2] += 4 * np.stack([labels == 1, labels == 2], 1)
    codes[:, 2] += 0.3 * labels
    found = telling_directions(codes, given, room)
    assert found.shape == (number, 12)
    assert telling_directions(codes, given, 1).shape == (min(number, 1), 12)
    np.testing.assert_allclose(found @ found.T, np.eye(number), atol=1e-12)


@pytest.mark.parametrize("each", [1, 2, 4, 8, 20])
@pytest.mark.parametrize("values", [2, 10])
def test_few_labels_tell_no_direction_of_noise(each, values):
    for seed in range(10):
        codes = np.random.default_rng(seed).normal(size=(500, 16))
        labels = np.full(500, -1)
        labels[: each * values] = np.arange(each * values) % values
        assert len(telling_directions(codes, labels, 8)) == 0


def test_factors_have_units_of_their_size_and_large_ones_several():
    units = [unit(0, [0], 2.5, 2), unit(2, [0], 1.0), unit(3, [0], 0.99), unit(4, [0], 0.05)]
    (two,), (six,) = blocks_of(units, (2, 6), (3, 3))
    assert (two.directions, six.directions) == ((2,), (0, 1))
    (many,) = blocks_of(units, (64,), (5,))
    assert [each.directions for each in many] == [(0, 1), (2,), (3,)]


def test_directions_that_share_a_factor_are_one_unit():
    rng = np.random.default_rng(0)
    value, other = rng.integers(0, 6, POINTS), rng.integers(0, 2, POINTS)
    circle = np.stack([np.cos(value * np.pi / 3), np.sin(value * np.pi / 3)], 1) * 1.4
    sources = np.concatenate([circle, 2.0 * other[:, None] - 1, rng.normal(size=(POINTS, 3))], 1)
    sources[:, :3] += 0.1 * rng.normal(size=(POINTS, 3))
    mean = sources @ orthogonal(6).T
    found = IndependentComponents.of(mean, np.full_like(mean, 0.01))
    units = found.units(8, 3)
    assert [len(unit.directions) for unit in units[:2]] == [2, 1]
    assert units[0].bits == pytest.approx(np.log2(6), abs=0.02)
    assert units[1].bits == pytest.approx(1.0, abs=0.02)
    assert adjusted_rand_score(value, units[0].assignments) > 0.99
    assert len(dependent(rng.normal(size=(POINTS, 5)))) == 5


def test_values_that_directions_set_apart_from_others_are_one_factor():
    """Twelve values at the corners of a simplex, eleven of which directions set apart, one each.

    FastICA finds these directions or others that are as good, as rounding has it, so they are given.
    """
    rng = np.random.default_rng(0)
    value, other = rng.integers(0, 12, POINTS), rng.integers(0, 2, POINTS)
    corners = np.linalg.svd(np.eye(12) - 1 / 12)[2][:11].T * np.sqrt(12)
    left, _, right = np.linalg.svd(corners[:11])
    corners = corners @ (left @ right).T
    codes = np.concatenate([corners[value], 2.0 * other[:, None] - 1, rng.normal(size=(POINTS, 2))], 1)
    codes[:, :12] += 0.1 * rng.normal(size=(POINTS, 12))
    found = IndependentComponents(np.zeros(14), np.eye(14), np.eye(14), np.eye(14), codes)
    assert len(dependent(found.codes)) == 14
    units = found.units(12, 12)
    assert [(unit.components, unit.clustered) for unit in units[:3]] == [(12, True), (2, True), (2, False)]
    assert adjusted_rand_score(value, units[0].assignments) == 1
    assert adjusted_rand_score(other, units[1].assignments) == 1


@pytest.mark.parametrize(
    ("share", "apart", "together"), [(0.1, True, True), (0.1, False, False), (0.01, True, False)]
)
def test_clusters_are_joined_where_they_exclude_each_other(share, apart, together):
    """Not by chance, and not where too few points would be in both."""
    rng = np.random.default_rng(0)
    draw, second, third = rng.random((3, POINTS))
    one, other = draw < share, (draw > 1 - share if apart else second < share)
    alone = [unit(0, one.astype(int)), unit(1, 1 - other.astype(int)), unit(2, (third < 0.5).astype(int))]
    assert joined([[0], [1], [2]], alone) == ([[0, 1], [2]] if together else [[0], [1], [2]])


def test_one_direction_that_tells_all_stands_for_its_unit():
    rng = np.random.default_rng(0)
    places = np.array([[-1.2, 0.7], [0.0, -1.4], [1.2, 0.7]])[rng.integers(0, 3, POINTS)]
    mean = np.concatenate([places + 0.1 * rng.normal(size=places.shape), rng.normal(size=(POINTS, 3))], 1)
    unit = IndependentComponents.of(mean, np.full_like(mean, 0.01)).units(8, 3)[0]
    assert (len(unit.directions), len(unit.seen_in)) == (2, 1)
    assert unit.bits == pytest.approx(np.log2(3), abs=0.01)


def test_basis_is_orthogonal_and_begins_with_the_directions():
    sources, _ = planted(2, 4)
    found = IndependentComponents.of(sources @ orthogonal(6).T, np.full_like(sources, 0.01))
    rows = basis([found.directions[block] for block in ([1], [], [0])], 2)
    np.testing.assert_allclose(rows @ rows.T, np.eye(6), atol=1e-12)
    for row, number in ((0, 1), (4, 0)):
        assert abs(rows[row] @ found.directions[number]) > 0.99


@pytest.mark.parametrize("signal", [True, False])
def test_codes_without_clusters_start_nothing(signal, caplog):
    torch.manual_seed(0)
    loc, scale = torch.randn(500, 4), torch.full((500, 4), 0.1)
    loc, scale = (loc, scale) if signal else (0.1 * loc, 10 * scale)
    model = linear_model((2, 2), 2, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with caplog.at_level(logging.INFO, "pyro_fmvae"):
        assert start_from_components(model, loc, scale, None, 0).responsibilities == {}
    assert "no direction of the codes has clusters" in caplog.text
    assert ("bits" in caplog.text) == signal
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_networks_of_other_kinds_are_named(caplog):
    sources, _ = planted(2, 2)
    model = linear_model((2, 2), 2, 4)
    model.encoder = SideBySide([model.encoder])
    loc = torch.tensor(sources, dtype=torch.get_default_dtype())
    with caplog.at_level(logging.WARNING, "pyro_fmvae"):
        assert start_from_components(model, loc, torch.full_like(loc, 0.1), None, 0).responsibilities == {}
    assert "SideBySide and MLPDecoder" in caplog.text


def test_sizes_are_found_beside_those_of_labels():
    sources, clusters = planted(3, 5)
    loc = torch.tensor(sources @ orthogonal(8).T)
    labels = torch.where(torch.arange(POINTS)[:, None] < 200, torch.tensor(clusters[:, :1]), -1)
    scale = torch.full_like(loc, 0.1)
    assert found_sizes(loc, scale, None, 0)[0] == (2, 2, 2)
    sizes, bits = found_sizes(loc, scale, labels, 0)
    assert sizes == (2, 2)
    assert bits.startswith("1.00 1.00 |")  # without the one that the label tells
    with pytest.raises(ValueError, match=r"^factors: auto needs 16 points or more, got 15"):
        found_sizes(loc[:15], scale[:15], None, 0)
