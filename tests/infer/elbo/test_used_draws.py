"""Guides that use their own draws: the bound is that of the joint posterior, not of a product."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pyro_fmvae.distributions import Assignment, Component, NormalGamma
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.elbo import plain
from pyro_fmvae.infer.elbo.plain import trace_guide
from pyro_fmvae.infer.posteriors import param_statements
from tests.capture.captured import CLOSE, trained
from tests.infer.programs import Toy
from tests.infer.test_enumeration import assert_equal_in_expectation, enumerating, estimate, ours

WEIGHTS, MEANS, POINTS, SCALE = (0.3, 0.7), (3.0, -2.0), 3, 2.0


def globals_and_assignment(observed=True):
    """Two components of unit precision in one dimension, which are given, or latent."""
    weights = torch.tensor(WEIGHTS) if observed else None
    both = torch.stack([torch.tensor(MEANS)[:, None], torch.ones(2, 1)], -2) if observed else None
    w = pyro.sample("w", dist.Dirichlet(torch.ones(2)), obs=weights)
    with pyro.plate("k", 2, dim=-1):
        c = pyro.sample("c", NormalGamma(torch.zeros(1), 1.0, 3.0, 3.0), obs=both)
    return w, c


def constants():
    """What the observed globals add to the loss."""
    with poutine.trace() as seen:
        globals_and_assignment()
    return -seen.trace.log_prob_sum()


class TwoChildren(nn.Module):
    """z ~ N(0.5, 4) and, given it, y ~ N(a z, 1): two children of one assignment, nothing observed."""

    def __init__(self, a=-1.0):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))

    def model(self):
        w, c = globals_and_assignment()
        with pyro.plate("data", POINTS, dim=-1):
            r = pyro.sample("r", Assignment(w), infer={"enumerate": "parallel"})
            pyro.sample("z", Component(c, r))
            pyro.sample("y", Component(c, r))

    def guide(self):
        param_statements("guide", self)
        with pyro.plate("data", POINTS, dim=-1):
            z = pyro.sample("z", dist.Normal(torch.full((POINTS, 1), 0.5), SCALE).to_event(1))
            pyro.sample("y", dist.Normal(self.a * z, 1.0).to_event(1))

    def loss(self):
        """E_z of the loss with the optimal q(r | z), by quadrature over z."""
        loc, root = 0.5, math.sqrt(2 * math.pi)
        z = torch.linspace(loc - 9 * SCALE, loc + 9 * SCALE, 4001)
        density = torch.exp(-0.5 * ((z - loc) / SCALE) ** 2) / (SCALE * root)
        log_probs = [
            math.log(weight * 1.0)
            - 0.5 * (z - mean) ** 2
            - 0.5 * ((self.a * z - mean) ** 2 + 1)
            - 2 * math.log(root)
            for weight, mean in zip(WEIGHTS, MEANS, strict=True)
        ]
        entropies = (0.5 + math.log(SCALE * root)) + (0.5 + math.log(root))
        evidence = torch.trapezoid(density * torch.stack(log_probs).logsumexp(0), z)
        return -POINTS * (evidence + entropies)


def test_child_that_depends_on_another_child():
    program = TwoChildren()
    exact = program.loss()
    found = estimate(lambda: ours(num_particles=200).loss(program.model, program.guide))
    assert_equal_in_expectation(found, (exact.detach() + constants(), torch.tensor(0.0)))


def test_gradient_where_a_child_depends_on_another():
    program = TwoChildren()
    (exact,) = torch.autograd.grad(program.loss(), program.a)

    def gradient():
        program.a.grad = None
        ours(num_particles=200).loss_and_grads(program.model, program.guide)
        return program.a.grad.clone()

    found = estimate(gradient)
    assert_equal_in_expectation(found, (exact, torch.tensor(0.0)))
    assert found[1] < 0.05 * exact.abs()


def test_no_tighter_than_with_the_exact_assignments():
    program = TwoChildren()
    tightest = estimate(lambda: enumerating(num_particles=200).loss(program.model, program.guide))
    found = estimate(lambda: ours(num_particles=200).loss(program.model, program.guide))
    assert found[0] > tightest[0] - 4.5 * (found[1] ** 2 + tightest[1] ** 2).sqrt()


def assignment_given_z():
    def model():
        w, c = globals_and_assignment()
        with pyro.plate("data", POINTS, dim=-1):
            r = pyro.sample("r", Assignment(w), infer={"enumerate": "parallel"})
            z = pyro.sample("z", Component(c, r))
            pyro.sample("x", dist.Normal(z[..., 0], 1.0), obs=torch.zeros(POINTS))

    def guide():
        with pyro.plate("data", POINTS, dim=-1):
            z = pyro.sample("z", dist.Normal(torch.zeros(POINTS, 1), SCALE).to_event(1))
            logits = torch.cat([z, -z], -1)
            pyro.sample("r", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})

    return model, guide


def z_given_globals():
    def model():
        w, c = globals_and_assignment(observed=False)
        with pyro.plate("data", POINTS, dim=-1):
            r = pyro.sample("r", Assignment(w), infer={"enumerate": "parallel"})
            z = pyro.sample("z", Component(c, r))
            pyro.sample("x", dist.Normal(z[..., 0], 1.0), obs=torch.zeros(POINTS))

    def guide():
        w = pyro.sample("w", dist.Dirichlet(torch.full((2,), 5.0)))
        with pyro.plate("k", 2, dim=-1):
            c = pyro.sample("c", NormalGamma(torch.zeros(1), 0.5, 8.0, 8.0))
        with pyro.plate("data", POINTS, dim=-1):
            pyro.sample("r", dist.Categorical(0.5 * w + 0.25), infer={"enumerate": "parallel"})
            loc = c[..., 0, :].mean(-2, keepdim=True)
            pyro.sample("z", dist.Normal(loc, 1.0).to_event(1))

    return model, guide


def test_assignment_that_holds_the_draw_of_its_weights():
    """The guide is the model, so there is no divergence at all."""

    def model():
        with pyro.plate("groups", 4, dim=-2):
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
            with pyro.plate("data", POINTS, dim=-1):
                pyro.sample("r", Assignment(weights))

    assert TraceConjugate_ELBO().loss(model, model) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("program", [assignment_given_z, z_given_globals])
@pytest.mark.filterwarnings(r"ignore:(?s)\s*at model site \"x\", possibly invalid:RuntimeWarning")
def test_value_equals_trace_enum(program):
    model, guide = program()
    theirs = estimate(lambda: enumerating().loss(model, guide))
    found = estimate(lambda: ours().loss(model, guide))
    assert_equal_in_expectation(theirs, found)


def test_assignment_that_comes_before_z_leaves_the_expectation_exact():
    model, _ = assignment_given_z()

    def guide():
        with pyro.plate("data", POINTS, dim=-1):
            pyro.sample("r", dist.Categorical(logits=torch.tensor([0.3, 0.0])))
            z = pyro.sample("z", dist.Normal(torch.zeros(POINTS, 1), SCALE).to_event(1))
            pyro.deterministic("norm", z.norm(), event_dim=0)

    elbo = TraceConjugate_ELBO()
    losses = [elbo.loss_per_site(model, guide)["z"] for _ in range(2)]
    assert_close(*losses, rtol=0, atol=0)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return 2 * z

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


USES = {
    "indexing": lambda z: z[..., 0],
    "a list": lambda z: torch.cat([z, torch.zeros_like(torch.ones(2, 1))]),
    "a keyword": lambda z: torch.sum(input=z),
    "a method": lambda z: z.detach(),
    "a number": lambda z: z.sum().item(),
    "a distribution": lambda z: dist.Normal(z, 1.0),
    "a view": lambda z: z.T,
    "vmap": torch.vmap(lambda z: 2 * z),
    "a function with a gradient of its own": Double.apply,
    "torch.compile": torch.compile(lambda z: 2 * z),
    "an assignment's weights": lambda z: pyro.sample("r", Assignment(z)),
    "an observation": lambda z: pyro.sample("o", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2), obs=z),
    "behind a name": lambda z: pyro.deterministic("d", z, event_dim=0) + 1,
    "a network": lambda z: nn.Linear(1, 1)(z),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_uses(use):
    def guide():
        z = pyro.sample("z", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.sample("y", dist.Normal(0.0, 1.0))
        use(z)

    assert trace_guide(guide, (), {})[1] == {"z"}


def test_form_is_no_use():
    def guide(x):
        z = pyro.sample("z", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.sample("observed", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))
        shape = (z.shape, z.dtype, z.device, z.dim(), z.size(-1), z.numel(), len(z), z.ndim, z.requires_grad)
        pyro.sample("y", dist.Normal(x.sum(), 1.0))
        return z, shape

    trace, used = trace_guide(guide, (torch.ones(3),), {})
    assert not used and list(trace.nodes) == ["_INPUT", "z", "observed", "y", "_RETURN"]


def test_a_name_for_a_draw_is_no_use():
    def guide():
        z = pyro.sample("z", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.deterministic("again", z, event_dim=2)
        pyro.sample("y", dist.Normal(0.0, 1.0))

    assert not trace_guide(guide, (), {})[1]


class Switched(TwoChildren):
    """Whose guide goes one way or another."""

    structured = 0

    def guide(self):
        param_statements("guide", self)
        with pyro.plate("data", POINTS, dim=-1):
            z = pyro.sample("z", dist.Normal(torch.full((POINTS, 1), 0.5), SCALE).to_event(1))
            loc = self.a * z if self.structured else torch.zeros(POINTS, 1)
            pyro.sample("y", dist.Normal(loc, 1.0).to_event(1))


def test_guide_that_changes():
    program, elbo = Switched(), TraceConjugate_ELBO()
    for structured in (0, 1, 0):
        program.structured = structured
        found, _ = elbo.trace(program.model, program.guide)
        assert found.drawn == ({"z"} if structured else set())


def test_draw_that_cannot_be_reparameterised():
    class Fixed(dist.Normal):
        has_rsample = False

    program = TwoChildren()

    def guide():
        with pyro.plate("data", POINTS, dim=-1):
            z = pyro.sample("z", Fixed(torch.zeros(POINTS, 1), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z, 1.0).to_event(1))

    with pytest.raises(ValueError, match="site 'z': the guide uses its draw, and Fixed has no reparam"):
        TraceConjugate_ELBO().loss(program.model, guide)


def test_captured_steps():
    eager, theirs, _ = trained(TwoChildren, [()] * 5, eager=True)
    captured, ours_, _ = trained(TwoChildren, [()] * 5)
    assert_close(torch.tensor(captured), torch.tensor(eager), **CLOSE)
    assert_close(ours_, theirs, **CLOSE)


@pytest.mark.parametrize("standard", [False, True])
def test_nothing_is_watched_before_the_first_draw(standard, monkeypatch):
    seen = []
    monkeypatch.setattr(plain._Uses, "look_at", lambda uses, *values: seen.append(uses._kept))
    toy = Toy(standard=standard)
    TraceConjugate_ELBO().loss(toy.model, toy.guide, toy.data())
    assert sum(map(bool, seen)) > 10 if standard else len(seen) < 10


def test_nothing_is_watched_after_a_guide_that_failed():
    def guide():
        pyro.sample("z", dist.Normal(0.0, 1.0))
        raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        trace_guide(guide, (), {})
    assert _get_current_dispatch_mode() is None
