"""Observed sites whose latent parents are integrated over without any assignment."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, TraceEnum_ELBO

from pyro_fmvae import Role, TraceConjugate_ELBO
from pyro_fmvae.distributions import LinearNormal, SpikeAndSlab
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import loss_per_point

TOTAL, ROWS, UNITS, SIZE = 10, 3, 4, 5


class Programs:
    """Binary causes of sums of columns; `bad` holds what a program does wrong."""

    def __init__(self, bad=""):
        self.weight = torch.randn(SIZE, UNITS)
        self.logits = torch.randn(UNITS)
        self.scale = torch.tensor(0.7)
        self.probs = torch.rand(ROWS, UNITS)
        self.x = torch.randn(ROWS, SIZE)
        self.x[0, 1] = torch.nan
        self.bad = bad

    def data(self):
        return pyro.plate("data", TOTAL, subsample=torch.arange(ROWS), dim=-1)

    def model(self, x):
        prior = dist.Bernoulli(logits=self.logits).expand([ROWS, UNITS]).to_event(1)
        weight = pyro.param("weight", self.weight)
        with self.data():
            h = pyro.sample("h", prior)
            if self.bad == "derived":
                h = h * 2
            if self.bad == "used":
                pyro.sample("y", dist.Normal(h.sum(-1), 1.0), obs=x[:, 0])
            pyro.sample("x", LinearNormal(h, weight, self.scale), obs=None if self.bad == "latent" else x)

    def guide(self, x):
        with self.data():
            pyro.sample("h", dist.Bernoulli(self.probs).to_event(1))

    def enumerated(self, x):
        """The same with one site for each cause, which Pyro can enumerate."""
        weight = pyro.param("weight", self.weight)
        with self.data():
            causes = [
                pyro.sample(f"h{i}", dist.Bernoulli(logits=self.logits[i]), infer={"enumerate": "parallel"})
                for i in range(UNITS)
            ]
            mean = torch.stack(torch.broadcast_tensors(*causes), -1) @ weight.T
            errors = dist.Normal(mean, self.scale).log_prob(x.nan_to_num())
            pyro.factor("x", errors.masked_fill(x.isnan(), 0.0).sum(-1))

    def enumerated_guide(self, x):
        with self.data():
            for i in range(UNITS):
                pyro.sample(f"h{i}", dist.Bernoulli(self.probs[:, i]), infer={"enumerate": "parallel"})


def test_loss_and_gradient_are_those_of_enumeration():
    programs = Programs()
    found = TraceConjugate_ELBO().loss_and_grads(programs.model, programs.guide, programs.x)
    weight = pyro.param("weight")
    gradient, weight.grad = weight.grad, None
    other = TraceEnum_ELBO(max_plate_nesting=1)
    expected = other.loss_and_grads(programs.enumerated, programs.enumerated_guide, programs.x)
    assert found == pytest.approx(expected, rel=1e-12)
    assert gradient.numpy() == pytest.approx(weight.grad.numpy(), rel=1e-10)


def test_it_is_reconstruction_and_divergence_for_each_point():
    programs = Programs()
    elbo = TraceConjugate_ELBO()
    roles = elbo.loss_per_role(programs.model, programs.guide, programs.x)
    q, p = (dist.Bernoulli(probs) for probs in (programs.probs, programs.logits.sigmoid()))
    divergence = torch.distributions.kl_divergence(q, p.expand([ROWS, UNITS])).sum(-1)
    assert roles[Role.KL_Z].item() == pytest.approx(TOTAL / ROWS * divergence.sum().item())
    points = loss_per_point(elbo, programs.model, programs.guide, programs.x)
    assert points[Role.KL_Z].numpy() == pytest.approx(divergence.numpy())
    total = points[Role.RECONSTRUCTION].sum() * TOTAL / ROWS
    assert total.item() == pytest.approx(roles[Role.RECONSTRUCTION].item())


def test_causes_with_reparameterised_draws_are_integrated_over_too():
    weight, x, scale = torch.randn(SIZE, UNITS), torch.randn(ROWS, SIZE), torch.tensor(0.5)
    loc, width, logits = (torch.rand(ROWS, UNITS) for _ in range(3))

    def model():
        with pyro.plate("data", ROWS, dim=-1):
            s = pyro.sample("s", SpikeAndSlab(torch.ones(ROWS, UNITS), 0.5, 0.0).to_event(1))
            pyro.sample("x", LinearNormal(s, weight, scale), obs=x)

    def guide():
        with pyro.plate("data", ROWS, dim=-1):
            pyro.sample("s", SpikeAndSlab(loc, width, logits).to_event(1))

    losses = {TraceConjugate_ELBO().loss(model, guide) for _ in range(3)}
    assert len(losses) == 1  # nothing is drawn


def test_it_takes_steps():
    programs = Programs()
    svi = SVI(programs.model, programs.guide, pyro.optim.Adam({"lr": 0.05}), TraceConjugate_ELBO())
    losses = [svi.step(programs.x) for _ in range(50)]
    assert losses[-1] < losses[0] - 10


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("derived", "site 'x': argument 'causes' of LinearNormal is not the value of a sample site"),
        ("used", "site 'h': its value is needed"),
        ("latent", "site 'x': it is neither observed nor in the guide"),
    ],
)
def test_wrong_programs(bad, message):
    programs = Programs(bad)
    with pytest.raises(ValueError, match=message):
        TraceConjugate_ELBO().loss(programs.model, programs.guide, programs.x)


def test_causes_in_other_plates():
    x, weight, scale = torch.randn(ROWS, SIZE), torch.randn(SIZE, UNITS), torch.tensor(0.5)

    def model():
        h = pyro.sample("h", dist.Bernoulli(torch.full((UNITS,), 0.5)).to_event(1))
        with pyro.plate("data", ROWS, dim=-1):
            pyro.sample("x", LinearNormal(h, weight, scale), obs=x)

    def guide():
        pyro.sample("h", dist.Bernoulli(torch.full((UNITS,), 0.5)).to_event(1))

    with pytest.raises(ValueError, match=r"site 'x': .*derived from that of 'h'"):
        TraceConjugate_ELBO().loss(model, guide)


def test_a_posterior_without_a_closed_form():
    x, weight, scale = torch.randn(ROWS, SIZE), torch.randn(SIZE, UNITS), torch.tensor(0.5)

    def model():
        with pyro.plate("data", ROWS, dim=-1):
            s = pyro.sample("s", dist.MultivariateNormal(torch.zeros(UNITS), torch.eye(UNITS)))
            pyro.sample("x", LinearNormal(s, weight, scale), obs=x)

    def guide():
        with pyro.plate("data", ROWS, dim=-1):
            pyro.sample("s", dist.MultivariateNormal(torch.zeros(UNITS), torch.eye(UNITS)))

    with pytest.raises(NotImplementedError, match="site 'x': causes: no closed form"):
        TraceConjugate_ELBO().loss(model, guide)
