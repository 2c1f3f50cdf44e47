import math

import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.models import FixedSparsePrior, MixtureSparsePrior, PseudoInputs, SelectionSparsePrior
from pyro_fmvae.nn import MLPEncoder, SpikeHead

J = 4


def encoder():
    return MLPEncoder((5,), J, (6,), SpikeHead)


def codes(n=7):
    return SpikeAndSlab(torch.randn(n, J), 0.5 + torch.rand(n, J), torch.randn(n, J))


def test_fixed_prior_has_the_density_of_its_formula():
    prior = FixedSparsePrior(J, 0.3)
    p = prior.density(encoder())
    assert (p.batch_shape, p.event_shape) == ((), (J,))
    z = torch.tensor([0.0, 0.5, 0.0, -2.0])
    normals = -0.5 * (0.5**2 + 2.0**2) - math.log(2 * math.pi)
    assert_close(p.log_prob(z), torch.tensor(2 * math.log(0.7) + 2 * math.log(0.3) + normals))
    assert prior.mean_spike(p).item() == pytest.approx(0.3)
    assert not prior.state_dict()
    frequency = (p.sample((20_000,)) != 0).double().mean()
    assert frequency.item() == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 20_000 / J) ** 0.5)


def test_mixture_is_one_of_encoded_pseudo_inputs():
    network, prior = encoder(), MixtureSparsePrior(PseudoInputs(3, (5,)))
    loc, scale, logits = network(prior.pseudo_inputs())
    components = SpikeAndSlab(loc, scale, logits)
    p = prior.density(network)
    z = p.sample((9,))
    expected = components.log_prob(z.unsqueeze(-2)).sum(-1).exp().mean(-1).log()
    assert_close(p.log_prob(z), expected)
    assert_close(prior.mean_spike(prior(network, torch.randn(7, 5))), logits.sigmoid().mean())


def test_sharpness_moves_spikes_of_components_to_the_ends():
    network, prior = encoder(), MixtureSparsePrior(PseudoInputs(3, (5,)), sharpness=10.0)
    loc, scale, logits = network(prior.pseudo_inputs())
    p = prior.density(network)
    expected = torch.sigmoid(10 * (logits.sigmoid() - 0.5))
    assert_close(p.components.probs, expected)
    assert_close(p.components.loc, loc)
    assert_close(p.components.scale, scale)
    assert_close(prior.mean_spike(p), expected.mean())


@torch.no_grad()
def test_selection_is_a_softmax_of_scores():
    network, scores = encoder(), nn.Linear(5, 3)
    prior, x, q = SelectionSparsePrior(PseudoInputs(3, (5,)), scores), torch.randn(7, 5), codes()
    p = prior(network, x)
    weights = scores(x).softmax(-1)
    divergences = kl_divergence(
        SpikeAndSlab(*(t.unsqueeze(1) for t in (q.loc, q.scale, q.logits))), p.components
    )
    expected = (weights * (divergences.sum(-1) + (3 * weights).log())).sum(-1)
    assert_close(kl_divergence(q.to_event(1), p), expected)
    spikes = p.components.probs.mean(-1)
    mean = sum(float(w) * float(s) for row in weights for w, s in zip(row, spikes, strict=True)) / 7
    assert prior.mean_spike(p).item() == pytest.approx(mean)
    assert_close(prior.mean_spike(prior.density(network)), spikes.mean())
    best = kl_divergence(q.to_event(1), prior.density(network))
    assert (best < expected).all()


def test_selection_under_autocast_is_normalised():
    network = encoder().float()
    prior = SelectionSparsePrior(PseudoInputs(3, (5,)), nn.Linear(5, 3)).float()
    with torch.autocast("cpu", torch.bfloat16):
        p = prior(network, torch.randn(7, 5, dtype=torch.float32))
    assert p.log_selection.dtype == torch.float32
    assert_close(p.log_selection.exp().sum(-1), torch.ones(7, dtype=torch.float32))


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (-1.0, 3.0)])
def test_pseudo_inputs_stay_within_bounds(bounds):
    inputs = PseudoInputs(50, (2, 3), bounds)
    points = inputs()
    assert points.shape == (50, 2, 3)
    lower, upper = bounds or (-5.0, 5.0)
    assert lower < points.min() < lower + 0.5 * (upper - lower) < points.max() < upper
    (grad,) = torch.autograd.grad(points.sum(), inputs.raw)
    assert grad.count_nonzero() == 300


@pytest.mark.parametrize("bounds", [None, (-1.0, 3.0)])
def test_pseudo_inputs_start_at_different_data_points(bounds):
    inputs, x = PseudoInputs(6, (5,), bounds), 4 * torch.rand(9, 5) - 1
    inputs.start_at(x)
    expected = x if bounds is None else x.clamp(-0.6, 2.6)
    rows = [[i for i in range(9) if torch.allclose(point, expected[i])] for point in inputs()]
    assert all(len(row) == 1 for row in rows)
    assert len({row[0] for row in rows}) == 6


def test_pseudo_inputs_start_at_few_data_points():
    inputs, x = PseudoInputs(5, (2,)), torch.randn(2, 2)
    inputs.start_at(x)
    counts = [sum(torch.equal(point, row) for point in inputs()) for row in x]
    assert sorted(counts) == [2, 3]


def test_priors_start_at_data():
    prior, x = MixtureSparsePrior(PseudoInputs(2, (5,))), torch.randn(1, 5)
    prior.start_at(x)
    assert_close(prior.pseudo_inputs(), x.expand(2, 5))
    FixedSparsePrior(J, 0.3).start_at(x)  # nothing happens


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedSparsePrior(J, 0.0), r"^alpha: expected a number in \(0, 1\), got 0\.0"),
        (lambda: FixedSparsePrior(J, 1.0), r"^alpha: expected a number in \(0, 1\), got 1\.0"),
        (lambda: PseudoInputs(0, (5,)), r"^count: expected a number >= 1, got 0"),
        (lambda: PseudoInputs(2, (5,), (1.0, 1.0)), r"^bounds: expected \(lower, upper\)"),
        (lambda: MixtureSparsePrior(PseudoInputs(2, (5,)), 0.0), r"^sharpness: expected a number > 0, or"),
        (
            lambda: PseudoInputs(2, (5,)).start_at(torch.randn(3, 4)),
            r"^x: expected at least one point of shape \[n, 5\], got \[3, 4\]",
        ),
        (lambda: PseudoInputs(2, (5,)).start_at(torch.randn(0, 5)), r"^x: expected at least one point"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
