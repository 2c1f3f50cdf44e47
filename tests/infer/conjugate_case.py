"""Tests of inference that every family inherits; a family's own test brings its distributions."""

import copy
import shutil
from functools import partial
from itertools import pairwise
from typing import ClassVar

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, TraceEnum_ELBO
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Label, NaturalDirichlet, NaturalParameter
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
    with_assignments,
)
from pyro_fmvae.infer.elbo.lazy import Unsampled
from pyro_fmvae.infer.elbo.shorthand import PlaceholderMessenger
from pyro_fmvae.infer.posteriors import (
    NaturalPosterior,
    StandardPosterior,
    param_statements,
    random_posterior,
    to_natural,
    to_standard,
)
from pyro_fmvae.infer.seeding import better_mixture, coordinate_ascent, kmeans, kmeans_mixture
from tests.capture.captured import CLOSE, assert_twins
from tests.infer.programs import (
    Adjust,
    assert_equal_in_expectation,
    estimate,
    gradients,
    natural_weights,
    nodes,
    seeded,
)

N, B, K, C0, RATE = 20, 6, 3, 0.7, 0.4
EXACT = {"rtol": 1e-11, "atol": 1e-11}
adam, frozen = partial(torch.optim.Adam, lr=1e-2), partial(torch.optim.SGD, lr=0.0)


class PosteriorCase:
    """The posterior of one site as a module, in natural and in standard parameters."""

    kind: ClassVar  # the class in natural parameters
    parameters: ClassVar[list]  # names of a module's parameters in the standard form

    def prior(self):
        raise NotImplementedError

    def natural(self):
        """λ [K, P] of random posteriors."""
        return random_posterior(self.prior().expand([K]), 5.0).natural_value()

    def module(self, offset=0.0):
        return NaturalPosterior(self.kind, (1 + offset) * self.natural())

    def test_round_trip_between_natural_and_standard(self):
        posterior = self.module()
        there = to_standard(posterior)
        back = to_natural(there)
        assert type(there) is StandardPosterior and type(back) is NaturalPosterior
        assert there.kind is back.kind is self.kind
        assert isinstance(back.natural, NaturalParameter)
        for same in (there.natural_value(), back.natural_value()):
            assert same.dtype == torch.float64 and not same.requires_grad
            assert_close(same, posterior.natural_value(), rtol=1e-13, atol=1e-13)
        assert to_standard(there) is there and to_natural(posterior) is posterior
        assert list(there.state_dict()) == self.parameters

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_standard_form_is_the_distribution_in_the_default_dtype(self, dtype):
        torch.set_default_dtype(dtype)
        posterior = self.module()
        q, family = to_standard(posterior)(), self.kind.family
        assert type(q) is family.distribution
        standard = family.unpack(posterior.natural_value())
        for name, expected in zip(family.names, standard, strict=True):
            assert getattr(q, name).dtype == dtype
            assert_close(getattr(q, name).detach(), expected.to(dtype))

    @pytest.mark.parametrize("assign", [False, True])
    def test_what_is_loaded_keeps_its_class(self, assign):
        for convert, kind in ((to_natural, NaturalParameter), (to_standard, nn.Parameter)):
            posterior, other = convert(self.module()), convert(self.module(0.5))
            state = nn.ModuleList([other]).state_dict()
            nn.ModuleList([posterior]).load_state_dict(state, assign=assign)
            assert all(type(p) is kind for p in posterior.parameters())
            assert all(type(value) is torch.Tensor for value in state.values())
            assert torch.equal(posterior.natural_value(), other.natural_value())

    def test_a_module_made_without_memory_is_loaded_by_assignment(self):
        state = self.module(0.5).state_dict()
        posterior = self.module().to("meta")
        posterior.load_state_dict(state, assign=True)
        assert type(posterior.natural) is NaturalParameter
        assert torch.equal(posterior.natural_value(), state["natural"])
        with pytest.raises(RuntimeError, match="natural"):
            posterior.load_state_dict({"natural": "text"}, assign=True)

    def test_ordinary_parameters_are_refused(self):
        posterior = self.module()
        posterior.natural = nn.Parameter(posterior.natural_value())
        with pytest.raises(TypeError, match="natural: expected a NaturalParameter, got a Parameter"):
            posterior()

    @pytest.mark.parametrize("convert", [to_natural, to_standard])
    def test_conversion_of_a_module_keeps_float64_and_type(self, convert):
        posterior = convert(self.module())
        parameters = list(posterior.parameters())
        holder = nn.ModuleDict({"posterior": posterior, "network": nn.Linear(2, 2)})
        holder.half()
        assert holder["network"].weight.dtype == torch.float16
        for before, after in zip(parameters, posterior.parameters(), strict=True):
            assert before is after and after.dtype == torch.float64

    def test_a_prior_in_natural_parameters(self):
        prior = self.prior()
        natural = natural_prior(prior.expand([2, 3]).to_event(1))
        assert type(natural) is self.kind and natural.batch_shape == (2, 3)
        for name, back in zip(natural.family.names, natural.standard, strict=True):
            assert_close(back, getattr(prior, name).expand_as(back).double())


class Mixture(nn.Module):
    """A mixture of a family's components: observed or, with an encoder, latent and seen with unit noise.

    Args:
        case: the family.
        latent: whether the points are latent.
        standard: whether the posteriors are in standard parameters.
    """

    def __init__(self, case, latent=False, standard=False):
        super().__init__()
        self.case, self.latent = case, latent
        width = case.observe(1)[0].numel()
        self.encoder = nn.Linear(width, 2 * width)
        self.weights = NaturalPosterior(NaturalDirichlet, natural_weights(1, K)[0, 0])
        self.theta = random_posterior(case.prior().expand([K]), 5.0)
        if standard:
            self.weights, self.theta = to_standard(self.weights), to_standard(self.theta)

    def model(self, x, labels=None):
        weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), C0)))
        with pyro.plate("components", K, dim=-1):
            theta = pyro.sample("theta", self.case.prior())
        with pyro.plate("data", N, subsample=x, dim=-1):
            r = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            if labels is not None:
                pyro.sample("label", Label(r), obs=labels)
            component = self.case.component(theta, r)
            z = pyro.sample("z", component, obs=None if self.latent else x)
            if self.latent:
                pyro.sample("x", dist.Normal(z, 1.0).to_event(component.event_dim), obs=x)

    def posterior(self, x):
        """q(z | x)."""
        loc, log_scale = self.encoder(x.reshape(len(x), -1)).chunk(2, -1)
        return self.case.q(loc.reshape(x.shape), log_scale.reshape(x.shape).exp())

    def guide(self, x, labels=None):
        param_statements("mixture", self)
        pyro.sample("weights", self.weights())
        with pyro.plate("components", K, dim=-1):
            pyro.sample("theta", self.theta())
        if self.latent:
            q = self.posterior(x)
            with pyro.plate("data", N, subsample=x, dim=-1):
                pyro.sample("z", q)

    def optimum(self, x, gamma):
        """λ* of the weights and of the components, by the conjugate update of the families."""
        with torch.no_grad():
            q = self.posterior(x) if self.latent else dist.Delta(x)
            moments = q.mean, q.variance
        prior = natural_prior(self.case.prior().expand([K]))
        components = prior.family.conjugate_update(prior.natural, gamma, *moments, N / len(x))
        return C0 + N / len(x) * gamma.sum(0), components

    def natural_gradients(self, loss):
        grads = gradients(loss, self)
        return grads["weights.natural"], grads["theta.natural"]


class ConjugateCase(PosteriorCase):
    """Mixtures of a family's components, from placeholders to captured steps."""

    component: ClassVar  # distribution of a point given θ and the assignments

    def q(self, loc, scale):
        """A distribution of latent points, from any numbers and positive ones, each [B, *shape of x]."""
        raise NotImplementedError

    def observe(self, count):
        """Observations [count, *shape of x]."""
        raise NotImplementedError

    def clusters(self, count):
        """Observations far apart by cluster, and these."""
        raise NotImplementedError

    @pytest.fixture
    def x(self):
        return self.observe(B)

    @pytest.fixture(params=[False, True], ids=["observed", "latent"])
    def mixture(self, request):
        return Mixture(self, request.param)

    # The bound

    def test_its_value_is_never_drawn(self, mixture, x):
        with PlaceholderMessenger():
            assert isinstance(nodes(mixture.guide, x)["theta"]["value"], Unsampled)

        def branching(x):
            if (nodes(mixture.model, x)["theta"]["value"] > 0).all():
                pyro.sample("never", dist.Normal(0.0, 1.0))

        with pytest.raises(ValueError, match="site 'theta': its value is needed"):
            TraceConjugate_ELBO().loss(branching, mixture.guide, x)

    @pytest.mark.filterwarnings(r"ignore:(?s)\s*at model site \"x\", possibly invalid:RuntimeWarning")
    def test_trace_enum_is_equal_in_expectation(self, mixture, x):
        """Value and gradients, natural ones included: Pyro's own ELBO draws everything but assignments."""
        options = {"num_particles": 200, "vectorize_particles": True, "max_plate_nesting": 1}
        names = [name for name, p in mixture.named_parameters() if mixture.latent or "encoder" not in name]

        def evaluate(elbo, guide):
            loss = elbo.differentiable_loss(mixture.model, guide, x)
            grads = gradients(loss, mixture)
            return torch.cat([loss.detach().reshape(1), *(grads[name].flatten() for name in names)])

        enumerated = with_assignments(mixture.model, mixture.guide)
        theirs = estimate(lambda: evaluate(TraceEnum_ELBO(**options), enumerated), 30)
        ours = estimate(lambda: evaluate(TraceConjugate_ELBO(**options), mixture.guide), 30)
        assert_equal_in_expectation(theirs, ours, sigmas=5)
        sizes = [1, *(mixture.get_parameter(name).numel() for name in names)]
        for error, mean in zip(theirs[1].split(sizes), ours[0].split(sizes), strict=True):
            assert error.norm() < 0.2 * mean.norm()  # so that the comparison has power

    def test_natural_gradient_is_the_way_to_the_conjugate_posterior(self, mixture, x):
        elbo = TraceConjugate_ELBO()
        gamma = elbo.responsibilities(mixture.model, mixture.guide, x)["assignment"]
        grads = mixture.natural_gradients(elbo.differentiable_loss(mixture.model, mixture.guide, x))
        posteriors = mixture.weights, mixture.theta
        for posterior, grad, best in zip(posteriors, grads, mixture.optimum(x, gamma), strict=True):
            assert_close(grad, posterior.natural_value() - best, **EXACT)

    @pytest.mark.parametrize("scale", [0.05, torch.tensor(3.0)])
    def test_scale_around_everything_leaves_natural_gradients_alone(self, mixture, x, scale):
        elbo, programs = TraceConjugate_ELBO(), (mixture.model, mixture.guide)
        plain = seeded(elbo.differentiable_loss, *programs, x)
        model, guide = (poutine.scale(program, scale=scale) for program in programs)
        scaled = seeded(elbo.differentiable_loss, model, guide, x)
        assert_close(scaled, scale * plain, **EXACT)
        for found, expected in zip(*map(mixture.natural_gradients, (scaled, plain)), strict=True):
            assert_close(found, expected, **EXACT)

    @pytest.mark.parametrize("factored", ["model", "guide"])
    def test_a_factor_adds_its_number_alone(self, mixture, x, factored):
        elbo, number = TraceConjugate_ELBO(), torch.tensor(0.7)

        def with_factor(program):
            def run(x):
                program(x)
                pyro.factor("factor", number, has_rsample=True)

            return run

        programs = {"model": mixture.model, "guide": mixture.guide}
        plain = seeded(elbo.differentiable_loss, *programs.values(), x)
        programs[factored] = with_factor(programs[factored])
        found = seeded(elbo.differentiable_loss, *programs.values(), x)
        assert_close(found, plain - (number if factored == "model" else -number), **EXACT)
        for one, other in zip(*map(mixture.natural_gradients, (found, plain)), strict=True):
            assert_close(one, other, **EXACT)

    def test_a_factor_of_a_value_that_is_not_drawn_is_refused(self, mixture, x):
        def model(x):
            theta = poutine.trace(mixture.model).get_trace(x).nodes["theta"]["value"]
            pyro.factor("factor", -theta.square().sum())

        with pytest.raises(ValueError, match="site 'theta': its value is needed"):
            TraceConjugate_ELBO().loss(model, mixture.guide, x)

    def test_a_factor_of_a_draw_in_standard_parameters(self, x):
        mixture = Mixture(self, standard=True)

        def model(x):
            theta = poutine.trace(mixture.model).get_trace(x).nodes["theta"]["value"]
            pyro.factor("factor", -theta.square().sum())

        elbo = TraceConjugate_ELBO()
        (loss, plain) = (
            seeded(elbo.differentiable_loss, m, mixture.guide, x) for m in (model, mixture.model)
        )
        with torch.no_grad():
            theta = seeded(nodes, mixture.guide, x)["theta"]["value"]
        assert_close(loss, plain + theta.square().sum(), **EXACT)

    def test_scale_around_the_points_counts_them_more(self, x):
        """Also with one scale for each point, and under recomputed responsibilities."""
        mixture, elbo = Mixture(self), TraceConjugate_ELBO()
        weight = torch.linspace(0.5, 3, B)

        def scaled(x):
            with Adjust(["assignment", "z"], scale=weight):
                mixture.model(x)

        gamma = elbo.responsibilities(mixture.model, mixture.guide, x)["assignment"]
        best = mixture.optimum(x, weight.unsqueeze(-1) * gamma)
        svi = ConjugateSVI(scaled, mixture.guide, NaturalGradient(1.0), elbo, recompute=True)
        svi.step(x)
        for posterior, expected in zip((mixture.weights, mixture.theta), best, strict=True):
            assert_close(posterior.natural_value(), expected, **EXACT)

    @pytest.mark.parametrize("weight", [0.3, torch.tensor(20.0)])
    def test_natural_gradients_do_not_see_the_weight_of_the_divergence(self, x, weight):
        mixture, plain, weighted = Mixture(self, latent=True), TraceConjugate_ELBO(), TraceConjugate_ELBO()
        weighted.kl_weight = weight
        losses = [seeded(elbo.loss_per_site, mixture.model, mixture.guide, x) for elbo in (plain, weighted)]
        for name, loss in losses[0].items():
            assert_close(losses[1][name], weight * loss if name == "z" else loss, **EXACT)
        totals = [sum(sites.values()) for sites in losses]
        for found, expected in zip(*map(mixture.natural_gradients, totals), strict=True):
            assert_close(found, expected, **EXACT)

    def test_labels_weighted_by_delta(self, mixture, x):
        labels, delta = torch.tensor([0, 1, -1, 2, -1, 0]), 7.0
        elbo, programs = TraceConjugate_ELBO(label_weight=delta), (mixture.model, mixture.guide)
        with pytest.raises(ValueError, match=r"site '.*': while label_weight > 0, .* in standard parameters"):
            elbo.loss(*programs, x, labels)
        mixture.weights, mixture.theta = to_standard(mixture.weights), to_standard(mixture.theta)
        free = elbo.responsibilities(*programs, x, labels, clamped=False)["assignment"]
        expected = -delta * N / B * free.log()[labels >= 0, labels[labels >= 0]].sum()
        assert_close(elbo.loss_per_site(*programs, x, labels)["label"], expected, **EXACT)
        optim = torch.optim.Adam(mixture.parameters(), lr=0.05)
        losses = []
        for _ in range(20):
            optim.zero_grad()
            loss = elbo.differentiable_loss(*programs, x, labels)
            losses.append(loss.item())
            loss.backward()
            optim.step()
        assert losses[-1] < losses[0]
        assert all(p.grad.abs().max() > 0 for p in mixture.theta.parameters())

    def test_both_forms_have_the_same_bound(self, mixture, x):
        losses = [seeded(TraceConjugate_ELBO().loss_per_site, mixture.model, mixture.guide, x)]
        mixture.theta = to_standard(mixture.theta)
        losses.append(seeded(TraceConjugate_ELBO().loss_per_site, mixture.model, mixture.guide, x))
        if mixture.latent:  # at other draws of z, as θ is drawn before it
            del losses[0]["x"]
        for name, loss in losses[0].items():
            assert_close(losses[1][name], loss, rtol=1e-9, atol=1e-9)

    def test_a_mean_is_refused(self, mixture, x):
        with pytest.raises(ValueError, match=r"the loss was multiplied by 0\.05 before backward\(\)"):
            (TraceConjugate_ELBO().differentiable_loss(mixture.model, mixture.guide, x) / 20).backward()

    # Steps

    def test_one_full_step_is_the_exact_posterior(self):
        x = self.observe(N)
        mixture, elbo = Mixture(self), TraceConjugate_ELBO()
        guide = AutoConjugate(mixture.model)
        guide.setup(x)
        assert set(guide.posteriors) == {"weights", "theta"}
        assert guide.posterior("theta").kind is self.kind
        gamma = elbo.responsibilities(mixture.model, guide, x)["assignment"]
        SVI(mixture.model, guide, NaturalGradient(1.0, frozen), elbo).step(x)
        for name, best in zip(("weights", "theta"), mixture.optimum(x, gamma), strict=True):
            assert_close(guide.posterior(name).natural_value(), best, **EXACT)

    def test_recomputed_responsibilities(self, x):
        """The paper's order by hand: networks, then γ at the new encoder, then λ."""
        mixture, elbo = Mixture(self, latent=True), TraceConjugate_ELBO()
        by_hand = copy.deepcopy(mixture)
        optim = adam(by_hand.encoder.parameters())
        seeded(elbo.differentiable_loss, by_hand.model, by_hand.guide, x).backward()
        optim.step()
        gamma = elbo.responsibilities(by_hand.model, by_hand.guide, x)["assignment"]
        optima = by_hand.optimum(x, gamma)
        optim = NaturalGradient(RATE, adam)
        svi = ConjugateSVI(mixture.model, mixture.guide, optim, elbo, recompute=True)
        seeded(svi.step, x)
        assert_close(mixture.encoder.weight, by_hand.encoder.weight, **EXACT)
        for name, best in zip(("weights", "theta"), optima, strict=True):
            start = getattr(by_hand, name).natural_value()
            assert_close(getattr(mixture, name).natural_value(), (1 - RATE) * start + RATE * best, **EXACT)

    @pytest.mark.parametrize("latent", [False, True])
    @pytest.mark.parametrize("recompute", [False, True])
    def test_captured_steps(self, recompute, latent):
        batches = [(self.observe(B),) for _ in range(20)]
        assert_twins(lambda: Mixture(self, latent), batches, recompute=recompute)

    def test_captured_steps_with_labels(self):
        labels = torch.tensor([0, 1, -1, 2, -1, 0])
        batches = [(self.observe(B), labels) for _ in range(20)]
        elbo = partial(TraceConjugate_ELBO, label_weight=5.0)
        assert_twins(lambda: Mixture(self, True, standard=True), batches, elbo=elbo)

    @pytest.mark.slow
    @pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")),
        reason="torch.compile needs a C++ compiler on a CPU",
    )
    def test_compiled_steps(self):
        batches = [(self.observe(B),) for _ in range(20)]
        assert_twins(lambda: Mixture(self, True), batches, CLOSE, compile=True)

    # Starting points

    def test_seeding_starts_at_the_posterior_of_clusters(self):
        x, clusters = self.clusters(N)
        mixture = Mixture(self)
        guide = AutoConjugate(mixture.model)
        guide.setup(x)
        guide.seed("z", x, torch.zeros_like(x), torch.Generator().manual_seed(0), num_data=3 * N)
        found = TraceConjugate_ELBO().responsibilities(mixture.model, guide, x)["assignment"].argmax(-1)
        assert len(set(zip(clusters.tolist(), found.tolist(), strict=True))) == K
        gamma = nn.functional.one_hot(found, K).double()
        optimum = mixture.optimum(x, gamma)
        assert_close(guide.posterior("weights").natural_value(), C0 + 3 * gamma.sum(0))
        prior = natural_prior(self.prior().expand([K])).natural
        theta = guide.posterior("theta").natural_value()
        assert_close(theta - prior, 3 * (optimum[1] - prior))

    def test_seed_refuses_other_shapes(self, x):
        mixture = Mixture(self)
        guide = AutoConjugate(mixture.model)
        guide.setup(x)
        wrong = torch.ones(*x.shape, 2)
        with pytest.raises(ValueError, match=r"loc, scale: expected shape .* for 'z', got"):
            guide.seed("z", wrong, wrong, torch.Generator())

    def test_coordinate_ascent_raises_the_bound_to_that_of_the_elbo(self):
        x, clusters = self.clusters(N)
        priors = [
            natural_prior(prior) for prior in (dist.Dirichlet(torch.full((K,), C0)), self.prior().expand([K]))
        ]
        data = x, torch.zeros_like(x)
        start = torch.where(torch.rand(N) < 0.3, torch.randint(K, (N,)), clusters)
        bounds = [coordinate_ascent(*priors, *data, start, 1.0, n, 0.0).bound for n in range(1, 10)]
        assert all(later >= earlier - 1e-9 for earlier, later in pairwise(bounds))
        found = kmeans_mixture(*priors, *data, torch.Generator().manual_seed(0), restarts=4)
        mixture = Mixture(self)
        mixture.weights = NaturalPosterior(NaturalDirichlet, found.weights.natural)
        mixture.theta = NaturalPosterior(self.kind, found.components.natural)
        assert TraceConjugate_ELBO().loss(mixture.model, mixture.guide, x) == pytest.approx(-found.bound)
        poor = coordinate_ascent(*priors, *data, torch.zeros(N, dtype=torch.int64), iterations=1)
        source = torch.Generator().manual_seed(0)
        better, gain = better_mixture(*priors, poor.weights, poor.components, *data, source, restarts=4)
        assert better.bound == found.bound and gain > 0

    def test_kmeans_of_these_points(self):
        x, clusters = self.clusters(N)
        found = kmeans(x, K, torch.Generator().manual_seed(0))
        assert len(set(zip(clusters.tolist(), found.tolist(), strict=True))) == K
