import math

import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import Bernoulli, kl_divergence
from torch.testing import assert_close

from pyro_fmvae import GaussianObservation, Role, TraceConjugate_ELBO
from pyro_fmvae.distributions import Concrete, ShiftedSigmoid, StraightThrough
from pyro_fmvae.evaluate import bound, tighter_bounds
from pyro_fmvae.models import FixedSparsePrior, VariationalSparseCoding
from pyro_fmvae.nn import ConvDecoder, ConvEncoder, SpikeHead
from tests.capture.captured import assert_twins, batches_of
from tests.infer.programs import nodes, seeded
from tests.models.small import binary_data
from tests.models.sparse import PRIORS, small_sparse_model

DRAWS = [ShiftedSigmoid, Concrete, StraightThrough]
KINDS = list(PRIORS)


@torch.no_grad()
def losses(model, x, **kwargs):
    return seeded(TraceConjugate_ELBO().loss_per_role, model.model, model.guide, x, **kwargs)


def drawn_z(model, x):
    with torch.no_grad():
        _, trace = seeded(TraceConjugate_ELBO().trace, model.model, model.guide, x)
    return trace.nodes["z"]["value"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_loss_is_brute_force_evaluation(kind, training):
    """Reconstruction at the z that is drawn, the prior's own divergence, N/B times; the penalty N times."""
    model, x = small_sparse_model(kind, num_data=30).train(training), binary_data(6)
    actual = losses(model, x)
    with torch.no_grad():
        logits = model.decoder(drawn_z(model, x)).squeeze(1)
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        p = model.prior(model.encoder, x)
        kl = kl_divergence(model.posterior(x).to_event(1), p).sum()
        pair = [Bernoulli(t) for t in (model.prior.mean_spike(p), torch.tensor(0.2))]
        penalty = 30 * 4 * kl_divergence(*pair)
    assert_close(actual[Role.RECONSTRUCTION], 5 * bce)
    assert_close(actual[Role.KL_Z], 5 * kl)
    assert_close(actual[Role.FACTOR], penalty if training else torch.tensor(0.0))
    assert penalty > 0.1
    assert actual[Role.KL_R] == actual[Role.KL_GLOBAL] == actual[Role.LABEL] == 0


def test_without_sparsity_there_is_no_penalty():
    model, x = small_sparse_model(sparsity=None), binary_data(6)
    assert "sparsity" not in nodes(model.model, x)
    assert losses(model, x)[Role.FACTOR] == 0
    assert "sparsity" in nodes(small_sparse_model().model, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spike", [0.0, 1e-9, 0.2, 0.5, 1 - 1e-9, 1.0])
def test_penalty_of_any_mean(spike, dtype):
    model = small_sparse_model("fixed")
    mean = torch.tensor(spike, dtype=dtype, requires_grad=True)
    model.prior.mean_spike = lambda p: mean
    penalty = model.sparsity_penalty(None, 0.2)
    pair = (Bernoulli(torch.tensor(t, dtype=torch.float64)) for t in (spike, 0.2))
    assert penalty.item() == pytest.approx(4 * kl_divergence(*pair).item(), abs=1e-4)
    assert torch.autograd.grad(penalty, mean)[0].isfinite()


def test_fixed_prior_of_the_same_sparsity_has_no_penalty():
    model = small_sparse_model("fixed", sparsity=0.3)
    assert losses(model, binary_data(6))[Role.FACTOR].item() == pytest.approx(0.0, abs=1e-12)


def test_weight_is_that_of_the_divergence_alone():
    model, x = small_sparse_model(), binary_data(6)
    full, annealed = losses(model, x), losses(model, x, kl_weight=0.25)
    assert annealed[Role.KL_Z].item() == pytest.approx(0.25 * full[Role.KL_Z].item())
    for role in (Role.RECONSTRUCTION, Role.FACTOR):
        assert annealed[role] == full[role]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_equals_pyros_mean_field_bound(kind):
    """At the same draws: Pyro takes divergences from the same registry."""
    model, x = small_sparse_model(kind).eval(), binary_data(6)
    ours = seeded(TraceConjugate_ELBO().loss, model.model, model.guide, x)
    theirs = seeded(TraceMeanField_ELBO().loss, model.model, model.guide, x)
    assert ours == pytest.approx(theirs)


@torch.no_grad()
def means(loss, model, x, evaluations=30):
    """Mean of a loss per data point and its error, over evaluations of so many copies of the data."""
    values = torch.stack([torch.as_tensor(loss(model.model, model.guide, x)) for _ in range(evaluations)])
    return values.mean() / model.num_data, values.std() / model.num_data / evaluations**0.5


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_mixture_bounds_stay_below_pyros_in_expectation(kind):
    """``Trace_ELBO`` knows no divergences but exact densities; with a fixed prior it gives the same."""
    model, x = small_sparse_model(kind, num_data=3000).eval(), binary_data(6).repeat(500, 1, 1)
    (ours, error), (theirs, its_error) = (
        means(elbo().loss, model, x) for elbo in (TraceConjugate_ELBO, Trace_ELBO)
    )
    error = (error**2 + its_error**2).sqrt().item()
    assert error < 0.02
    assert theirs < ours + 4 * error
    if kind == "fixed":
        assert ours.item() == pytest.approx(theirs.item(), abs=4 * error)
    weights = seeded(model.log_weights, x, 30)
    error = (weights.mean(-1).var() / 30 + its_error**2).sqrt().item()
    assert weights.mean().item() == pytest.approx(-theirs.item(), abs=4 * error)
    measures = tighter_bounds(model, [(x,)], 10)
    assert bound(model, [(x,)])["elbo"] < measures["importance_weighted"]
    assert measures["collapsed"] < measures["importance_weighted"]


@pytest.mark.parametrize("kind", ["fixed", "mixture"])
@torch.no_grad()
def test_importance_weights_approach_the_evidence(kind):
    """With one latent the integral over z is a sum over a grid, and the mass at 0."""
    model, x = small_sparse_model(kind, dim=1).eval(), binary_data(3)
    p = model.prior.density(model.encoder)
    z = torch.linspace(-12, 12, 24_000).unsqueeze(-1)  # without 0
    slab, spike = (
        torch.stack([model.observation(model.decoder(at)).log_prob(row) for row in x])
        + model.prior.density(model.encoder).log_prob(at)
        for at in (z, torch.zeros(1, 1))
    )
    evidence = torch.cat([slab + math.log(24 / 23_999), spike], -1).logsumexp(-1)
    copies = 8000
    one = torch.ones(3 * copies, 1)
    model.encoder.forward = lambda x: (0.3 * one, 1.6 * one, 0.5 * one)  # wide: weights vary little
    model.prior.density = lambda encoder: p
    weights = seeded(model.log_weights, x.repeat_interleave(copies, 0), 5)
    weights = weights.unflatten(-1, (3, copies)).movedim(1, 0).flatten(1)
    relative = (weights - evidence.unsqueeze(-1)).exp()
    error = relative.std(-1) / relative.shape[-1] ** 0.5
    assert error.max() < 0.02
    assert ((relative.mean(-1) - 1).abs() < 4 * error).all()


def test_draws_are_exact_in_evaluation_and_relaxed_in_training():
    model, x = small_sparse_model(draws=ShiftedSigmoid()), binary_data(50)
    assert (drawn_z(model, x) != 0).all()
    model.draws.warm_up.fill_(0.0)
    cold = drawn_z(model, x)
    z = drawn_z(model.eval(), x)
    assert 20 < (z == 0).sum() < 180
    model.draws.warm_up.fill_(1.0)
    assert_close(drawn_z(model, x), z)
    with torch.no_grad():
        model.encoder.head.linear.bias[:8] += 1.0  # locations and log variances
    assert_close(drawn_z(model, x)[z == 0], z[z == 0])
    assert not torch.equal(drawn_z(model, x), z)
    model.train()
    model.draws.warm_up.fill_(0.0)
    assert_close(drawn_z(model, x), cold)  # what is drawn then does not look at them


def test_in_evaluation_gradients_are_refused():
    model = small_sparse_model().eval()
    with pytest.raises(ValueError, match=r"^draws: expected a ShiftedSigmoid, Concrete or StraightThrough"):
        TraceConjugate_ELBO().differentiable_loss(model.model, model.guide, binary_data(6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draws", DRAWS)
def test_gradients_reach_everything(kind, draws):
    model = small_sparse_model(kind, draws())
    TraceConjugate_ELBO().loss_and_grads(model.model, model.guide, binary_data(40))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        if name.startswith(("prior", "encoder.head")):
            assert parameter.grad.count_nonzero() > 0.9 * parameter.numel(), name


def test_every_parameter_is_stated():
    """``SVI`` learns what it sees in a trace."""
    model, x = small_sparse_model("selection"), binary_data(6)
    stated = set()
    for program in (model.model, model.guide):
        trace = poutine.trace(program, param_only=True).get_trace(x)
        stated |= {id(node["value"]) for node in trace.nodes.values()}
    assert stated == set(map(id, model.parameters()))


def test_gradient_of_the_loss_is_a_finite_difference():
    """At fixed random numbers, of parameters that act through spikes, slabs, prior and penalty."""
    model, x = small_sparse_model("selection", ShiftedSigmoid(5.0)), binary_data(6)

    def loss():
        return seeded(TraceConjugate_ELBO().differentiable_loss, model.model, model.guide, x)

    leaves = [model.encoder.head.linear.weight, model.prior.pseudo_inputs.raw, model.prior.selection[1].bias]
    for leaf, grad in zip(leaves, torch.autograd.grad(loss(), leaves), strict=True):
        direction, step = torch.randn_like(leaf), 1e-5
        with torch.no_grad():
            values = []
            for sign in (1, -2):
                leaf.add_(direction, alpha=sign * step)
                values.append(loss())
            leaf.add_(direction, alpha=step)
        expected = (values[0] - values[1]) / (2 * step)
        assert (grad * direction).sum().item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["fixed", "mixture", "selection"])
def test_vectorised_particles(kind):
    model, x = small_sparse_model(kind), binary_data(6)
    elbo = TraceConjugate_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    with torch.no_grad():
        parts = elbo.loss_per_role(model.model, model.guide, x)
        one = losses(model, x)
    for role in (Role.KL_Z, Role.FACTOR):
        assert_close(parts[role], one[role])
    assert 0.5 < parts[Role.RECONSTRUCTION] / one[Role.RECONSTRUCTION] < 2


@pytest.mark.parametrize(("kind", "draws"), [*zip(KINDS, [*DRAWS, Concrete], strict=True)])
def test_captured_steps_are_eager_steps(kind, draws):
    batches = batches_of((binary_data(20),), 10, 12)
    assert_twins(lambda: small_sparse_model(kind, draws()), batches)


def test_captured_steps_see_warm_up_and_slope():
    """Moved in place between steps, without another capture."""

    def move(number, svi, program):
        program.draws.warm_up.fill_(number / 10)
        program.draws.sharpen(number / 10)

    svi = assert_twins(small_sparse_model, batches_of((binary_data(20),), 10, 10), between=move)
    assert sum(svi._captures.values()) == 1


def test_encoder_sees_distorted_data_in_training_only():
    class Flipped(torch.nn.Module):
        def forward(self, x):
            return 1 - x

    model, x = small_sparse_model(distortion=Flipped()), binary_data(6)
    for training, seen in ((True, 1 - x), (False, x)):
        with torch.no_grad():
            trace = poutine.trace(model.train(training).guide).get_trace(x)
        q, expected = trace.nodes["z"]["fn"].base_dist, model.posterior(seen)
        assert_close(q.loc, expected.loc)
        assert_close(q.logits, expected.logits)


def test_posterior_is_what_the_encoder_says():
    model, x = small_sparse_model(), binary_data(6)
    loc, scale, logits = model.encoder(x)
    q = model.posterior(x)
    assert q.batch_shape == (6, 4)
    assert_close((q.loc, q.scale, q.logits), (loc, scale, logits))
    assert q.draws is None


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_prior(kind):
    model = small_sparse_model(kind)
    z = model.sample_latent(40_000)
    assert z.shape == (40_000, 4) and z.dtype == torch.float64 and not z.requires_grad
    p = model.prior.density(model.encoder)
    draws = p.sample((40_000,))
    for f in (lambda z: z, torch.square, lambda z: (z != 0).double(), lambda z: z.roll(1, -1) * z):
        a, b = f(z), f(draws)
        error = ((a.var(0) + b.var(0)) / 40_000).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() <= 5 * error).all()


def test_decoder_and_pseudo_inputs_start_at_the_data():
    decoder = ConvDecoder(4, (64, 64, 3), 2, 0.02)
    encoder, prior = ConvEncoder((64, 64, 3), 4, 0.02, SpikeHead), FixedSparsePrior(4, 0.1)
    observation = GaussianObservation(3, 0.01, 0.5)
    model = VariationalSparseCoding(encoder, decoder, observation, 4, 6, prior, Concrete())
    model.start_at(0.1 * torch.randn(6, 64, 64, 3) + torch.tensor([0.3, -0.2, 0.7]))
    with torch.no_grad():
        mean = observation.mean(decoder(torch.zeros(1, 4)))
    assert mean.mean((0, 1, 2)).tolist() == pytest.approx([0.3, -0.2, 0.7], abs=0.03)
    model, x = small_sparse_model(), binary_data(5)
    model.start_at(x)
    points = model.prior.pseudo_inputs().round()
    assert all(any(torch.equal(point, row) for row in x) for point in points)


def test_what_is_saved_is_what_is_learnt():
    model, other = small_sparse_model("selection"), small_sparse_model("selection")
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
    other.match(model.state_dict())
    other.load_state_dict(model.state_dict())
    x = binary_data(6)
    assert losses(other, x) == losses(model, x)


@pytest.mark.parametrize("sparsity", [0.0, 1.0, -0.1, math.nan])
def test_refuses(sparsity):
    message = rf"^sparsity: expected a number in \(0, 1\), or None, got {sparsity}"
    with pytest.raises(ValueError, match=message):
        small_sparse_model(sparsity=sparsity)
