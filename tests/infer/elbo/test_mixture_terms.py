"""Labels, given responsibilities, scales and masks: what a mixture contributes to the bound."""

import contextlib
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    Assignment,
    Component,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
    NormalGamma,
)
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.programs import (
    Adjust,
    BruteForce,
    Toy,
    bound,
    draw_z,
    globals_of,
    gradients,
    natural_components,
    natural_weights,
    nodes,
    seeded,
)

EXACT = {"rtol": 1e-11, "atol": 1e-11}
B = 6
LABELS = {
    "all": [[0, 1, 2, 2, 1, 0], [2, 2, 1, 1, 0, 0]],
    "none": [[-1] * 6] * 2,
    "one factor": [[0, 1, 2, 2, 1, 0], [-1] * 6],
    "some points": [[0, -1, 2, -1, 1, 0], [-1, -1, 1, 0, 2, -1]],
}


@pytest.fixture(params=LABELS.values(), ids=LABELS.keys())
def labels(request):
    return torch.tensor(request.param)


def assert_sites(per_site, brute):
    for name, loss in brute.per_site.items():
        assert_close(per_site[name], loss, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def assert_collapsed(expected, toy, elbo, model, guide, x):
    """That KL[z] + KL[r] is this, with the same gradients for the encoder."""
    per_site = seeded(elbo.loss_per_site, model, guide, x)
    found = per_site["z"] + per_site["assignment"]
    assert_close(found, expected, **EXACT)
    grads = gradients(found, toy.encoder)
    for name, grad in gradients(expected, toy.encoder).items():
        assert_close(grads[name], grad, **EXACT)


def observing(toy, name, labels):
    """The model with labels as observed children, or with the label site or the assignment conditioned on."""
    if name == "child":
        return toy.model
    if name == "label":
        model = poutine.condition(toy.model, data={"label": labels})
        return lambda x, _: model(x, torch.full_like(labels, -1))
    model = poutine.condition(toy.model, data={"assignment": labels})
    return lambda x, _: model(x)


@pytest.mark.parametrize("how", ["child", "label"])
def test_labels_clamp(labels, how):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(B)
    model = observing(toy, how, labels)
    brute = BruteForce(toy, x, draw_z(elbo, toy.model, toy.guide, x), labels)
    assert_sites(seeded(elbo.loss_per_site, model, toy.guide, x, labels), brute)
    gamma = elbo.responsibilities(model, toy.guide, x, labels)["assignment"]
    assert_close(gamma, brute.gamma, **EXACT)
    free = elbo.responsibilities(model, toy.guide, x, labels, clamped=False)["assignment"]
    assert_close(free, bound(toy, elbo, x).gamma, **EXACT)


def test_an_observed_assignment_clamps_every_point():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x, labels = toy.data(B), torch.tensor(LABELS["all"])
    model = observing(toy, "assignment", labels)
    brute = BruteForce(toy, x, draw_z(elbo, toy.model, toy.guide, x), labels)
    loss = seeded(elbo.differentiable_loss, model, toy.guide, x, labels)
    assert_close(loss, brute.total, **EXACT)
    grads = gradients(loss, toy)
    weights, loc_precision = brute.optimum(x, toy)
    assert_close(grads["weights.natural"], toy.weights.natural - weights, **EXACT)
    assert_close(grads["loc_precision.natural"], toy.loc_precision.natural - loc_precision, **EXACT)


def test_a_masked_label_says_nothing():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x, labels = toy.data(B), torch.tensor(LABELS["all"])
    seen = torch.tensor(LABELS["some points"]) >= 0

    def model(x):
        with Adjust(["label"], mask=seen):
            toy.model(x, labels)

    brute = BruteForce(toy, x, draw_z(elbo, toy.model, toy.guide, x), torch.where(seen, labels, -1))
    assert_sites(seeded(elbo.loss_per_site, model, toy.guide, x), brute)


@pytest.mark.parametrize("kind", [dist.Categorical, Assignment])
def test_the_guides_own_probabilities_are_used(labels, kind):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(B)
    logits = torch.nn.Parameter(torch.randn(2, B, 3))

    toy.assigned = lambda: kind(logits.softmax(-1))
    known = torch.nn.functional.one_hot(labels.clamp(min=0), 3).to(logits)
    gamma = torch.where(labels.unsqueeze(-1) >= 0, known, logits.softmax(-1))
    brute = BruteForce(toy, x, draw_z(elbo, toy.model, toy.guide, x, labels), gamma=gamma)
    loss = seeded(elbo.differentiable_loss, toy.model, toy.guide, x, labels)
    assert_close(loss, brute.total, **EXACT)
    ours, expected = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (loss, brute.total))
    assert_close(ours, expected, **EXACT)


def test_the_guides_probabilities_may_underflow():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(B)
    logits = torch.nn.Parameter(torch.tensor([0.0, -900.0, -900.0]).expand(2, B, 3).clone())

    toy.assigned = lambda: dist.Categorical(logits=logits)
    [grad] = torch.autograd.grad(elbo.differentiable_loss(toy.model, toy.guide, x), logits)
    assert grad.isfinite().all()


def test_a_component_of_weight_zero_is_as_none():
    toy, elbo, weights = Toy(), TraceConjugate_ELBO(), torch.tensor([0.6, 0.4, 0.0])
    x = toy.data(B)
    model = poutine.condition(toy.model, data={"weights": weights.expand(2, 1, 3)})
    brute = bound(toy, elbo, x)
    logits = brute.expected[..., :2] + weights[:2].log()
    collapsed = -brute.scale * (logits.logsumexp(-1) + brute.entropy).sum()
    assert_collapsed(collapsed, toy, elbo, model, toy.guide, x)


def test_probability_of_the_guide_for_a_component_of_weight_zero_is_an_error():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    toy.assigned = lambda: dist.Categorical(torch.full((2, B, 3), 1 / 3))
    model = poutine.condition(toy.model, data={"weights": torch.tensor([0.6, 0.4, 0.0]).expand(2, 1, 3)})
    with pytest.raises(ValueError, match=r"the loss is not finite .* 'assignment' \(inf\)"):
        elbo.loss(model, toy.guide, toy.data(B))


@pytest.mark.parametrize("masked_sites", [["x", "z", "assignment", "label"], ["z", "assignment"]])
def test_masked_points_contribute_nothing(masked_sites):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(B)
    keep = torch.tensor([True, False, True, True, False, True])
    model, guide = (Adjust(masked_sites, mask=keep)(program) for program in (toy.model, toy.guide))
    loss = seeded(elbo.differentiable_loss, model, guide, x)
    brute = bound(toy, elbo, x)
    kl = (brute.kl_z_of_points + brute.kl_r_of_points)[:, keep].sum() * brute.scale
    z = draw_z(elbo, toy.model, toy.guide, x)
    used = keep if "x" in masked_sites else torch.ones_like(keep)
    reconstruction = -toy.likelihood(z).log_prob(x)[used].sum() * brute.scale
    assert_close(loss, reconstruction + kl + brute.kl_weights + brute.kl_components, **EXACT)
    brute.gamma = brute.gamma * keep.unsqueeze(-1)
    grads = gradients(loss, toy)
    weights, loc_precision = brute.optimum(x, toy)
    assert_close(grads["weights.natural"], toy.weights.natural - weights, **EXACT)
    assert_close(grads["loc_precision.natural"], toy.loc_precision.natural - loc_precision, **EXACT)


@pytest.mark.parametrize("missing", [torch.nan, torch.inf])
@pytest.mark.parametrize("how", ["mask", "obs_mask", "obs_mask with q"])
def test_masked_observations_need_not_be_numbers(how, missing):
    keep = torch.tensor([True, False, True, True, False, True])
    unobserved = dist.Normal(torch.zeros(B, 2), 1.0).to_event(1)

    def model(x):
        weights, loc_precision = globals_of()
        masked = {} if how == "mask" else {"obs_mask": keep}
        mask = contextlib.nullcontext() if masked else poutine.mask(mask=keep)
        with pyro.plate("data", B, dim=-1), mask:
            assignment = pyro.sample("assignment", Assignment(weights))
            pyro.sample("x", Component(loc_precision, assignment), obs=x, **masked)

    globals_guide = AutoConjugate(model)

    def guide(x):
        globals_guide(x)
        if how == "obs_mask with q":
            with pyro.plate("data", B, dim=-1):
                pyro.sample("x_unobserved", unobserved)

    x = torch.randn(B, 2)
    elbo = TraceConjugate_ELBO()
    expected = elbo.differentiable_loss(model, guide, x)
    gradient = gradients(expected, globals_guide)
    found = elbo.differentiable_loss(model, guide, x.masked_fill(~keep[:, None], missing))
    assert_close(found, expected, **EXACT)
    assert_close(gradients(found, globals_guide), gradient, **EXACT)


def test_what_obs_mask_leaves_unobserved_is_integrated_out():
    """As if masked: all assignments stay in the bound. A use of what was not observed is an error."""
    keep, x = torch.tensor([True, False, True, True, False, True]), torch.randn(B, 2)

    def model(x, used=False, **masked):
        weights, loc_precision = globals_of()
        with pyro.plate("data", B, dim=-1):
            r = pyro.sample("assignment", Assignment(weights))
            with contextlib.nullcontext() if masked else poutine.mask(mask=keep):
                z = pyro.sample("x", Component(loc_precision, r), obs=x, **masked)
            if used:
                pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=x)

    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    guide(x)
    expected = elbo.differentiable_loss(model, guide, x)
    found = elbo.differentiable_loss(partial(model, obs_mask=keep), guide, x)
    assert_close(found, expected, **EXACT)
    assert_close(gradients(found, guide), gradients(expected, guide), **EXACT)
    with pytest.raises(ValueError, match="site 'x_unobserved': its value is needed"):
        elbo.loss(partial(model, used=True, obs_mask=keep), guide, x)


@pytest.mark.parametrize("weight", [0.3, 20.0])
def test_scale_on_z_alone_is_the_weighted_collapse(weight):
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(B)

    model, guide = (Adjust(["z"], scale=weight)(program) for program in (toy.model, toy.guide))
    brute = bound(toy, elbo, x, kl_weight=weight)
    logits = weight * brute.expected + brute.log_weights
    collapsed = -brute.scale * (logits.logsumexp(-1) + weight * brute.entropy).sum()
    assert_collapsed(collapsed, toy, elbo, model, guide, x)


def test_scale_around_the_data_counts_points_more():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data()
    brute = bound(toy, elbo, x)

    scaled = Adjust(["z", "assignment", "x"], scale=2.5)
    model, guide = scaled(toy.model), scaled(toy.guide)
    loss = seeded(elbo.differentiable_loss, model, guide, x)
    data = brute.reconstruction + brute.kl_z + brute.kl_r
    assert_close(loss, 2.5 * data + brute.kl_weights + brute.kl_components, **EXACT)
    brute.scale *= 2.5
    grads = gradients(loss, toy)
    weights, loc_precision = brute.optimum(x, toy)
    assert_close(grads["weights.natural"], toy.weights.natural - weights, **EXACT)
    assert_close(grads["loc_precision.natural"], toy.loc_precision.natural - loc_precision, **EXACT)


class TestScaleOfEachElement:
    """Documents that count differently, with λ of their own or one λ for all."""

    documents, words, components, dim = 2, 5, 3, 2
    scales = (1.0, 2.0, *map(torch.tensor, (2.0, [0.5], [[1.0], [1.0]], [[1.0], [3.0]])))

    def natural_gradients(self, scale, weights, loc_precision, z):
        """Of natural posteriors at everything in the plate of the documents, all of it scaled."""

        def model():
            with pyro.plate("documents", self.documents, dim=-2), poutine.scale(scale=scale):
                pi = pyro.sample("weights", dist.Dirichlet(torch.ones(self.components)))
                with pyro.plate("components", self.components, dim=-1):
                    prior = NormalGamma(torch.zeros(self.dim), 1.0, 2.0, 3.0)
                    components = pyro.sample("loc_precision", prior)
                with pyro.plate("words", self.words, dim=-1):
                    r = pyro.sample("r", Assignment(pi))
                    pyro.sample("z", Component(components, r), obs=z)

        def guide():
            with pyro.plate("documents", self.documents, dim=-2):
                pyro.sample("weights", NaturalDirichlet(weights))
                with pyro.plate("components", self.components, dim=-1):
                    pyro.sample("loc_precision", NaturalNormalGamma(loc_precision))

        loss = TraceConjugate_ELBO().differentiable_loss(model, guide)
        return torch.autograd.grad(loss, [weights, loc_precision])

    @pytest.mark.parametrize("shared", [False, True])
    def test_natural_gradients_are_those_of_the_unscaled_program(self, shared):
        weights, loc_precision = natural_weights(2, 3), natural_components(2, 3, 2)
        if shared:
            weights, loc_precision = weights[0, 0], loc_precision[0]
        z = torch.randn(self.documents, self.words, self.dim)
        parameters = [NaturalParameter(weights), NaturalParameter(loc_precision)]
        plain, *scaled = (self.natural_gradients(scale, *parameters, z) for scale in self.scales)
        for found in scaled:
            assert_close(found, plain, **EXACT)

    def test_a_site_that_lacks_the_dimensions_of_its_scale_counts_as_their_sum(self):
        natural, scale = NaturalParameter(2 + torch.rand(3)), torch.tensor([[1.0], [3.0]])
        observed = torch.zeros(self.documents, self.words, dtype=torch.int64)

        def model():
            with poutine.scale(scale=scale):
                weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
            documents, words = (
                pyro.plate("documents", self.documents, dim=-2),
                pyro.plate("words", self.words, dim=-1),
            )
            with documents, words, poutine.scale(scale=scale):
                pyro.sample("r", Assignment(weights), obs=observed)

        def guide():
            pyro.sample("weights", NaturalDirichlet(natural))

        [grad] = torch.autograd.grad(TraceConjugate_ELBO().differentiable_loss(model, guide), natural)
        # (1 + 3) KL[λ] and 1 + 3 times 5 words; in proportion, one prior and five words.
        assert_close(grad, natural - (1 + torch.tensor([5.0, 0.0, 0.0])), **EXACT)


class TestClassificationTerm:
    @pytest.mark.parametrize("how", ["child", "label"])
    def test_value_on_unclamped_logits(self, labels, how):
        toy, weight = Toy(standard=True), 1000.0
        x, model = toy.data(B), observing(toy, how, labels)
        plain, elbo = TraceConjugate_ELBO(), TraceConjugate_ELBO(label_weight=weight)
        brute = bound(toy, plain, x)
        picked = brute.logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        expected = -weight * toy.num_data / B * (picked * (labels >= 0)).sum()
        sites = seeded(elbo.loss_per_site, model, toy.guide, x, labels)
        assert_close(sites.pop("label"), expected, **EXACT)
        for name, loss in seeded(plain.loss_per_site, model, toy.guide, x, labels).items():
            assert_close(sites[name], loss, **EXACT)

    def test_observed_assignment_counts_as_labels(self):
        toy, labels = Toy(standard=True), torch.tensor(LABELS["all"])
        x, elbo = toy.data(B), TraceConjugate_ELBO(label_weight=3.0)
        terms = [
            elbo.loss_per_site(observing(toy, how, labels), toy.guide, x, labels)[name]
            for how, name in (("child", "label"), ("assignment", "assignment/label"))
        ]
        assert_close(terms[0], terms[1], **EXACT)

    def test_gradients_equal_finite_differences(self):
        toy, elbo = Toy(standard=True), TraceConjugate_ELBO(label_weight=10.0)
        x, labels = toy.data(B), torch.tensor(LABELS["some points"])

        def loss():
            return seeded(elbo.differentiable_loss, toy.model, toy.guide, x, labels)

        step = 1e-5
        for name, grad in gradients(loss(), toy).items():
            parameter = toy.get_parameter(name)
            direction = torch.randn_like(parameter)
            ends = []
            for sign in (step, -step):
                with torch.no_grad():
                    parameter += sign * direction
                    ends.append(loss().item())
                    parameter -= sign * direction
            slope = (ends[0] - ends[1]) / (2 * step)
            assert slope == pytest.approx((grad * direction).sum().item(), rel=1e-6, abs=1e-5), name

    @pytest.mark.parametrize("how", ["child", "assignment"])
    @pytest.mark.parametrize("weight", [1.0, torch.tensor(1.0)])
    def test_natural_posteriors_are_refused(self, how, weight):
        toy, elbo = Toy(), TraceConjugate_ELBO()
        elbo.label_weight = weight
        x, labels = toy.data(B), torch.tensor(LABELS["all"])
        with pytest.raises(ValueError, match="site 'weights': while label_weight > 0, the posterior"):
            elbo.loss(observing(toy, how, labels), toy.guide, x, labels)

    def test_natural_posteriors_of_unlabelled_mixtures_are_fine(self):
        toy = Toy()
        x = toy.data(B)
        losses = [
            seeded(TraceConjugate_ELBO(label_weight=w).loss, toy.model, toy.guide, x) for w in (0.0, 1.0)
        ]
        assert losses[0] == losses[1]


def test_standard_posteriors_give_the_same_value():
    natural, standard = Toy(), Toy(standard=True)
    standard.load_state_dict(natural.encoder.state_dict(prefix="encoder."), strict=False)
    x, elbo = standard.data(B), TraceConjugate_ELBO()
    brute = bound(standard, elbo, x)
    assert_sites(seeded(elbo.loss_per_site, standard.model, standard.guide, x), brute)
    assert "weights" in nodes(standard.guide, x)


@pytest.mark.parametrize("vectorize", [False, True])
def test_particles_with_labels(labels, vectorize):
    toy = Toy(standard=True)
    x = toy.data(B)
    options = {"num_particles": 3, "vectorize_particles": vectorize, "max_plate_nesting": 2}
    elbo, single = (TraceConjugate_ELBO(label_weight=5.0, **o) for o in (options, {}))
    sites = elbo.loss_per_site(toy.model, toy.guide, x, labels)
    for name, loss in single.loss_per_site(toy.model, toy.guide, x, labels).items():
        if name != "x":
            assert_close(sites[name], loss, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
