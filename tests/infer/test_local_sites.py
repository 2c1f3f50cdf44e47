"""Latents of single data points: against closed forms, stored posteriors and Pyro."""

import itertools
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from sklearn.decomposition._lda import _update_doc_distribution
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from tests.infer.plain.oracles import standard
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


def mixed(words):
    """The same with the topics of words summed out in the program."""
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((VOCABULARY,), 0.7)))
    with pyro.plate("documents", N, subsample=words):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
        word = dist.Categorical(topics).expand([len(words), TOPICS])
        with pyro.plate("words", WORDS, dim=-2), poutine.mask(mask=words.T >= 0):
            mixture = dist.MixtureSameFamily(dist.Categorical(shares), word)
            pyro.sample("word", mixture, obs=words.T.clamp(min=0))


def spotted(x):
    """Numbers of a point that come from locations which all points share, in shares of its own."""
    with pyro.plate("number", TOPICS):
        locs = pyro.sample("locs", dist.Normal(0.0, 2.0))
    with pyro.plate("points", N, subsample=x):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
        mixture = dist.MixtureSameFamily(
            dist.Categorical(shares), dist.Normal(locs, 0.5).expand([len(x), TOPICS])
        )
        with pyro.plate("numbers", 3, dim=-2):
            pyro.sample("x", mixture, obs=x.T)


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
PROGRAMS = [
    (admixture, WORDS_OF, "documents"),
    (mixed, WORDS_OF, "documents"),
    (spotted, NUMBERS, "points"),
    (factors, NUMBERS, "points"),
    (robust, NUMBERS, "points"),
]
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
    assert set(guide.posteriors) <= {"topics", "locs", "w", "tau", "centre"}
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
    guide = made(model, x, plate, steps=4)
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


GROUPS, OBSERVATIONS = 4, 5
EFFECTS = torch.randn(
    GROUPS, OBSERVATIONS, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64
)
PRESENT = torch.arange(OBSERVATIONS) < torch.tensor([[5], [2], [0], [3]])  # the third group has no data


def group_means(data, present):
    """Means of groups of different sizes about a common one."""
    centre = pyro.sample("shared", dist.Normal(torch.zeros(1), 3.0).to_event(1))
    with pyro.plate("groups", GROUPS, subsample=data):
        loc = pyro.sample("own", dist.Normal(centre, 0.4).to_event(1))
        with pyro.plate("observations", OBSERVATIONS, dim=-2), poutine.mask(mask=present.T):
            pyro.sample("y", dist.Normal(loc.squeeze(-1), 0.5), obs=data[..., 0].T)


def random_effects(data, present):
    """A regression whose slopes are shared, plus each group's own."""
    x = data[..., 1:]
    w = pyro.sample("shared", dist.MultivariateNormal(torch.zeros(2), 9 * torch.eye(2)))
    with pyro.plate("groups", GROUPS, subsample=data):
        own = pyro.sample("own", dist.MultivariateNormal(torch.zeros(2), 0.16 * torch.eye(2)))
        mean = x @ w + (x * own.unsqueeze(-2)).sum(-1)
        with pyro.plate("observations", OBSERVATIONS, dim=-2), poutine.mask(mask=present.T):
            pyro.sample("y", dist.Normal(mean.T, 0.5), obs=data[..., 0].T)


def joint_means(design):
    """Means of shared effects [P] and of each group's own deviations [GROUPS, P] under the joint Gaussian.

    Args:
        design: regressors of each observation, [GROUPS, OBSERVATIONS, P].
    """
    size = design.shape[-1]
    rows = torch.zeros(GROUPS, OBSERVATIONS, 1 + GROUPS, size, dtype=torch.float64)
    rows[:, :, 0] = design
    for group in range(GROUPS):
        rows[group, :, 1 + group] = design[group]
    rows, y = rows.flatten(2)[PRESENT], EFFECTS[..., 0][PRESENT]
    prior = torch.cat([torch.full((size,), 1 / 9.0), torch.full((GROUPS * size,), 1 / 0.16)])
    means = torch.linalg.solve(prior.diag() + rows.T @ rows / 0.25, rows.T @ y / 0.25).view(1 + GROUPS, size)
    return means[0], means[1:]


@pytest.mark.parametrize(
    ("model", "design", "is_deviation"),
    [(group_means, torch.ones_like(EFFECTS[..., :1]), False), (random_effects, EFFECTS[..., 1:], True)],
    ids=["group means", "random effects"],
)
def test_effects_of_groups_have_the_means_of_the_joint_gaussian(model, design, is_deviation):
    """Independent Gaussian posteriors have the exact means, where coordinate ascent has converged."""
    pyro.set_rng_seed(0)
    guide = AutoConjugate(model, local=["groups"], local_steps=1)
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    for _ in range(70):
        svi.step(EFFECTS, PRESENT)
    shared, own = joint_means(design)
    assert_close(guide.posterior("shared")().mean.view(-1), shared, rtol=0.0, atol=1e-6)
    found = guide.infer(EFFECTS[1:], PRESENT[1:])["own"].mean
    assert_close(found if is_deviation else found - shared, own[1:], rtol=0.0, atol=1e-6)


def counted(words, counts):
    """The admixture of different words [B, WORDS] and their counts."""
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((VOCABULARY,), 0.7)))
    with pyro.plate("documents", N, subsample=words):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
        word = dist.Categorical(topics).expand([len(words), TOPICS])
        times = poutine.mask(mask=counts.T > 0), poutine.scale(scale=counts.T.clamp(min=1))
        with pyro.plate("words", VOCABULARY, dim=-2), times[0], times[1]:
            pyro.sample("word", dist.MixtureSameFamily(dist.Categorical(shares), word), obs=words.T)


def in_one_row(documents, words, counts, rows):
    """The admixture without padding: words, their documents in the batch and their counts, [M] each."""
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((VOCABULARY,), 0.7)))
    with pyro.plate("documents", N, subsample=rows):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
    with pyro.plate("words", len(words)), poutine.scale(scale=counts * N / len(rows)):
        word = dist.Categorical(topics).expand([len(words), TOPICS])
        pyro.sample("word", dist.MixtureSameFamily(dist.Categorical(shares[documents]), word), obs=words)


def test_documents_need_no_padding():
    guide = made(admixture, WORDS_OF, "documents")
    twin = AutoConjugate(in_one_row, local=["documents"], local_steps=20)
    for rows in (torch.arange(N), torch.tensor([4, 5, 0])):
        counts = torch.stack([(word == WORDS_OF[rows]).sum(-1) for word in range(VOCABULARY)], -1)
        documents, words = counts.nonzero(as_tuple=True)
        batch = documents, words, counts[documents, words].double(), rows
        with poutine.block():
            twin(*batch)
        twin.load_state_dict(guide.state_dict())
        found = []
        for model, each, args in ((admixture, guide, (WORDS_OF[rows],)), (in_one_row, twin, batch)):
            loss = TraceConjugate_ELBO().differentiable_loss(model, each, *args)
            slope = torch.autograd.grad(loss, each.posterior("topics").natural)[0]
            found.append((loss, slope, each.infer(*args)["shares"].natural))
        for one, other in zip(*found, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("number", [3, -4])
def test_a_document_that_is_not_in_the_batch_is_refused(number):
    rows, words = torch.arange(3), torch.zeros(4, dtype=torch.int64)
    twin = AutoConjugate(in_one_row, local=["documents"], local_steps=1)
    twin(torch.tensor([0, 2, 1, 1]), words, torch.ones(4), rows)
    message = (
        f"site 'word': an index asks for number {number} of 'shares', of which there are 3 in plate "
        "'documents'; expected numbers from 0 to 2, counted within the batch"
    )
    with pytest.raises(ValueError, match=f"^{message}"):
        twin(torch.tensor([0, 2, number, 1]), words, torch.ones(4), rows)


def test_words_may_be_counted():
    guide = made(admixture, WORDS_OF, "documents")
    counts = torch.stack([(word == WORDS_OF).sum(-1) for word in range(VOCABULARY)], -1).double()
    different = torch.arange(VOCABULARY).where(counts > 0, 99)  # what is masked out may be anything
    twin = AutoConjugate(counted, local=["documents"], local_steps=20)
    with poutine.block():
        twin(different, counts)
    twin.posteriors["topics"].load_state_dict(guide.posteriors["topics"].state_dict())
    assert_close(
        TraceConjugate_ELBO().loss(counted, twin, different, counts),
        TraceConjugate_ELBO().loss(admixture, guide, WORDS_OF),
    )
    assert_close(twin.infer(different, counts)["shares"].natural, guide.infer(WORDS_OF)["shares"].natural)


@pytest.mark.parametrize("steps", [1, 7])
def test_documents_have_the_posteriors_of_scikit_learn(steps):
    """Hoffman, Blei and Bach (2010), Algorithm 2, after as many passes on the same topics."""
    counts = torch.stack([(word == WORDS_OF).sum(-1) for word in range(VOCABULARY)], -1).double()
    pyro.set_rng_seed(2)
    guide = AutoConjugate(counted, local=["documents"], local_steps=steps)
    found = guide.infer(torch.arange(VOCABULARY).expand(N, -1), counts)["shares"].concentration
    expected_topics = guide.posterior("topics")().expected_stats().exp().detach().numpy()
    theirs, _ = _update_doc_distribution(
        counts.numpy(), expected_topics, 0.4, steps, 0.0, cal_sstats=False, random_state=None
    )
    assert_close(found, torch.from_numpy(theirs))


def test_passes_of_a_document_end_at_the_tolerance():
    """After the first one that moved its shares by less, whatever other documents are in the batch."""
    tolerance, most = 0.01, 12
    found = [made(admixture, WORDS_OF, "documents", n).infer(WORDS_OF)["shares"] for n in range(1, most)]
    moves = torch.stack([kl_divergence(*pair) for pair in itertools.pairwise(map(standard, found))])
    last = (moves < tolerance).double().argmax(0) + 1
    assert len(last.unique()) > 2
    pyro.set_rng_seed(2)
    guide = AutoConjugate(admixture, local=["documents"], local_steps=50, local_tolerance=tolerance)
    guide.setup(WORDS_OF)
    expected = torch.stack([found[n].natural[document] for document, n in enumerate(last)])
    assert_close(guide.infer(WORDS_OF)["shares"].natural, expected)
    alone = [guide.infer(document.unsqueeze(0))["shares"].natural for document in WORDS_OF]
    assert_close(torch.cat(alone), expected)


def by_row(words, rows):
    """The admixture, with row numbers."""
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((VOCABULARY,), 0.7)))
    with pyro.plate("documents", N, subsample=rows):
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((TOPICS,), 0.4)))
        with pyro.plate("words", WORDS, dim=-2), poutine.mask(mask=words.T >= 0):
            topic = pyro.sample("topic", dist.Categorical(shares), infer={"enumerate": "parallel"})
            pyro.sample("word", dist.Categorical(topics[topic]), obs=words.T.clamp(min=0))


def test_warm_starts_add_up_to_one_long_search():
    rows = torch.tensor([4, 0, 3])
    long = made(admixture, WORDS_OF, "documents", steps=6)
    short = AutoConjugate(by_row, local=["documents"], local_steps=2, local_warm=True)
    short.setup(WORDS_OF[rows], rows)
    short.posteriors["topics"].load_state_dict(long.posteriors["topics"].state_dict())
    for _ in range(3):
        trace = poutine.trace(short).get_trace(WORDS_OF[rows], rows)
    assert_close(trace.nodes["shares"]["fn"].natural, long.infer(WORDS_OF[rows])["shares"].natural)
    assert not any("kept" in name for name in short.state_dict())
    cold = made(admixture, WORDS_OF, "documents", steps=2)
    first = cold.infer(WORDS_OF[rows])["shares"].natural
    assert_close(short.infer(WORDS_OF[rows], rows)["shares"].natural, first)  # new points have no last visit


def test_warm_starts_are_captured():
    naturals = []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(2)
        guide = AutoConjugate(
            by_row, local=["documents"], local_steps=4, local_tolerance=0.03, local_warm=True
        )
        svi = kind(by_row, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
        for rows in torch.tensor([[0, 1, 2], [3, 4, 5], [5, 0, 1], [0, 1, 2]]):
            svi.step(WORDS_OF[rows], rows)
        naturals.append(guide.posteriors["topics"].natural.detach())
    assert_close(*naturals, rtol=0.0, atol=0.0)


def noisy(x):
    """A latent of each point under a scale that the guide draws."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("points", N, subsample=x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(loc, scale), obs=x[:, 0])


def test_posteriors_are_those_given_what_was_drawn():
    guide = made(noisy, NUMBERS, "points", steps=1)
    trace = poutine.trace(guide).get_trace(NUMBERS)
    precision = 1 + trace.nodes["scale"]["value"].detach() ** -2
    assert_close(trace.nodes["loc"]["fn"].natural[:, 0].detach(), NUMBERS[:, 0] * (precision - 1))
    assert not torch.equal(guide(NUMBERS)["scale"], trace.nodes["scale"]["value"])


def test_the_plan_says_that_latents_of_points_are_exact():
    plan = TraceConjugate_ELBO().plan(admixture, made(admixture, WORDS_OF, "documents", 1), WORDS_OF[:2])
    assert plan["shares"].treatment == "exact"


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


def after_steps(kind, model, x, plate):
    """λ of the globals after four steps."""
    guide = made(model, x, plate, steps=2)
    svi = kind(model, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
    for batch in (x[:3], x[3:], x[:3], x[1:4]):
        svi.step(batch)
    return [p.natural.detach() for p in guide.posteriors.values()]


@programs
def test_captured_steps_are_eager_ones(model, x, plate):
    eager, captured = (after_steps(kind, model, x, plate) for kind in (ConjugateSVI, CapturedSVI))
    assert_close(captured, eager, rtol=0.0, atol=0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning"
)  # torch's own use
@programs
def test_compiled_steps_are_eager_ones(model, x, plate):
    kinds = (ConjugateSVI, partial(CapturedSVI, compile=True))
    eager, compiled = (after_steps(kind, model, x, plate) for kind in kinds)
    assert_close(compiled, eager, rtol=1e-10, atol=1e-10)


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
            "local: expected conjugate latents .* but 'shape' is none: .* scale of Normal",
        ),
        (drawn_batch, ["points"], "local: plate 'points' draws its minibatch in the model; give it one"),
    ],
)
def test_refusals(model, local, words):
    with pytest.raises(ValueError, match=words):
        AutoConjugate(model, local=local)(NUMBERS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"local_steps": 0}, "local_steps: expected a number > 0, got 0"),
        ({"local_tolerance": -1.0}, "local_tolerance: expected a number >= 0, got -1.0"),
        ({"local": [], "local_warm": True}, r"local_warm: expected one plate in local, got \[\]"),
        ({"local_warm": True}, "local_warm: expected row numbers as the minibatch of plate 'points'"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        AutoConjugate(robust, **{"local": ["points"], **options})(NUMBERS)


def test_a_word_that_is_not_in_the_vocabulary_is_refused():
    guide = made(mixed, WORDS_OF, "documents", 1)
    wrong = WORDS_OF.clone()
    wrong[1, 4] = VOCABULARY
    words = "site 'word': 1 of its 30 observed values are not finite or outside"
    with pytest.raises(ValueError, match=words):
        guide(wrong)
    svi = CapturedSVI(mixed, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
    svi.step(WORDS_OF)
    kept = guide.posterior("topics").natural.detach().clone()
    with pytest.raises(ValueError, match=words):
        svi.step(wrong)
    assert_close(guide.posterior("topics").natural.detach(), kept, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("model", [admixture, mixed])
def test_an_empty_minibatch_is_refused(model):
    guide = AutoConjugate(model, local=["documents"])
    svi = CapturedSVI(model, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
    for call in (svi.step, guide.infer):
        with pytest.raises(
            ValueError, match="plate 'documents': its minibatch is empty; give it at least one"
        ):
            call(WORDS_OF[:0])
    svi.step(WORDS_OF)
    for call in (svi.step, guide.infer):
        with pytest.raises(
            ValueError, match="plate 'documents': its minibatch is empty; give it at least one"
        ):
            call(WORDS_OF[:0])


@pytest.mark.parametrize("model", [admixture, mixed])
def test_documents_without_any_word_say_nothing(model):
    guide = made(model, WORDS_OF, "documents", 2)
    loss = TraceConjugate_ELBO().loss(model, guide, torch.full_like(WORDS_OF, -1))
    topics = guide.posterior("topics")()
    prior = dist.Dirichlet(torch.full((VOCABULARY,), 0.7)).expand([TOPICS])
    kl = torch.distributions.kl_divergence(dist.Dirichlet(topics.concentration), prior).sum()
    assert loss == pytest.approx(kl.item())


def two_of_each_point(names):
    """Two latents of each point, of which each has its own numbers."""

    def model(x, rows):
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        with pyro.plate("points", N, subsample=rows):
            for column, name in enumerate(names):
                z = pyro.sample(name, dist.Normal(0.0, 1.0))
                pyro.sample(f"x{column}", dist.Normal(z, scale.rsqrt()), obs=x[:, column])

    return model


def test_warm_starts_of_similar_names_are_kept_apart():
    rows, found = torch.tensor([4, 0, 3]), []
    for names in (("t.u", "t_u"), ("one", "other")):
        pyro.set_rng_seed(3)
        model = two_of_each_point(names)
        guide = AutoConjugate(model, local=["points"], local_steps=1, local_warm=True)
        for _ in range(2):
            trace = poutine.trace(guide).get_trace(NUMBERS[rows], rows)
        found.append([trace.nodes[name]["fn"].natural for name in names])
        assert len(dict(guide.named_buffers())) == 2
    assert_close(found[0], found[1])
