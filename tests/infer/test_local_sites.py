"""Latents of single data points: against closed forms, stored posteriors and Pyro."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.optim import NaturalGradient
from tests.infer.programs import estimate

N, WORDS, VOCABULARY, TOPICS, D = 6, 5, 4, 3, 2


def admixture(words):
    """Latent Dirichlet allocation of documents [B, WORDS]; -1 is no word."""
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((VOCABULARY,), 0.7)))
    with pyro.plate("documents", N, subsample=words):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
        with pyro.plate("words", WORDS, dim=-2), poutine.mask(mask=words.T >= 0):
            topic = pyro.sample("topic", dist.Categorical(shares), infer={"enumerate": "parallel"})
            pyro.sample("word", dist.Categorical(topics[topic]), obs=words.T.clamp(min=0))


def factors(x):
    """Probabilistic PCA of [B, 3] by D factors."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, D]).to_event(2))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
    with pyro.plate("points", N, subsample=x):
        z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(D), torch.eye(D)))
        pyro.sample("x", dist.Normal(z @ w.T, tau.rsqrt()).to_event(1), obs=x)


def robust(x):
    """Two latents of each point that depend on each other: a location, and a precision of its own."""
    centre = pyro.sample("centre", dist.Normal(0.0, 2.0))
    with pyro.plate("points", N, subsample=x):
        precision = pyro.sample("precision", dist.Gamma(2.0, 2.0))
        loc = pyro.sample("loc", dist.Normal(centre, 1.0))
        pyro.sample("x", dist.Normal(loc, precision.rsqrt()), obs=x[:, 0])


WORDS_OF = torch.tensor(
    [[0, 0, 1, 3, 2], [1, 1, 1, 2, 0], [3, 3, 0, -1, -1], [2, 2, 3, 1, -1], [-1] * 5, [0, 1, 0, 0, 2]]
)
NUMBERS = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PROGRAMS = [(admixture, WORDS_OF, "documents"), (factors, NUMBERS, "points"), (robust, NUMBERS, "points")]
programs = pytest.mark.parametrize(("model", "x", "plate"), PROGRAMS, ids=[m.__name__ for m, *_ in PROGRAMS])


def made(model, x, plate, steps=20):
    pyro.set_rng_seed(2)
    guide = AutoConjugate(model, local=[plate], local_steps=steps)
    with poutine.block():
        guide(x)
    return guide


def gradients(model, guide, x):
    """Natural gradients of the posteriors that are kept."""
    loss = TraceConjugate_ELBO().differentiable_loss(model, guide, x)
    return loss.detach(), torch.autograd.grad(loss, [p.natural for p in guide.posteriors.values()])


@programs
def test_no_other_posterior_is_better(model, x, plate):
    """Random steps from the posteriors of the points only lower the bound."""
    guide = made(model, x, plate)
    assert set(guide.posteriors) <= {"topics", "w", "tau", "centre"}
    best = TraceConjugate_ELBO().loss(model, guide, x)
    found = guide.infer(x)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        moved = {}
        for name, q in found.items():
            noise = torch.randn(q.natural.shape, generator=generator, dtype=torch.float64)
            moved[name] = q.with_natural(q.natural * (1 + 0.1 * noise))

        def other(x):
            guide._sample_global(x)
            with pyro.plate(plate, N, subsample=x):
                for name, q in moved.items():  # noqa: B023
                    pyro.sample(name, q)

        assert TraceConjugate_ELBO().loss(model, other, x) > best


@programs
def test_minibatches_are_the_whole_on_average(model, x, plate):
    guide = made(model, x, plate)
    loss, grads = gradients(model, guide, x)
    parts = [gradients(model, guide, batch) for batch in x.split(2)]
    assert_close(sum(part[0] for part in parts) / 3, loss, rtol=1e-9, atol=1e-9)
    for number, grad in enumerate(grads):
        assert_close(sum(part[1][number] for part in parts) / 3, grad, rtol=1e-7, atol=1e-7)


def test_factors_have_the_posterior_of_the_textbook():
    """Bishop (2006), equation 12.40, under expectations over loadings and precision. One step is enough."""
    guide = made(factors, NUMBERS, "points", steps=1)
    w, tau = guide.posterior("w")(), guide.posterior("tau")()
    second = (w.covariance_matrix if w.event_shape == (D,) else torch.diag_embed(w.variance)).sum(0)
    second = second + w.mean.T @ w.mean
    precision = torch.eye(D) + tau.mean * second
    found = guide.infer(NUMBERS[:4])["z"]
    assert_close(found.precision_matrix, precision.expand(4, D, D))
    assert_close(found.mean, tau.mean * torch.linalg.solve(precision, (NUMBERS[:4] @ w.mean).T).T)


def test_a_minibatch_counts_for_all_points_in_the_guide_too():
    """Pyro's own ELBOs weigh the guide's density by its own scale."""
    trace = poutine.trace(made(factors, NUMBERS, "points", steps=1)).get_trace(NUMBERS[:2])
    assert trace.nodes["z"]["scale"] == N / 2
    assert trace.nodes["w"]["scale"] == 1


def test_an_empty_document_has_its_prior():
    found = made(admixture, WORDS_OF, "documents").infer(WORDS_OF)["shares"]
    assert_close(found.concentration[4], torch.full((TOPICS,), 0.4))
    assert not torch.allclose(found.concentration[0], torch.full((TOPICS,), 0.4))


@programs
def test_kept_posteriors_have_the_same_bound_and_gradients(model, x, plate):
    """Those of a guide without plates of points, given what was found for these points."""
    guide, kept = made(model, x, plate), AutoConjugate(model)
    with poutine.block():
        kept(x)
    for name, posterior in guide.posteriors.items():
        kept.posteriors[name].load_state_dict(posterior.state_dict())
    for name, q in guide.infer(x).items():
        kept.posteriors[name].load_state_dict({"natural": q.natural})
    ours, theirs = gradients(model, guide, x), gradients(model, kept, x)
    assert_close(ours[0], theirs[0], rtol=1e-12, atol=0.0)
    for number, name in enumerate(kept.posteriors):
        if name in guide.posteriors:
            assert_close(ours[1][list(guide.posteriors).index(name)], theirs[1][number])


def test_bound_is_that_of_pyro():
    guide = made(admixture, WORDS_OF, "documents", steps=5)
    ours = TraceConjugate_ELBO().loss(admixture, guide, WORDS_OF)
    theirs = TraceEnum_ELBO(max_plate_nesting=2)
    mean, error = estimate(lambda: theirs.loss(admixture, guide, WORDS_OF), 40)
    assert mean - ours < 4 * error  # Pyro's is tighter: the words' topics are summed out under each draw


@programs
def test_captured_steps_are_eager_ones(model, x, plate):
    naturals = []
    for kind in (ConjugateSVI, CapturedSVI):
        guide = made(model, x, plate, steps=2)
        svi = kind(model, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
        for batch in (x[:3], x[3:], x[:3], x[1:4]):
            svi.step(batch)
        naturals.append([p.natural.detach() for p in guide.posteriors.values()])
    for eager, captured in zip(*naturals, strict=True):
        assert_close(captured, eager, rtol=0.0, atol=0.0)


def unknown(x):
    centre = pyro.sample("centre", dist.Normal(0.0, 2.0))
    with pyro.plate("points", N, subsample=x):
        shape = pyro.sample("shape", dist.LogNormal(0.0, 1.0))
        pyro.sample("x", dist.Normal(centre, shape), obs=x[:, 0])


def drawn_batch(x):
    centre = pyro.sample("centre", dist.Normal(0.0, 2.0))
    with pyro.plate("points", N, subsample_size=2) as rows:
        loc = pyro.sample("loc", dist.Normal(centre, 1.0))
        pyro.sample("x", dist.Normal(loc, 1.0), obs=x[rows, 0])


@pytest.mark.parametrize(
    ("model", "local", "words"),
    [
        (robust, "points", r"local: expected a list of names of plates, got 'points'; write \['points'\]"),
        (
            robust,
            ["rows"],
            r"local: expected conjugate latents in the plates \['rows'\], but there is no latent",
        ),
        (
            unknown,
            ["points"],
            "local: expected conjugate latents .* but 'shape' is none: its LogNormal prior",
        ),
        (drawn_batch, ["points"], "local: plate 'points' draws its minibatch in the model; give it one"),
    ],
)
def test_refusals(model, local, words):
    with pytest.raises(ValueError, match=words):
        AutoConjugate(model, local=local)(NUMBERS)
