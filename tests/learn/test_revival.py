import math

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae import FactorialMixtureVAE, GaussianObservation, fit
from pyro_fmvae.learn.fmvae_phases import Joint
from pyro_fmvae.learn.independent_components import IndependentComponents
from pyro_fmvae.learn.options import FMVAEOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.revival import revive, turn
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

DIM, POINTS = 2, 1200


def linear_model(num_data=POINTS, labelled=(), sizes=(2, 2)):
    """Two factors; q(z | x) has mean x and standard deviation 0.1; E[x | z] = z."""
    size = 2 * DIM
    model = FactorialMixtureVAE(
        MLPEncoder((size,), size, ()),
        MLPDecoder(size, (size,), 2, ()),
        GaussianObservation(1, 0.05, 1.0),
        sizes,
        DIM,
        num_data,
        labelled,
    )
    with torch.no_grad():
        for layer in (model.encoder.head.linear, model.decoder.linear):
            layer.weight.copy_(torch.eye(2 * size)[:, :size])
            layer.bias.zero_()
        model.encoder.head.linear.bias[size:] = 2 * math.log(0.1)
        model.decoder.linear.bias[size:] = -2.0
    return model.to(torch.get_default_dtype())


def planted(second):
    """x whose first element tells of a property, and the angle to the axes of a second one, if there is any.

    At 0 it is told by the element beside the first one, in the block of the first factor.
    """
    generator = np.random.default_rng(0)
    values = generator.integers(0, 2, (POINTS, 2))
    x = generator.normal(size=(POINTS, 2 * DIM))
    ends = 0.97 * (2 * values - 1) + 0.15 * generator.normal(size=values.shape)
    x[:, 0] = ends[:, 0]
    if second is not None:
        noise = x[:, 2].copy()
        x[:, 1] = math.cos(second) * ends[:, 1] - math.sin(second) * noise
        x[:, 2] = math.sin(second) * ends[:, 1] + math.cos(second) * noise
    return torch.tensor(x, dtype=torch.get_default_dtype()), values


def started(x, **more):
    """A model whose first factor has the first property, and whose second factor's components coincide."""
    model = linear_model(**more)
    loc, scale = model.encoder(x)
    by_first = lambda codes, *_: (codes[:, 0] > 0).long()  # noqa: E731
    model.seed(loc, scale, None, torch.Generator().manual_seed(0), clusters=by_first)
    second = model.factor_groups()[-1]
    place = len(second.factors) - 1
    with torch.no_grad():
        weights, components = (p.natural_value().clone() for p in (second.weights, second.loc_precision))
        weights[place, 0] = weights[place, 0].mean()
        components[place] = components[place].mean(0)
    second.set_natural(weights, components)
    return model


def agreement(model, x, values):
    codes = model.eval().codes(x)
    return [adjusted_rand_score(values[:, factor], codes[:, factor]) for factor in range(2)]


@pytest.mark.parametrize("standard", [False, True], ids=["natural", "first-order"])
@pytest.mark.parametrize("angle", [0.0, 0.6])
def test_a_factor_whose_components_coincide_finds_what_no_factor_holds(angle, standard):
    """Also where the first factor is a labelled one, whose λ takes first-order steps."""
    x, values = planted(angle)
    model = started(x, labelled=(0,) if standard else ())
    if standard:
        model.factor_groups()[0].use_standard()
    own = [id(p) for p in model.parameters()]
    before = agreement(model, x, values)
    gains = revive(model, [x], 0)
    assert set(gains) == {1} and gains[1] > 0.1
    assert before[0] > 0.95 and before[1] == 0
    assert min(agreement(model, x, values)) > 0.95
    assert [id(p) for p in model.parameters()] == own
    assert revive(model, [x], 0) == {}


def test_components_start_anew_where_the_bound_is_greater():
    """One component has two clusters and two components share another one, which ascent alone never mends."""
    x, values = planted(math.pi / 2)  # each property at the head of a block
    far = torch.arange(POINTS) % 2
    x[:, 2] += 6.0 * far  # four clusters: the second property beside this one
    truth = 2 * far.numpy() + values[:, 1]
    model = linear_model(labelled=(0,), sizes=(2, 4))
    badly = lambda codes, *_: torch.where(codes[:, 0] < 3, 0, 1 + (codes[:, 0] > 6) + (codes[:, 0] > 7))  # noqa: E731
    labels, generator = torch.tensor(values[:, :1]), torch.Generator().manual_seed(0)
    model.seed(*model.encoder(x), labels, generator, clusters=badly)
    labelled = [p.clone() for p in model.factor_groups()[0].parameters()]
    assert adjusted_rand_score(truth, model.eval().codes(x)[:, 1]) < 0.9
    assert set(revive(model, [x], 0, restarts=10)) == {1}
    assert adjusted_rand_score(truth, model.codes(x)[:, 1]) > 0.99
    assert all(map(torch.equal, labelled, model.factor_groups()[0].parameters()))


@pytest.mark.parametrize("second", [None, 0.0], ids=["nothing to find", "no gain"])
def test_what_no_bound_gains_by_is_undone(second, monkeypatch):
    x, _ = planted(second)
    model = started(x)
    if second is not None:
        monkeypatch.setattr("pyro_fmvae.learn.revival.GAIN", math.inf)
    state, random = {name: p.clone() for name, p in model.state_dict().items()}, torch.get_rng_state()
    assert revive(model, [(x[:700],), (x[700:],)], 0) == {}
    assert all(torch.equal(p, state[name]) for name, p in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_single_component_coincides_with_none():
    x, _ = planted(0.0)
    model = linear_model(sizes=(1, 1))
    assert revive(model, [x], 0) == {}


def test_networks_without_a_basis_to_change_are_left_alone():
    x, _ = planted(0.0)
    model = started(x)
    model.decoder = torch.nn.Sequential(model.decoder)
    assert revive(model, [x], 0) == {}


def test_a_component_becomes_an_axis_of_the_block():
    x, values = planted(0.6)
    codes = x.double().numpy() * [1.0, 1.0, 3.0, 0.5]
    found = IndependentComponents.of(codes, np.full_like(codes, 0.01))
    ends = np.abs([np.corrcoef(values[:, 1], code)[0, 1] for code in found.codes.T])
    to, back = turn(found, int(ends.argmax()), range(2, 4))
    turned = codes @ to.T
    np.testing.assert_allclose(to @ back, np.eye(4), atol=1e-12)
    assert abs(np.corrcoef(turned[:, 2], found.codes[:, ends.argmax()])[0, 1]) > 1 - 1e-6
    spread = np.sqrt(np.square(found.colouring).sum(0))
    scaled = to / spread[:, None] * spread
    np.testing.assert_allclose(scaled @ scaled.T, np.eye(4), atol=1e-12)


@pytest.mark.parametrize(("independent", "expected"), [(True, [0, 4, 8, 16]), (False, [])])
def test_factors_are_looked_at_when_a_phase_begins_and_ever_more_rarely(independent, expected, monkeypatch):
    asked, taken = [], []
    monkeypatch.setattr("pyro_fmvae.learn.fmvae_phases.FIRST_REVIVAL", 4)
    monkeypatch.setattr("pyro_fmvae.learn.fmvae_phases.revive", lambda *_: asked.append(len(taken)) or {})
    options = FMVAEOptions(independent_start=independent, eager=True)
    phase = Joint(linear_model(20), options, Budget(iterations=20))
    for record in fit([phase], [planted(0.0)[0][:20]]):
        taken += [record] if record.step else []
    assert asked == expected
