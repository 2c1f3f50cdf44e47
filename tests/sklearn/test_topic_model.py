"""Topic models as estimators: against the engine, closed forms, and what users ask for."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.special import gammaln
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import TraceConjugate_ELBO
from pyro_fmvae.files import checkpoint
from pyro_fmvae.learn.topic_ascent import bound_of, collapsed, expected_log
from pyro_fmvae.sklearn import TopicModel

SIDE = 4


@parametrize_with_checks([TopicModel(2, tol=0.5), TopicModel(n_components=3, n_init=2, tol=0.5, max_iter=50)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def bars():
    """Counts of documents over a grid of words whose topics are rows and columns; and the topics."""
    rng = np.random.default_rng(0)
    lines = np.eye(SIDE)[:, :, None].repeat(SIDE, 2)
    topics = np.concatenate([lines.reshape(SIDE, -1), lines.transpose(0, 2, 1).reshape(SIDE, -1)]) / SIDE
    shares = rng.dirichlet(np.full(len(topics), 0.2), 300)
    return np.stack([rng.multinomial(60, p) for p in shares @ topics]).astype(float), topics


def test_a_state_in_a_file_is_the_model(tmp_path):
    texts = ["cat dog cat", "dog cat dog", "star moon", "moon star star"] * 5
    model = TopicModel(2, random_state=0).fit(texts)
    checkpoint.save_file(tmp_path / "state", model.state())
    again = clone(model).restore(checkpoint.load_file(tmp_path / "state")[0])
    np.testing.assert_array_equal(again.transform(texts), model.transform(texts))
    assert again.top_words(2) == model.top_words(2) and again.perplexity(texts) == model.perplexity(texts)
    assert {*vars(again)} == {*vars(model)}


def test_topics_are_found(bars):
    counts, topics = bars
    model = TopicModel(len(topics), random_state=0).fit(counts)
    found = model.components_ / model.components_.sum(1, keepdims=True)
    gaps = np.abs(found[:, None] - topics).sum(-1)
    assert (np.sort(gaps.argmin(1)) == np.arange(len(topics))).all() and gaps.min(1).max() < 0.2
    assert model.components_.sum() == pytest.approx(counts.sum() + 0.1 * topics.size)
    shares = model.transform(counts)
    np.testing.assert_allclose(shares.sum(1), 1)
    same = clone(model).fit(csr_matrix(counts))
    np.testing.assert_allclose(same.components_, model.components_)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).transform(counts), shares)


def test_coherence_is_normalised_mutual_information():
    apart = np.repeat(np.eye(2), 5, axis=0).repeat(2, axis=1)  # words 0 and 1, or 2 and 3
    model = TopicModel(2, random_state=0).fit(5 * apart)
    np.testing.assert_allclose(model.coherence(apart, 2), 1.0)
    np.testing.assert_allclose(model.coherence(np.ones((3, 4)), 2), 1.0)
    np.testing.assert_allclose(model.coherence(np.eye(4), 2), -1.0)
    mixed = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]])  # independent
    np.testing.assert_allclose(model.coherence(mixed, 2), 0.0, atol=1e-12)


def test_new_documents_are_predicted_better_than_by_scikit_learn(bars):
    counts, topics = bars
    rng = np.random.default_rng(1)
    first = rng.binomial(counts.astype(int), 0.5).astype(float)[200:]
    rest = counts[200:] - first
    model = TopicModel(len(topics), random_state=0).fit(counts[:200])
    theirs = LatentDirichletAllocation(len(topics), max_iter=100, random_state=0).fit(counts[:200])
    means = theirs.components_ / theirs.components_.sum(1, keepdims=True)
    other = np.exp(-(rest * np.log(theirs.transform(first) @ means)).sum() / rest.sum())
    mine = model.perplexity(rest, given=first)
    shares, own = model.transform(first), model.components_ / model.components_.sum(1, keepdims=True)
    assert mine == pytest.approx(np.exp(-(rest * np.log(shares @ own)).sum() / rest.sum()))
    assert mine < other
    assert model.perplexity(rest) == pytest.approx(np.exp(-model.score(rest) / rest.sum()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bound_is_that_of_the_program(bars, dtype, clean_slate):
    """The engine finds its own shares; at these the bounds are the same, and no less than the estimator's."""
    torch.set_default_dtype(dtype)
    counts, topics = bars
    counts = csr_matrix(counts[:40])
    model = TopicModel(len(topics), topic_word_prior=0.5, random_state=0).fit(counts)
    program, guide, arguments = model.model_, model.guide_, model.model_arguments(counts)
    np.testing.assert_allclose(guide.posterior("topics").natural_value(), model.components_)  # before a call
    loss = TraceConjugate_ELBO().loss(program, guide, *arguments)
    shares = guide.infer(*arguments)["shares"].concentration.detach().double().numpy()
    logs = expected_log(model.components_)
    divergence = ((model.components_ - 0.5) * logs).sum() - gammaln(model.components_).sum()
    divergence += gammaln(model.components_.sum(1)).sum()
    divergence += len(topics) * (counts.shape[1] * gammaln(0.5) - gammaln(counts.shape[1] * 0.5))
    bound = bound_of(counts, np.exp(logs), shares, model.doc_topic_prior_) - divergence
    assert -loss == pytest.approx(bound, rel=1e-3 if dtype == torch.float32 else 1e-4)
    assert model.lower_bound_ <= -loss + 1e-3 * abs(loss)
    assert model.lower_bound_ == pytest.approx(-loss, rel=0.02)


def test_one_topic_has_the_exact_evidence():
    """With one topic nothing is hidden: words are Dirichlet-multinomial."""
    counts = np.random.default_rng(0).poisson(2.0, (6, 5)).astype(float)
    model = TopicModel(1, topic_word_prior=0.7, random_state=0).fit(counts)
    total = counts.sum(0) + 0.7
    exact = gammaln(total).sum() - gammaln(total.sum()) - 5 * gammaln(0.7) + gammaln(3.5)
    assert model.lower_bound_ == pytest.approx(exact)
    np.testing.assert_allclose(model.components_, [total])
    twice = TopicModel(1, topic_word_prior=0.7).fit(counts[:3]).partial_fit(counts[3:])
    np.testing.assert_allclose(twice.components_, [total])


def test_a_sweep_is_that_of_the_paper():
    """Word by word, in a part of one document: Asuncion et al. (2009), equation 20."""
    counts = csr_matrix(np.array([[2.0, 0.0, 1.0], [1.0, 3.0, 0.0]]))
    rng, again = np.random.default_rng(3), np.random.default_rng(3)
    (found, _, _), *_ = collapsed([counts[:1], counts[1:]], 0.3, np.asarray(0.2), 2, rng, 1, 0.0)
    gamma = {document: again.dirichlet(np.ones(2), 2) for document in (0, 1)}
    words = {0: [(0, 2.0), (2, 1.0)], 1: [(0, 1.0), (1, 3.0)]}
    for document in (0, 1):
        by_word = np.zeros((3, 2))
        for d, own in words.items():
            for place, (word, count) in enumerate(own):
                by_word[word] += count * gamma[d][place]
        of_document = sum(count * gamma[document][place] for place, (_, count) in enumerate(words[document]))
        new = []
        for place, (word, _) in enumerate(words[document]):
            self_ = gamma[document][place]
            value = (of_document - self_ + 0.3) * (by_word[word] - self_ + 0.2)
            value = value / (by_word.sum(0) - self_ + 0.6)
            new.append(value / value.sum())
        gamma[document] = np.array(new)
    wanted = np.full((2, 3), 0.2)
    for d, own in words.items():
        for place, (word, count) in enumerate(own):
            wanted[:, word] += count * gamma[d][place]
    np.testing.assert_allclose(found, wanted)


def test_the_best_of_several_starts_is_taken():
    counts = np.random.default_rng(0).poisson(0.5, (40, 30))
    models = [TopicModel(5, n_init=number, random_state=0).fit(counts) for number in range(1, 7)]
    bounds = [model.lower_bound_ for model in models]  # a start more each time
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1]


def test_entries_that_are_stored_twice_are_added():
    stored = csr_matrix(([1.0, 1.0, 2.0, 3.0], [0, 0, 1, 2], [0, 3, 4]), (2, 3))
    model = TopicModel(2, random_state=0).fit(stored)
    np.testing.assert_allclose(model.components_, clone(model).fit(stored.toarray()).components_)
    words, times, _ = model.model_arguments(stored)
    assert words[0].tolist() == [0, 1] and times[0].tolist() == [2, 2]


def test_words_and_texts():
    texts = ["Cat dog cat!", "dog, cat dog", "star moon", "moon star star"] * 10
    model = TopicModel(2, random_state=0).fit(texts)
    lists = [[word.strip("!,").lower() for word in text.split()] for text in texts]
    same = clone(model).fit(lists)
    np.testing.assert_allclose(same.components_, model.components_)
    assert model.vocabulary_ == ["cat", "dog", "moon", "star"]
    assert sorted(map(sorted, model.top_words(2))) == [["cat", "dog"], ["moon", "star"]]
    np.testing.assert_allclose(model.transform([["unheard"], ["cat"]])[0], 0.5)
    with pytest.warns(UserWarning, match=r"left out 2 words .* such as \['owl', 'sun'\]"):
        model.partial_fit(["sun star", "owl cat"])
    table = pd.DataFrame({"cat": [3, 2, 0], "sun": [0, 0, 4]})
    named = clone(model).fit(texts).fit(table)
    assert {words[0] for words in named.top_words(1)} == {"cat", "sun"}
    with pytest.raises(ValueError, match="X: expected counts, as in fit, got words"):
        named.transform(["cat"])
    with pytest.raises(ValueError, match="X: expected at least one word"):
        clone(model).fit(["", "a"])
    with pytest.raises(ValueError, match="X: expected a word that fit had"):
        model.perplexity(["unheard"])
    with pytest.raises(ValueError, match="given: expected the 1 documents of X, got 2"):
        model.perplexity(["cat"], ["dog", "star"])
    with pytest.raises(ValueError, match="n_words"):
        model.coherence(texts, 1)
    with pytest.raises(ValueError, match="tol: expected a number >= 0, got nan"):
        TopicModel(2, tol=np.nan).fit(table)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        TopicModel(2, max_iter=1, tol=1e-12, random_state=0).fit(table)
