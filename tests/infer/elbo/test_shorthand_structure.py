"""The programs that docs/concepts/programs.md calls recognised, each against a sum written down for it."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, Label, NaturalDirichlet, NormalGamma
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.programs import Toy, globals_of

K, D, N = 3, 2, 7  # components, dimensions, points


def log_evidence(weights, tables):
    """Σ_n logsumexp_k { E[log π_k] + Σ tables }, for posteriors q(π) and tables of E[log N] [..., N, K]."""
    c = weights.natural_value()
    log_weights = c.digamma() - c.sum(-1, keepdim=True).digamma()
    return (log_weights + sum(tables)).logsumexp(-1).sum()


def table(loc_precision, z):
    """E[log N(z; μ_k, 1/α_k)] of points, [..., N, K]."""
    m, s, a, b = loc_precision().standard
    m, s, a, b = (t.unsqueeze(-3) for t in (m, s.unsqueeze(-1), a.unsqueeze(-1), b))
    square = a / b * (z.unsqueeze(-2) - m) ** 2
    return 0.5 * (a.digamma() - b.log() - math.log(2 * math.pi) - 1 / s - square).sum(-1)


def data_loss(model, guide, *args):
    """The loss without the divergences of the globals."""
    sites = TraceConjugate_ELBO().loss_per_site(model, guide, *args)
    return sum(loss for name, loss in sites.items() if not name.startswith(("weights", "loc_precision")))


class TestRecognised:
    def check(self, model, expected, *args):
        guide = AutoConjugate(model)
        guide(*args)
        q = {name: guide.posterior(name) for name in guide.posteriors}
        assert_close(data_loss(model, guide, *args), -expected(q), rtol=1e-11, atol=1e-11)

    def test_no_plate_of_factors(self):
        z = torch.randn(N, D)

        def model():
            weights, loc_precision = globals_of()
            with pyro.plate("data", N, dim=-1):
                pyro.sample("z", Component(loc_precision, pyro.sample("r", Assignment(weights))), obs=z)

        self.check(model, lambda q: log_evidence(q["weights"], [table(q["loc_precision"], z)]))

    def test_several_mixtures_ragged(self):
        z = {"_a": torch.randn(N, D), "_b": torch.randn(N, D + 1)}
        sizes = {"_a": 2, "_b": 5}

        def model():
            data = pyro.plate("data", N, dim=-1)
            for suffix, points in z.items():
                weights, loc_precision = globals_of(suffix, sizes[suffix], points.shape[-1])
                with data:
                    r = pyro.sample("r" + suffix, Assignment(weights))
                    pyro.sample("z" + suffix, Component(loc_precision, r), obs=points)

        def expected(q):
            return sum(log_evidence(q["weights" + s], [table(q["loc_precision" + s], z[s])]) for s in z)

        self.check(model, expected)

    def test_shared_weights(self):
        z = [torch.randn(N, D), torch.randn(N, D)]

        def model():
            weights, loc_precision = globals_of()
            with pyro.plate("data", N, dim=-1):
                for i in range(2):
                    r = pyro.sample(f"r_{i}", Assignment(weights))
                    pyro.sample(f"z_{i}", Component(loc_precision, r), obs=z[i])

        self.check(
            model, lambda q: sum(log_evidence(q["weights"], [table(q["loc_precision"], p)]) for p in z)
        )

    def test_several_children_of_one_assignment(self):
        z = [torch.randn(N, D), torch.randn(N, D)]

        def model():
            weights, first = globals_of()
            with pyro.plate("more_components", K, dim=-1):
                second = pyro.sample("loc_precision_2", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
            with pyro.plate("data", N, dim=-1):
                r = pyro.sample("r", Assignment(weights))
                pyro.sample("z_1", Component(first, r), obs=z[0])
                pyro.sample("z_2", Component(second, r), obs=z[1])

        def expected(q):
            tables = [table(q["loc_precision"], z[0]), table(q["loc_precision_2"], z[1])]
            return log_evidence(q["weights"], tables)

        self.check(model, expected)

    def test_shared_components_of_several_factors(self):
        z = torch.randn(4, N, D)

        def model():
            factors = pyro.plate("factors", 4, dim=-2)
            with pyro.plate("components", K, dim=-1):
                loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
            with factors:
                weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
                with pyro.plate("data", N, dim=-1):
                    r = pyro.sample("r", Assignment(weights))
                    pyro.sample("z", Component(loc_precision, r), obs=z)

        self.check(model, lambda q: log_evidence(q["weights"], [table(q["loc_precision"], z)]))

    def test_sequential_factors(self):
        z = torch.randn(2, N, D)

        def model():
            for i in pyro.plate("factors", 2):
                weights, loc_precision = globals_of(f"_{i}")
                with pyro.plate(f"data_{i}", N, dim=-1):
                    r = pyro.sample(f"r_{i}", Assignment(weights))
                    pyro.sample(f"z_{i}", Component(loc_precision, r), obs=z[i])

        def expected(q):
            return sum(
                log_evidence(q[f"weights_{i}"], [table(q[f"loc_precision_{i}"], z[i])]) for i in range(2)
            )

        self.check(model, expected)

    def test_plates_left_of_the_factors(self):
        z = torch.randn(3, 2, N, D)

        def model():
            groups, factors = pyro.plate("groups", 3, dim=-3), pyro.plate("factors", 2, dim=-2)
            with factors:
                weights, loc_precision = globals_of()
            with groups, factors, pyro.plate("data", N, dim=-1):
                r = pyro.sample("r", Assignment(weights))
                pyro.sample("z", Component(loc_precision, r), obs=z)

        self.check(model, lambda q: log_evidence(q["weights"], [table(q["loc_precision"], z)]))

    def test_an_assignment_without_children(self):
        def model():
            weights, _ = globals_of()
            with pyro.plate("data", N, dim=-1):
                pyro.sample("r", Assignment(weights))

        guide = AutoConjugate(model)
        with pytest.raises(ValueError, match="site 'loc_precision': it is neither observed nor in the guide"):
            data_loss(model, guide)


def test_weights_in_event_dimensions_of_a_scaled_program():
    """A natural posterior may be wrapped by to_event; its gradient is natural all the same."""
    natural = torch.nn.Parameter(2 + torch.rand(4, 1, K, dtype=torch.float64))

    def model():
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(4, 1, K)).to_event(2))
        with pyro.plate("factors", 4, dim=-2), pyro.plate("data", N, dim=-1):
            pyro.sample("r", Assignment(weights), obs=torch.zeros(4, N, dtype=torch.int64))

    def guide():
        pyro.sample("weights", NaturalDirichlet(natural).to_event(2))

    for scale in (1.0, 0.01, torch.tensor(0.01)):
        programs = [poutine.scale(program, scale=scale) for program in (model, guide)]
        [grad] = torch.autograd.grad(TraceConjugate_ELBO().differentiable_loss(*programs), natural)
        optimum = torch.ones(4, 1, K) + N * torch.tensor([1.0, 0.0, 0.0])
        assert_close(grad, natural - optimum, rtol=1e-6, atol=1e-6)


def test_a_scale_per_factor():
    scale = torch.tensor([[2.0], [0.5]])
    toy = Toy()
    x, elbo = toy.data(), TraceConjugate_ELBO()
    plain = torch.autograd.grad(elbo.differentiable_loss(toy.model, toy.guide, x), toy.weights.natural)
    programs = [poutine.scale(program, scale=scale) for program in (toy.model, toy.guide)]
    loss = sum(v for n, v in elbo.loss_per_site(*programs, x).items() if n != "x")
    assert_close(torch.autograd.grad(loss, toy.weights.natural), plain, rtol=1e-9, atol=1e-9)


def test_one_tensor_observed_at_two_sites():
    y = torch.zeros(N, dtype=torch.int64)
    z = torch.randn(N, D)

    def model():
        weights, loc_precision = globals_of()
        with pyro.plate("data", N, dim=-1):
            r = pyro.sample("r", Assignment(weights), obs=y)
            pyro.sample("label", Label(r), obs=y)
            pyro.sample("z", Component(loc_precision, r), obs=z)

    guide = AutoConjugate(model)
    guide()
    c = guide.posterior("weights").natural_value()
    expected = (
        N * (c[0].digamma() - c.sum().digamma()) + table(guide.posterior("loc_precision"), z)[:, 0].sum()
    )
    assert_close(data_loss(model, guide), -expected)


class TestOneTensorObservedAtSeveralSites:
    """Each site has its own value: children belong to the site whose value they were given."""

    suffixes = (("", K), ("_other", K + 1))  # two mixtures, of different sizes

    @pytest.fixture(autouse=True)
    def data(self, clean_slate):
        self.y, self.z = torch.tensor([0, 1, 2, 2, 1, 0, 1]), torch.randn(2, N, D)
        self.points = {}
        for suffix, size in self.suffixes:
            pair = torch.stack([torch.randn(size, D), 0.5 + torch.rand(size, D)], -2)
            self.points[suffix] = torch.rand(size).softmax(-1), pair

    def guide(self, *args):
        """Point masses, so that the bound is that of Pyro's own ELBOs."""
        for suffix, size in self.suffixes:
            weights, pair = self.points[suffix]
            pyro.sample("weights" + suffix, dist.Delta(weights, event_dim=1))
            with pyro.plate("components" + suffix, size, dim=-1):
                pyro.sample("loc_precision" + suffix, dist.Delta(pair, event_dim=2))

    def globals(self):
        pairs = (globals_of(suffix, size) for suffix, size in self.suffixes)
        (weights, components), (others, other_components) = pairs
        return weights, components, others, other_components

    def labelled(self, of_label, of_other):
        weights, components, others, other_components = self.globals()
        with pyro.plate("data", N, dim=-1):
            r = pyro.sample("r", Assignment(weights), infer={"enumerate": "parallel"})
            pyro.sample("label", Label(r), obs=of_label)
            pyro.sample("z", Component(components, r), obs=self.z[0])
            other = pyro.sample("other", Assignment(others), obs=of_other)
            pyro.sample("z_other", Component(other_components, other), obs=self.z[1])

    def both_first(self, of_first, of_other):
        weights, components, others, other_components = self.globals()
        with pyro.plate("data", N, dim=-1):
            r = pyro.sample("r", Assignment(weights), obs=of_first)
            other = pyro.sample("other", Assignment(others), obs=of_other)
            pyro.sample("z", Component(components, r), obs=self.z[0])
            pyro.sample("z_other", Component(other_components, other), obs=self.z[1])

    @pytest.mark.parametrize(
        "name, pyros", [("labelled", TraceEnum_ELBO(max_plate_nesting=1)), ("both_first", Trace_ELBO())]
    )
    def test_as_with_copies(self, name, pyros):
        model, args = getattr(self, name), (self.y, self.y)
        elbo = TraceConjugate_ELBO(label_weight=2.0)
        same = elbo.loss_per_site(model, self.guide, *args)
        assert_close(same, elbo.loss_per_site(model, self.guide, self.y, self.y.clone()), rtol=0, atol=0)
        loss = TraceConjugate_ELBO().loss(model, self.guide, *args)
        assert loss == pytest.approx(pyros.loss(model, self.guide, *args), rel=1e-12)

    def test_conditioned(self):
        def model():
            return self.both_first(None, None)

        given = poutine.condition(model, data={"r": self.y, "other": self.y})
        found = TraceConjugate_ELBO().loss(given, self.guide)
        assert found == TraceConjugate_ELBO().loss(self.both_first, self.guide, self.y, self.y.clone())

    def test_deterministic_keeps_the_very_value(self):
        def model():
            weights, components = globals_of()
            weights = pyro.deterministic("again", pyro.deterministic("weights_too", weights))
            with pyro.plate("data", N, dim=-1):
                r = pyro.sample("r", Assignment(weights), obs=self.y)
                pyro.sample("z", Component(components, r), obs=self.z[0])

        guide = AutoConjugate(model)
        assert math.isfinite(TraceConjugate_ELBO().loss(model, guide))
