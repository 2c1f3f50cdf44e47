"""Several views of a point with one assignment, and labels that clamp to a set of components."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, Label
from pyro_fmvae.infer import AutoConjugate, Role, TraceConjugate_ELBO, with_assignments
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import explained, loss_per_point, within
from pyro_fmvae.infer.posteriors import param_statements
from tests.capture.captured import CLOSE, assert_twins, trained
from tests.infer.programs import (
    C0,
    BruteForce,
    Toy,
    assert_equal_in_expectation,
    estimate,
    globals_of,
    gradients,
    seeded,
)

EXACT = {"rtol": 1e-11, "atol": 1e-11}
V, B = 3, 6
LABELS = torch.tensor([[0, -1, 1, -1, 1, 0], [-1, -1, 1, 0, 0, -1]])
SETS = torch.tensor([0, 1, 0])  # the values of three components
pytestmark = pytest.mark.filterwarnings(r"ignore:(?s)\s*at model site \"x\", possibly invalid:RuntimeWarning")


class Seen(Toy):
    """The toy, of whose points ``x[B, V, width]`` are the views.

    Args:
        shared: whether the views of a point share its assignments.
        values: of the components, for labels; None: their own indices.
        whole: number of views that the V stand for; None: V.
    """

    def __init__(self, shared=True, values=None, whole=None, views=V, **settings):
        super().__init__(**settings)
        self.shared, self.values, self.whole, self.views = shared, values, whole, views

    def data(self, size=B):
        return torch.bernoulli(torch.full((size, self.views, self.encoder.in_features), 0.5))

    def plate_of_views(self):
        return pyro.plate("views", self.whole or self.views, subsample=torch.arange(self.views), dim=-3)

    def model(self, x, labels=None):
        param_statements("decoder", self.decoder)
        x, data, factors, components = self.plates(x)
        views = self.plate_of_views()
        with factors:
            weights = pyro.sample("weights", dist.Dirichlet(torch.full((self.components,), C0)))
            with components:
                loc_precision = pyro.sample("loc_precision", self.prior())

        def assign():
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            if labels is not None:
                pyro.sample("label", Label(assignment, self.values), obs=labels)
            return assignment

        with data, factors:
            if self.shared:
                assignment = assign()
            with views:
                if not self.shared:
                    assignment = assign()
                z = pyro.sample("z", Component(loc_precision, assignment))
        with data, views:
            logits = self.decoder(z.transpose(-3, -2).flatten(-2)).unsqueeze(-3)
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x.transpose(0, 1).unsqueeze(1))

    def guide(self, x, labels=None):
        param_statements("guide", self.encoder)
        x, data, factors, components = self.plates(x)
        self.sample_globals(factors, components)
        loc, scale = (torch.stack(part) for part in zip(*(self.encode(v) for v in x.unbind(1)), strict=True))
        with data, factors, self.plate_of_views():
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


class BruteForceOfViews:
    """Losses by a loop over views, each of which :class:`BruteForce` tabulates by itself."""

    def __init__(self, toy, x, z, labels=None):
        views = [BruteForce(toy, one, at) for one, at in zip(x.unbind(1), z, strict=True)]
        first = views[0]
        more = (toy.whole or V) / V
        self.scale, self.log_weights, self.more = first.scale, first.log_weights, more
        self.table = more * sum(view.expected for view in views)
        values = torch.arange(3) if toy.values is None else toy.values
        self.free = (self.log_weights + self.table).softmax(-1)
        gamma = self.free.detach()
        if labels is not None:
            possible = (labels.unsqueeze(-1) < 0) | (labels.unsqueeze(-1) == values)
            gamma = gamma * possible
            gamma = gamma / gamma.sum(-1, keepdim=True)
        self.gamma = gamma
        entropy = more * sum(view.entropy for view in views)
        self.kl_z_of_points = -(gamma * self.table).sum(-1) - entropy
        self.kl_r_of_points = (torch.special.xlogy(gamma, gamma) - gamma * self.log_weights).sum(-1)
        self.per_site = {
            "x": more * sum(view.reconstruction for view in views),
            "z": self.scale * self.kl_z_of_points.sum(),
            "assignment": self.scale * self.kl_r_of_points.sum(),
            "weights": first.kl_weights,
            "loc_precision": first.kl_components,
        }

    def optimum(self, x, toy):
        """λ*: a point counts once for its weights, and each of its views for the components."""
        views = [BruteForce(toy, one, torch.zeros(2, B, 2), gamma=self.gamma) for one in x.unbind(1)]
        nobody = BruteForce(toy, x[:, 0], torch.zeros(2, B, 2), gamma=0 * self.gamma)
        weights, prior = views[0].optimum(x[:, 0], toy)[0], nobody.optimum(x[:, 0], toy)[1]
        found = [view.optimum(one, toy)[1] - prior for view, one in zip(views, x.unbind(1), strict=True)]
        return weights, prior + self.more * sum(found)


def brute_force(toy, x, *labels):
    with torch.no_grad():
        _, guide = seeded(TraceConjugate_ELBO().trace, toy.model, toy.guide, x, *labels)
    return BruteForceOfViews(toy, x, guide.nodes["z"]["value"], *labels)


@pytest.mark.parametrize("whole", [None, 6], ids=["all views", "half of the views"])
@pytest.mark.parametrize("values", [None, SETS], ids=["components", "sets"])
@pytest.mark.parametrize("labels", [(), (LABELS,)], ids=["unlabelled", "labelled"])
def test_every_term_and_every_gradient_by_brute_force(labels, values, whole):
    toy, elbo = Seen(values=values, whole=whole), TraceConjugate_ELBO()
    x = toy.data()
    brute = brute_force(toy, x, *labels)
    per_site = seeded(elbo.loss_per_site, toy.model, toy.guide, x, *labels)
    for name, loss in brute.per_site.items():
        assert_close(per_site[name], loss, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
    gamma = elbo.responsibilities(toy.model, toy.guide, x, *labels)["assignment"]
    assert_close(gamma, brute.gamma, **EXACT)
    kl = per_site["z"] + per_site["assignment"]
    expected = gradients(brute.per_site["z"] + brute.per_site["assignment"], toy.encoder)
    for name, grad in gradients(kl, toy.encoder).items():
        assert_close(grad, expected[name], **EXACT)
    grads = gradients(seeded(elbo.differentiable_loss, toy.model, toy.guide, x, *labels), toy)
    weights, components = brute.optimum(x, toy)
    assert_close(grads["weights.natural"], toy.weights.natural - weights, **EXACT)
    assert_close(grads["loc_precision.natural"], toy.loc_precision.natural - components, **EXACT)


def test_labels_weighted_by_delta_count_the_probability_of_their_set():
    toy, elbo = Seen(values=SETS, standard=True), TraceConjugate_ELBO(label_weight=7.0)
    x = toy.data()
    found = seeded(elbo.loss_per_site, toy.model, toy.guide, x, LABELS)["label"]
    free = brute_force(toy, x).free
    chosen = LABELS.unsqueeze(-1) == SETS
    log_probs = (free * chosen).sum(-1).log().where(LABELS >= 0, 0.0)
    assert_close(found, -7.0 * toy.num_data / B * log_probs.sum(), **EXACT)
    for name, grad in gradients(found, toy.encoder).items():
        assert grad.isfinite().all() and grad.abs().max() > 0, name


@pytest.mark.parametrize("values", [None, SETS], ids=["components", "sets"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_value_equals_trace_enum_with_the_assignment_in_the_guide(shared, values):
    toy = Seen(shared, values)
    x = toy.data()
    settings = {"num_particles": 50, "vectorize_particles": True, "max_plate_nesting": 3}
    guide = with_assignments(toy.model, toy.guide)
    theirs = estimate(lambda: TraceEnum_ELBO(**settings).loss(toy.model, guide, x, LABELS), 20)
    ours = estimate(lambda: TraceConjugate_ELBO(**settings).loss(toy.model, toy.guide, x, LABELS), 20)
    assert_equal_in_expectation(theirs, ours)
    assert theirs[1] < 0.01 * ours[0].abs()


def test_trace_enum_with_the_assignment_in_the_model_is_tighter():
    toy = Seen()
    x = toy.data()
    settings = {"num_particles": 50, "vectorize_particles": True, "max_plate_nesting": 3}
    theirs, error = estimate(lambda: TraceEnum_ELBO(**settings).loss(toy.model, toy.guide, x), 20)
    ours, other = estimate(lambda: TraceConjugate_ELBO(**settings).loss(toy.model, toy.guide, x), 20)
    assert theirs < ours - 4 * (error**2 + other**2) ** 0.5


def test_one_view_is_the_program_without_views():
    toy, ordinary = Seen(views=1), Toy()
    ordinary.load_state_dict(toy.state_dict())
    x, elbo = toy.data(), TraceConjugate_ELBO()
    found = seeded(elbo.loss_per_site, toy.model, toy.guide, x)
    for name, loss in seeded(elbo.loss_per_site, ordinary.model, ordinary.guide, x[:, 0]).items():
        assert_close(found[name], loss, **EXACT)


def test_losses_of_points_are_those_of_all_their_views():
    toy = Seen(whole=2 * V)
    x = toy.data()
    brute = brute_force(toy, x)
    found = seeded(loss_per_point, TraceConjugate_ELBO(), toy.model, toy.guide, x)
    assert_close(found[Role.KL_Z], brute.kl_z_of_points.sum(0), **EXACT)
    assert_close(found[Role.KL_R], brute.kl_r_of_points.sum(0), **EXACT)


def test_a_block_may_depend_on_its_own_assignment_in_every_view():
    toy, elbo = Seen(), TraceConjugate_ELBO(independence_weight=2.0)
    x = toy.data()
    brute = brute_force(toy, x, LABELS)
    found = elbo.loss_per_site(toy.model, toy.guide, x, LABELS)["assignment/dependence"]
    counts = torch.full((2, B), brute.scale)
    expected = 0.0
    for one in x.unbind(1):
        loc, scale = toy.encode(one)
        share = explained(brute.gamma, counts, within(brute.gamma, counts, loc), scale.square())
        expected = expected + counts.sum(-1) @ share[[0, 1], [1, 0]]
    assert_close(found, 2.0 * expected, **EXACT)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_captured_steps_are_eager_ones(shared):
    def make():
        return Seen(shared, SETS)

    x = Seen().data()
    assert_twins(make, [(x, LABELS)] * 8)


@pytest.mark.slow
def test_compiled_steps_are_eager_ones():
    def make():
        return Seen(values=SETS)

    x = Seen().data()
    batches = [(x, LABELS)] * 5
    (losses, state, _), (compiled, others, _) = (
        trained(make, batches, **how) for how in ({"eager": True}, {"compile": True})
    )
    assert_close(torch.tensor(compiled), torch.tensor(losses), **CLOSE)
    for name, value in state.items():
        assert_close(others[name], value, **CLOSE)


def test_steps_raise_the_bound():
    toy = Seen()
    x = toy.data()
    losses, *_ = trained(Seen, [(x,)] * 60)
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.tensor([0, 1]), "^values: expected one for each of 3 components, got 2$"),
        (
            torch.tensor([0.0, 1.0, 0.0]),
            r"^values: expected an integer >= 0 for each component, int64 \[K\], got",
        ),
        (torch.tensor([0, 2, 2]), r"^label: expected -1 \(unknown\) or a value of a component$"),
    ],
)
def test_values_that_do_not_fit(values, message):
    toy = Seen(values=values)
    with pytest.raises(ValueError, match=message):
        TraceConjugate_ELBO().loss(toy.model, toy.guide, toy.data(), LABELS)


def observed(views_first):
    """A mixture of observed points without factors, and its views left or right of the data."""
    data_dim, views_dim = (-1, -2) if views_first else (-2, -1)

    def model(y):
        weights, loc_precision = globals_of()
        with pyro.plate("data", 20, subsample=torch.arange(B), dim=data_dim):
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            with pyro.plate("views", V, dim=views_dim):
                seen = y if views_first else y.transpose(0, 1)
                pyro.sample("y", Component(loc_precision, assignment), obs=seen)

    return model


def test_the_plate_of_views_may_be_on_any_side():
    y, elbo = torch.randn(V, B, 2), TraceConjugate_ELBO()
    guide = AutoConjugate(observed(True))
    guide(y)
    left = elbo.loss_per_site(observed(True), guide, y)
    for name, loss in elbo.loss_per_site(observed(False), guide, y).items():
        assert_close(loss, left[name], **EXACT)
    assert left["assignment"] > 0
    (gamma,) = elbo.responsibilities(observed(True), guide, y).values()
    (right,) = elbo.responsibilities(observed(False), guide, y).values()
    assert_close(right, gamma.unsqueeze(1), **EXACT)
