"""The value and gradients of the bound, against equations 4a-4e by brute force."""

import math
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch.testing import assert_close

from pyro_fmvae.infer import NaturalGradient, Role, TraceConjugate_ELBO
from tests.infer.programs import Toy, bound, draw_z, gradients, seeded

EXACT = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize(("factors", "components"), [(2, 3), (1, 3), (2, 1), (1, 1)])
@pytest.mark.parametrize("size", [20, 6])
def test_every_site_equals_brute_force(factors, components, size):
    toy, elbo = Toy(factors, components), TraceConjugate_ELBO()
    x = toy.data(size)
    expected = bound(toy, elbo, x)
    per_site = seeded(elbo.loss_per_site, toy.model, toy.guide, x)
    assert per_site.keys() == expected.per_site.keys()
    for name, loss in expected.per_site.items():
        assert_close(per_site[name], loss, **EXACT)
    assert_close(seeded(elbo.differentiable_loss, toy.model, toy.guide, x), expected.total, **EXACT)
    assert seeded(elbo.loss, toy.model, toy.guide, x) == pytest.approx(expected.total.item(), rel=1e-12)
    assert_close(elbo.responsibilities(toy.model, toy.guide, x)["assignment"], expected.gamma, **EXACT)


def test_roles_group_the_sites():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data()
    expected = bound(toy, elbo, x)
    roles = seeded(elbo.loss_per_role, toy.model, toy.guide, x)
    assert set(roles) == set(Role)
    assert_close(roles[Role.RECONSTRUCTION], expected.reconstruction, **EXACT)
    assert_close(roles[Role.KL_Z], expected.kl_z, **EXACT)
    assert_close(roles[Role.KL_R], expected.kl_r, **EXACT)
    assert_close(roles[Role.KL_GLOBAL], expected.kl_weights + expected.kl_components, **EXACT)
    assert roles[Role.LABEL] == 0


def collapsed(brute, weight=1.0):
    """KL[z] + KL[r] at the optimal responsibilities, which are differentiated through here."""
    logits = weight * brute.expected + brute.log_weights
    return -brute.scale * (logits.logsumexp(-1) + weight * brute.entropy).sum()


def test_divergences_equal_the_collapsed_form_with_its_gradients():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(6)
    brute = bound(toy, elbo, x)
    per_site = seeded(elbo.loss_per_site, toy.model, toy.guide, x)
    ours = per_site["z"] + per_site["assignment"]
    assert_close(ours, collapsed(brute), **EXACT)
    grads, expected = gradients(ours, toy.encoder), gradients(collapsed(brute), toy.encoder)
    for name, grad in expected.items():
        assert_close(grads[name], grad, **EXACT)
        assert grad.abs().max() > 1e-3


@pytest.mark.parametrize("size", [20, 6])
def test_natural_gradients_are_those_of_equation_13(size):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(size)
    brute = bound(toy, elbo, x)
    elbo.differentiable_loss(toy.model, toy.guide, x).backward()
    for posterior, optimum in zip((toy.weights, toy.loc_precision), brute.optimum(x, toy), strict=True):
        assert_close(posterior.natural.grad, posterior.natural.detach() - optimum, **EXACT)


@pytest.mark.parametrize("weight", [0.3, 20.0])
def test_kl_weight_scales_kl_z_for_the_networks_only(weight):
    toy, plain, weighted = Toy(), TraceConjugate_ELBO(), TraceConjugate_ELBO(kl_weight=weight)
    x = toy.data(6)
    one, other = (seeded(e.loss_per_site, toy.model, toy.guide, x) for e in (plain, weighted))
    for name, loss in one.items():
        assert_close(other[name], weight * loss if name == "z" else loss, **EXACT)
    grads = [gradients(sum(sites.values()), toy) for sites in (one, other)]
    for name in ("weights.natural", "loc_precision.natural"):
        assert_close(grads[1][name], grads[0][name], **EXACT)
    only_z = gradients(seeded(plain.loss_per_site, toy.model, toy.guide, x)["z"], toy)
    for name in ("encoder.weight", "encoder.bias"):
        assert_close(grads[1][name], grads[0][name] + (weight - 1) * only_z[name], **EXACT)
    gamma = [e.responsibilities(toy.model, toy.guide, x)["assignment"] for e in (plain, weighted)]
    assert_close(gamma[1], gamma[0], rtol=0, atol=0)


def test_kl_weight_may_be_a_tensor():
    toy, elbo = Toy(), TraceConjugate_ELBO(kl_weight=5.0)
    x = toy.data(6)
    expected = gradients(seeded(elbo.differentiable_loss, toy.model, toy.guide, x), toy)
    elbo.kl_weight = torch.tensor(5.0)
    for name, grad in gradients(seeded(elbo.differentiable_loss, toy.model, toy.guide, x), toy).items():
        assert_close(grad, expected[name], **EXACT)


@pytest.mark.parametrize("factors", [1, 2])
@pytest.mark.parametrize("nesting", [{}, {"max_plate_nesting": 2}])
@pytest.mark.parametrize("vectorize", [False, True])
def test_particles_average(factors, nesting, vectorize):
    toy = Toy(factors)
    x = toy.data(6)
    elbo = TraceConjugate_ELBO(num_particles=4, vectorize_particles=vectorize, **nesting)
    single = bound(toy, TraceConjugate_ELBO(), x)
    per_site = elbo.loss_per_site(toy.model, toy.guide, x)
    for name, loss in single.per_site.items():
        if name != "x":
            assert_close(per_site[name], loss, **EXACT)
    elbo.differentiable_loss(toy.model, toy.guide, x).backward()
    for posterior, optimum in zip((toy.weights, toy.loc_precision), single.optimum(x, toy), strict=True):
        assert_close(posterior.natural.grad, posterior.natural.detach() - optimum, **EXACT)


def test_vectorised_reconstruction_is_the_mean_over_particles():
    toy = Toy()
    x = toy.data(6)
    elbo = TraceConjugate_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    [(program, guide)] = elbo.traces(toy.model, toy.guide, x)
    z = guide.nodes["z"]["value"]
    assert z.shape == (3, toy.factors, 6, toy.dim)
    [term] = [t for t in elbo.average([elbo.terms_of(program, guide)]) if t.name == "x"]
    log_prob = torch.stack([toy.likelihood(one).log_prob(x).sum() for one in z]).mean()
    assert_close(term.value, -log_prob * toy.num_data / 6, **EXACT)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("wrap", ["modules", "methods"])
def test_called_it_is_a_module_with_the_parameters_of_both(local, wrap):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(6)
    pair = (toy.model, toy.guide)
    if wrap == "modules":
        pair = tuple(Forwarded(toy, name) for name in ("model", "guide"))
    with pyro.settings.context(module_local_params=local):
        loss = elbo(*pair)
        assert set(loss.parameters()) == set(toy.parameters())
        optim = NaturalGradient(0.1, partial(torch.optim.SGD, lr=1e-3))
        before = toy.encoder.weight.detach().clone()
        value = seeded(loss, x)
        assert_close(value, bound(toy, elbo, x).total, **EXACT)
        value.backward()
        optim(loss.parameters())
    assert not torch.equal(before, toy.encoder.weight)


class Forwarded(torch.nn.Module):
    def __init__(self, toy, name):
        super().__init__()
        self.toy, self.name = toy, name

    def forward(self, *args):
        pyro.module(self.name, self.toy)
        return getattr(self.toy, self.name)(*args)


class Callable:
    def __init__(self, toy):
        self.toy = toy

    def __call__(self, x):
        return self.toy.guide(x)


@pytest.mark.parametrize(
    ("program", "got"),
    [
        (lambda toy: 3, "int"),
        (lambda toy: Toy, "type"),
        (lambda toy: partial(toy.guide), "partial"),
        (lambda toy: poutine.scale(toy.guide, 2.0), "_bound|function|method"),
        (Callable, "Callable"),
        (lambda toy: lambda x: toy.guide(x), "a function that uses the module 'toy'"),
    ],
    ids=["number", "class", "partial", "handler", "callable", "closure"],
)
def test_called_with_something_whose_parameters_are_not_found(program, got):
    with pytest.raises(TypeError, match=rf"^guide: expected a torch\.nn\.Module, .*, got .*({got})"):
        TraceConjugate_ELBO()(lambda: None, program(Toy()))


def test_called_with_functions():
    """As with Pyro's own ELBOs, a function is as good as a module while it has no parameters."""

    def model(x):
        location = pyro.sample("location", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(location, 1.0), obs=x)

    x, guide = torch.randn(5), AutoNormal(model)
    guide(x)
    losses = []
    for estimator in (TraceConjugate_ELBO, TraceMeanField_ELBO):
        pyro.set_rng_seed(0)
        module = estimator()(model, guide)
        assert set(module.parameters()) == set(guide.parameters()) != set()
        losses.append(module(x))
    assert_close(*losses)


def test_called_with_functions_that_have_parameters():
    def guide():
        pyro.sample("location", dist.Delta(pyro.param("point", torch.tensor(0.5))))

    def model():
        pyro.sample("location", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"^guide: expected .*, got a function with the parameter 'point'"):
        TraceConjugate_ELBO()(model, guide)()


@pytest.mark.parametrize("local", [False, True])
def test_svi_trains_two_models_of_one_class_apart(local):
    with pyro.settings.context(module_local_params=local):
        toys = [Toy(), Toy()]
        svis = [
            SVI(t.model, t.guide, NaturalGradient(0.1, torch.optim.Adam), TraceConjugate_ELBO()) for t in toys
        ]
        x = toys[0].data()
        for toy, other, svi in zip(toys, toys[::-1], svis, strict=True):
            before = [{n: p.detach().clone() for n, p in t.named_parameters()} for t in (toy, other)]
            expected = bound(toy, svi.loss.__self__, x).total.item()
            assert seeded(svi.evaluate_loss, x) == pytest.approx(expected, rel=1e-12)
            assert seeded(svi.step, x) == pytest.approx(expected, rel=1e-12)
            for name, parameter in toy.named_parameters():
                assert not torch.equal(parameter, before[0][name]), name
            for name, parameter in other.named_parameters():
                assert torch.equal(parameter, before[1][name]), name


@pytest.mark.parametrize("scale", [0.05, torch.tensor(3.0)])
def test_scale_around_everything_leaves_natural_gradients_alone(scale):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(6)
    brute = bound(toy, elbo, x)
    model, guide = (poutine.scale(program, scale=scale) for program in (toy.model, toy.guide))
    loss = seeded(elbo.differentiable_loss, model, guide, x)
    assert_close(loss, scale * brute.total, **EXACT)
    grads, plain = gradients(loss, toy), gradients(brute.total, toy.decoder)
    weights, loc_precision = brute.optimum(x, toy)
    assert_close(grads["weights.natural"], toy.weights.natural - weights, **EXACT)
    assert_close(grads["loc_precision.natural"], toy.loc_precision.natural - loc_precision, **EXACT)
    assert_close(grads["decoder.weight"], scale * plain["weight"], **EXACT)


def test_a_loss_scaled_before_backward_is_refused():
    toy = Toy()
    x = toy.data()
    with pytest.raises(ValueError, match=r"the loss was multiplied by 0\.05 before backward\(\)"):
        (TraceConjugate_ELBO().differentiable_loss(toy.model, toy.guide, x) / 20).backward()


def test_a_scaled_loss_is_fine_without_natural_posteriors():
    toy = Toy(standard=True)
    (TraceConjugate_ELBO().differentiable_loss(toy.model, toy.guide, toy.data()) / 20).backward()
    assert toy.loc_precision.loc.grad.abs().max() > 0


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_label_weight_out_of_range(weight):
    with pytest.raises(ValueError, match="label_weight: expected a number >= 0, got"):
        TraceConjugate_ELBO(label_weight=weight)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_kl_weight_out_of_range(weight):
    with pytest.raises(ValueError, match="kl_weight: expected a number > 0, got"):
        TraceConjugate_ELBO(kl_weight=weight)


def with_another_use_of_the_weights(toy, y):
    """Its model, with Gaussian observations of the first weight of every factor."""

    def model(x):
        weights = poutine.trace(toy.model).get_trace(x).nodes["weights"]["value"]
        pyro.sample("y", dist.Normal(weights[..., 0], 1.0).to_event(2), obs=y)

    return model


def test_globals_in_standard_parameters_are_drawn_for_what_else_uses_them():
    toy, elbo, y = Toy(standard=True), TraceConjugate_ELBO(), torch.full((2, 1), 0.3)
    x, model = toy.data(), with_another_use_of_the_weights(toy, y)
    terms = seeded(elbo.loss_per_site, model, toy.guide, x)
    expected = seeded(elbo.loss_per_site, toy.model, toy.guide, x)
    exact = [name for name in expected if name != "x"]  # which is estimated at the draw of z
    assert_close([terms[name] for name in exact], [expected[name] for name in exact], **EXACT)
    draws = torch.stack([elbo.loss_per_site(model, toy.guide, x)["y"] for _ in range(100)])
    first = toy.weights()
    squares = (y - first.mean[..., 0]) ** 2 + first.variance[..., 0]
    mean = (squares / 2 + math.log(2 * math.pi) / 2).sum()
    assert (draws.mean() - mean).abs() < 4 * draws.std() / 100**0.5
    with pytest.raises(ValueError, match="site 'weights': its value is needed"):
        natural = Toy()
        elbo.loss(with_another_use_of_the_weights(natural, y), natural.guide, x)


def test_natural_parameters_are_not_drawn():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data()
    z = draw_z(elbo, toy.model, toy.guide, x)
    loc, scale = toy.encode(x)
    pyro.set_rng_seed(3)
    assert_close(z, loc + scale * torch.normal(torch.zeros_like(loc), torch.ones_like(loc)), **EXACT)
