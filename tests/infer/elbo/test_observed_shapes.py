import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, FullComponent, NormalGamma, NormalWishart
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.test_third_family import ErrorSize, SizePrior

K, N = 3, 7
KINDS = {
    "diagonal": (Component, lambda d: NormalGamma(torch.zeros(d), 1.0, 1.0, 1.0)),
    "full": (FullComponent, lambda d: NormalWishart(torch.zeros(d), 1.0, 1.0 * d, 1.0)),
}


def mixture(component, prior, plate=N):
    """A mixture of observed points; in no plate if that is None."""

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K, dim=-1):
            theta = pyro.sample("theta", prior)
        if plate is None:
            return pyro.sample("x", component(theta, pyro.sample("r", Assignment(weights))), obs=x)
        with pyro.plate("data", plate, dim=-1):
            return pyro.sample("x", component(theta, pyro.sample("r", Assignment(weights))), obs=x)

    return model


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dim", "shape", "advice"),
    [
        (2, (5, 2), r"\(5, 2\), but .* in plate 'data' of size 7 has .* \(7,\) .* \(2,\): for a batch write"),
        (2, (7, 3), r"\(7, 3\), but .* the event shape \(2,\): give events of shape \(2,\), or"),
        (2, (7, 1), r"\(7, 1\), but .* the event shape \(2,\): give events of shape \(2,\), or"),
        (2, (), r"\(\), but .* the event shape \(2,\): give events of shape \(2,\), or"),
        (1, (7,), r"\(7,\), but .* the event shape \(1,\): single numbers .* by value.unsqueeze\(-1\)"),
        (
            2,
            (4, 7, 2),
            r"\(4, 7, 2\), but .* \(7,\) .* for a batch write pyro.plate\(name, N, subsample=batch\)",
        ),
    ],
)
def test_values_of_other_shapes(kind, dim, shape, advice, validate):
    component, prior = KINDS[kind]
    model = mixture(component, prior(dim))
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    guide.setup(torch.zeros(N, dim))
    with (
        pyro.validation_enabled(validate),
        pytest.raises(ValueError, match="site 'x': .* of shape " + advice),
    ):
        elbo.loss(model, guide, torch.zeros(shape))


def test_a_value_that_is_no_tensor():
    model = mixture(*[part if i == 0 else part(2) for i, part in enumerate(KINDS["diagonal"])])
    with pytest.raises(ValueError, match="site 'x': expected a tensor as its value, got ndarray"):
        TraceConjugate_ELBO().loss(
            model, AutoConjugate(lambda _: model(torch.zeros(N, 2))), torch.zeros(N, 2).numpy()
        )


def test_other_sites_are_checked_too():
    def model(x):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    def guide(x):
        pyro.sample("mu", dist.Normal(0.0, 1.0))

    TraceConjugate_ELBO().loss(model, guide, torch.zeros(N))
    with pytest.raises(
        ValueError, match=r"site 'x': its value is of shape \(5,\), but Normal in plate 'data'"
    ):
        TraceConjugate_ELBO().loss(model, guide, torch.zeros(5))


@pytest.mark.parametrize("kind", [*KINDS, "own"])
def test_one_point_needs_no_plate(kind):
    own = ErrorSize, lambda d: SizePrior(torch.tensor(2.0), torch.tensor(1.0))
    component, prior = KINDS.get(kind, own)
    x = torch.rand(2) if kind in KINDS else torch.rand(())
    models = [mixture(component, prior(2), plate) for plate in (None, 1)]
    guide, elbo = AutoConjugate(models[0]), TraceConjugate_ELBO()
    guide(x)
    losses = [elbo.differentiable_loss(model, guide, x) for model in models]
    assert_close(*losses, rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(loss, list(guide.parameters())) for loss in losses]
    assert_close(*grads, rtol=1e-12, atol=1e-12)
    assert elbo.responsibilities(models[0], guide, x)["r"].shape == (K,)


def counts(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


def vectors(x):
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)


@pytest.mark.parametrize(
    "model, x, share",
    [
        (counts, torch.tensor([3.0, -1.0, 0.5, 0.0]), "2 of its 4"),
        (vectors, torch.tensor([[0.0, torch.nan], [torch.inf, torch.inf], [1.0, 2.0]]), "2 of its 3"),
    ],
    ids=["counts", "vectors"],
)
def test_numbers_outside_of_a_support(model, x, share):
    elbo, guide = TraceConjugate_ELBO(), AutoConjugate(model)
    guide.setup(x.new_ones(x.shape))
    message = f"site 'x': {share} observed values are not finite or outside of the support"
    with pyro.validation_enabled(), pytest.raises(ValueError, match=message):
        elbo.loss(model, guide, x)
    with pyro.validation_enabled(), pytest.raises(ValueError, match=message):
        AutoConjugate(model)(x)
