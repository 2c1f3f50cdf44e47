"""Latent Dirichlet allocation by collapsed variational Bayes, on sparse counts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from scipy.special import digamma, gammaln  # type: ignore[import-untyped]


@dataclass
class DocumentPart:
    """Some of the documents, and what is expected of their words.

    Attributes:
        counts: of words in documents, [N, V], without stored zeros.
        shares: probabilities of the topics of each stored count, [n, K].
        of_documents: expected numbers of words by topic, [N, K].
        of_words: the same by word, [V, K].
    """

    counts: csr_matrix
    shares: np.ndarray
    of_documents: np.ndarray
    of_words: np.ndarray

    @classmethod
    def at(cls, counts: csr_matrix, shares: np.ndarray) -> "DocumentPart":
        """The part at given probabilities of topics."""
        stored, (documents, words) = len(counts.data), counts.shape
        places = np.arange(stored)
        by_document = csr_matrix((counts.data, places, counts.indptr), (documents, stored))
        by_word = csr_matrix((counts.data, (counts.indices, places)), (words, stored))
        return cls(counts, shares, by_document @ shares, by_word @ shares)


def collapsed(
    parts: list[csr_matrix],
    shares_prior: float,
    words: np.ndarray,
    topics: int,
    rng: np.random.Generator,
    sweeps: int,
    tolerance: float,
) -> Iterator[tuple[np.ndarray, float, int]]:
    """Sweeps of collapsed variational Bayes, of order zero; yields λ [K, V], mean change and number of each.

    Each word has probabilities of topics in proportion to those of its document and of the same word
    elsewhere, as expected without itself (Asuncion et al., 2009, On smoothing and inference for topic models,
    "CVB0"). Shares and topics are integrated out.

    Args:
        parts: counts, [N_b, V] each, which are visited in turn.
        shares_prior: concentration of the prior of a document's shares.
        words: λ0, concentrations of the topics' words, [K, V] or a number for all.
        topics: K.
        rng: source of the random start.
        sweeps: at most.
        tolerance: mean change of the probabilities of a word's topics, below which a sweep is the last.
    """
    total_words = sum(part.data.sum() for part in parts)
    found = [DocumentPart.at(part, rng.dirichlet(np.ones(topics), len(part.data))) for part in parts]
    prior = np.broadcast_to(np.asarray(words, dtype=float), (topics, parts[0].shape[1])).T
    prior_of_topics = prior.sum(0)
    elsewhere = np.sum([part.of_words for part in found], axis=0)
    for sweep in range(1, sweeps + 1):
        change = 0.0
        for number, old in enumerate(found):
            column, own = old.counts.indices, old.shares
            documents = np.repeat(np.arange(old.counts.shape[0]), np.diff(old.counts.indptr))
            by_topic = elsewhere.sum(0) + prior_of_topics
            shares = (old.of_documents[documents] - own + shares_prior) * (
                elsewhere[column] - own + prior[column]
            )
            shares = np.maximum(shares, 0.0) / (by_topic - own)  # counts below 1 may leave less than nothing
            shares /= np.maximum(shares.sum(1, keepdims=True), np.finfo(float).tiny)
            change += float(np.abs(shares - own).sum(1) @ old.counts.data)
            found[number] = DocumentPart.at(old.counts, shares)
            elsewhere += found[number].of_words - old.of_words
        yield (prior + np.maximum(elsewhere, 0.0)).T, change / total_words, sweep
        if change < tolerance * total_words:
            break


def shares_of(
    counts: csr_matrix, topics: np.ndarray, prior: float, passes: int, tolerance: float
) -> np.ndarray:
    """Concentrations of the shares of documents, each by itself, at given topics: [N, K].

    Args:
        counts: [N, V].
        topics: probabilities of words, [K, V].
        prior: concentration.
        passes: at most.
        tolerance: largest change of a document's expected counts, relative to its length, after which it
            stays.
    """
    stored, least = len(counts.data), np.finfo(float).tiny
    documents, given = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)), topics.T[counts.indices]
    by_document = csr_matrix((counts.data, np.arange(stored), counts.indptr), (counts.shape[0], stored))
    shares = np.full((stored, len(topics)), 1 / len(topics))
    sums: np.ndarray = by_document @ shares
    lengths, active = np.maximum(np.asarray(counts.sum(1))[:, 0], least), np.arange(counts.shape[0])
    for _ in range(passes):
        rows = np.isin(documents, active) if len(active) < len(sums) else slice(None)
        own = np.maximum(sums[documents[rows]] - shares[rows] + prior, least) * given[rows]
        shares[rows] = own / np.maximum(own.sum(1, keepdims=True), least)
        new = by_document[active] @ shares
        moved = np.abs(new - sums[active]).max(1, initial=0) / lengths[active]
        sums[active] = new
        active = active[moved > tolerance]
        if not len(active):
            break
    return sums + prior


def bound_of(counts: csr_matrix, topics: np.ndarray, shares: np.ndarray, prior: float) -> float:
    """Bound on the log-probability of documents at given topics, in nats; words are in a given order.

    Args:
        counts: [N, V].
        topics: exponentials of expected log-probabilities of words, [K, V].
        shares: concentrations of the posteriors of shares, [N, K].
        prior: concentration of their prior.
    """
    logs = expected_log(shares)
    table, documents = counts.tocoo(), np.exp(logs)
    sums = np.einsum("nk,nk->n", documents[table.row], topics.T[table.col])
    divergence = ((shares - prior) * logs).sum() - log_normalizer(shares).sum()
    divergence += len(shares) * log_normalizer(np.full(shares.shape[1], prior))
    return float(table.data @ np.log(np.maximum(sums, np.finfo(float).tiny)) - divergence)


def expected_log(concentration: np.ndarray) -> np.ndarray:
    """E[log p] of Dirichlet distributions [..., L]."""
    found: np.ndarray = digamma(concentration) - digamma(concentration.sum(-1, keepdims=True))
    return found


def log_normalizer(concentration: np.ndarray) -> np.ndarray:
    """A(c) of Dirichlet distributions [..., L]: [...]."""
    found: np.ndarray = gammaln(concentration).sum(-1) - gammaln(concentration.sum(-1))
    return found
