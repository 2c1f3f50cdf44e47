import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.models.em.binary_em import enumerate_states
from tests.models.em.binary import all_states, log_joint, problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("missing", [False, True])
def test_evidence_and_posterior_are_those_of_all_states(missing, dtype):
    p = problem(missing=missing, dtype=dtype)
    states = all_states(6, dtype)
    joint = log_joint(p, states)
    evidence, posterior = enumerate_states(*p)
    rounding = 1e-5 if dtype == torch.float32 else 1e-10
    assert_close(evidence, joint.logsumexp(0), rtol=rounding, atol=rounding)
    assert (posterior.batch_shape, posterior.event_shape) == ((3, 4), (6,))
    found = posterior.log_prob(states[:, None, None])
    assert_close(found, joint.log_softmax(0), rtol=10 * rounding, atol=10 * rounding)


def test_without_data_it_is_the_prior():
    p = problem(missing=True)  # nothing of the last point is observed
    evidence, posterior = enumerate_states(*p)
    assert_close(evidence[:, -1], torch.zeros(3))
    assert_close(posterior.mean[:, -1], p.logits.sigmoid())


def test_evidence_is_that_of_pyro():
    p = problem(starts=1)

    def model():
        with pyro.plate("data", 4, dim=-1):
            causes = [
                pyro.sample(f"h{i}", dist.Bernoulli(logits=p.logits[0, i]), infer={"enumerate": "parallel"})
                for i in range(6)
            ]
            mean = torch.stack(torch.broadcast_tensors(*causes), -1) @ p.weight[0].T
            scale = p.noise_precision[0].rsqrt()
            pyro.sample("x", dist.Normal(mean, scale).to_event(1), obs=p.x)

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    assert enumerate_states(*p)[0].sum().item() == pytest.approx(-loss, rel=1e-10)


def test_gradients_of_the_evidence():
    """∂_b log p(x) = E[h | x] - σ(b) and ∂_W log p(x) = β E[(x - W h) h' | x], against differences."""
    p = problem(starts=1, size=1)
    _, posterior = enumerate_states(*p)
    second = posterior.summed_second_moment()
    mean = posterior.mean
    by_weight = p.noise_precision * (p.x.mT @ mean - p.weight @ second)
    by_logits = mean[:, 0] - p.logits.sigmoid()
    for name, expected in (("weight", by_weight), ("logits", by_logits)):
        value = getattr(p, name)
        found = torch.zeros_like(value)
        for i in range(value.numel()):
            step = torch.zeros_like(value)
            step.view(-1)[i] = 1e-5
            up, down = (
                log_joint(p._replace(**{name: near}), all_states(6)).logsumexp(0).sum()
                for near in (value + step, value - step)
            )
            found.view(-1)[i] = (up - down) / 2e-5
        assert_close(found, expected, rtol=1e-6, atol=1e-8)
        leaf = value.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(enumerate_states(*p._replace(**{name: leaf}))[0].sum(), leaf)
        assert_close(gradient, expected)


def test_too_many_units():
    with pytest.raises(ValueError, match="weight: expected at most 16 units to enumerate, got 17"):
        enumerate_states(*problem(units=17))
