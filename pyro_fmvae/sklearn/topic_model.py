"""Topics of documents as a scikit-learn estimator."""

import re
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
from torch import Tensor

from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.topic_ascent import bound_of, collapsed, expected_log, log_normalizer, shares_of
from pyro_fmvae.sklearn.table_estimator import check_convergence, check_tolerance

PARTS: Final = 8
"""Parts of the documents that are visited in turn."""
PASSES: Final = 100
"""Passes over a new document, at most."""
WORDS: Final = re.compile(r"(?u)\b\w\w+\b")
"""Words of a text: two letters or more, as in scikit-learn."""
NAMED: Final = 3
"""New words that a warning names."""


class TopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Latent Dirichlet allocation: topics of documents, by collapsed variational Bayes.

    Documents are rows of counts (an array or a sparse matrix), lists of words, or texts, which are split into
    words of two or more letters in lower case.

    Args:
        n_components: K, the number of topics.
        doc_topic_prior: concentration of the Dirichlet prior of a document's shares; None: 1 / K.
        topic_word_prior: concentration of the Dirichlet prior of a topic's words.
        tol: mean change of the probabilities of a word's topics, below which a sweep is the last.
        max_iter: sweeps over all documents at most.
        n_init: random starts; the one with the best bound is kept.
        random_state: seed of the starts.

    Attributes:
        components_: concentrations of the posterior of each topic's words, [K, V].
        vocabulary_: words of the columns, if documents are lists of words or texts.
        doc_topic_prior_: concentration of the prior of shares.
        lower_bound_: bound on the log-probability of the documents, in nats, words in their order.
        n_iter_: sweeps.
        converged_: whether the last sweep changed less than ``tol``.
        n_features_in_: V, different words.
        feature_names_in_: their names, where ``X`` was a data frame.

    References:
        Blei, Ng and Jordan (2003), Latent Dirichlet allocation; Asuncion et al. (2009), On smoothing and
        inference for topic models.

    Examples:
        >>> from pyro_fmvae.sklearn import TopicModel
        >>> texts = ["cat dog cat", "dog cat dog", "star moon", "moon star star"] * 10
        >>> model = TopicModel(2, random_state=0).fit(texts)
        >>> sorted(sorted(words) for words in model.top_words(2))
        [['cat', 'dog'], ['moon', 'star']]
        >>> model.transform(["the dog", "a star"]).shape
        (2, 2)
    """

    components_: np.ndarray
    vocabulary_: list[str]
    lower_bound_: float

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: float | None = None,
        topic_word_prior: float = 0.1,
        tol: float = 5e-3,
        max_iter: int = 200,
        n_init: int = 1,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any = None) -> "TopicModel":
        """Learn the topics.

        Args:
            X: documents.
            y: ignored.

        Raises:
            ValueError: an argument out of range, negative counts, or no words.
        """
        self.__dict__.pop("vocabulary_", None)
        return self._learn(self._counts(X, reset=True), None)

    def partial_fit(self, X: Any, y: Any = None) -> "TopicModel":
        """Learn from further documents: the posterior given those so far is the prior of these.

        The first call is :meth:`fit`, whose vocabulary stays. New words are left out, with a warning that
        says how many there are.

        Args:
            X, y: as for :meth:`fit`.
        """
        if not hasattr(self, "components_"):
            return self.fit(X)
        documents = _words(X)
        places = set(getattr(self, "vocabulary_", ()))
        new = sorted({word for document in documents or () for word in document} - places)
        if new:
            warnings.warn(
                f"X: left out {len(new)} words that the vocabulary of fit lacks, such as {new[:NAMED]}",
                stacklevel=2,
            )
        return self._learn(self._counts(X, reset=False), self.components_)

    def transform(self, X: Any) -> np.ndarray:
        """Expected shares of the topics in each document, [n, K]."""
        shares = self._shares(self._known(X))
        found: np.ndarray = shares / shares.sum(1, keepdims=True)
        return found

    def perplexity(self, X: Any, given: Any = None) -> float:
        """Perplexity of the words of new documents, with topics at their posterior means.

        Args:
            X: documents; words that ``fit`` did not have are left out.
            given: other words of the same documents, by which their shares are found: the perplexity is then
                that of the predictive distribution (document completion). None: of a bound, for which shares
                are found by the words themselves.
        """
        counts, topics = self._known(X), self._means()
        if not counts.nnz:
            raise ValueError("X: expected a word that fit had, got none; give other documents")
        if given is None:
            total = bound_of(counts, topics, self._shares(counts), self.doc_topic_prior_)
        else:
            shares, table = self.transform(given), counts.tocoo()
            if len(shares) != counts.shape[0]:
                raise ValueError(f"given: expected the {counts.shape[0]} documents of X, got {len(shares)}")
            total = table.data @ np.log(np.einsum("nk,nk->n", shares[table.row], topics.T[table.col]))
        return float(np.exp(-total / counts.sum()))

    def score(self, X: Any, y: Any = None) -> float:
        """Bound on the log-probability of new documents, in nats; see :meth:`perplexity`."""
        counts = self._known(X)
        return bound_of(counts, self._means(), self._shares(counts), self.doc_topic_prior_)

    def top_words(self, n_words: int = 10) -> list[list[Any]]:
        """The most probable words of each topic, or numbers of columns if these have no names."""
        check_is_fitted(self)
        names = getattr(self, "vocabulary_", None)
        if names is None:
            names = list(getattr(self, "feature_names_in_", range(self.components_.shape[1])))
        order = np.argsort(-self.components_, axis=1, kind="stable")[:, :n_words]
        return [[names[column] for column in row] for row in order]

    def coherence(self, X: Any, n_words: int = 10) -> np.ndarray:
        """Mean normalised pointwise mutual information of each two of a topic's top words, [K].

        It is between -1 and 1 (Bouma, 2009); two words that no document has together count -1.

        Args:
            X: documents in which words may occur together.
            n_words: top words of a topic, at least 2.
        """
        counts = self._known(X)
        check_scalar(n_words, "n_words", Integral, min_val=2)
        order = np.argsort(-self.components_, axis=1, kind="stable")[:, :n_words]
        found = []
        for columns in order:
            there = np.asarray((counts[:, columns] > 0).todense(), dtype=float)
            both = there.T @ there / len(there)
            alone = np.diag(both)
            first, second = np.triu_indices(len(columns), 1)
            joint, product = both[first, second], alone[first] * alone[second]
            with np.errstate(divide="ignore", invalid="ignore"):
                value = np.log(joint / product) / -np.log(joint)
            found.append(np.where(joint >= 1, 1.0, np.where(joint > 0, value, -1.0)).mean())
        return np.array(found)

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`."""
        check_is_fitted(self)
        topics, words = self.components_.shape
        shares_prior, words_prior = self.doc_topic_prior_, float(self.topic_word_prior)

        def model(word: Tensor, times: Tensor, total: int) -> None:  # [B, W] each
            with pyro.plate("number", topics):
                kinds = pyro.sample("topics", dist.Dirichlet(torch.full((words,), words_prior)))
            with pyro.plate("documents", total, subsample=word):
                shares = pyro.sample("shares", dist.Dirichlet(torch.full((topics,), shares_prior)))
                of_topic = dist.Categorical(kinds).expand([len(word), topics])
                scale, occurs = times.T.clamp(min=1), times.T > 0
                mixed = dist.MixtureSameFamily(dist.Categorical(shares), of_topic)
                times_each, there = poutine.scale(scale=scale), poutine.mask(mask=occurs)
                with pyro.plate("words", word.shape[1], dim=-2), times_each, there:
                    pyro.sample("word", mixed, obs=word.T)

        return model

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the topics' posterior; shares are found for each batch."""
        guide = AutoConjugate(self.model_, local=["documents"], local_steps=PASSES)
        guide.setup(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), 1)
        guide.load_state_dict({"posteriors.topics.natural": torch.tensor(self.components_)}, strict=False)
        return guide

    def model_arguments(self, X: Any) -> tuple[Tensor, Tensor, int]:
        """Arguments of :attr:`model_`: the different words of documents, how often each occurs, and n."""
        counts = self._known(X)
        most = max(int(np.diff(counts.indptr).max()), 1)
        words, times = np.zeros((2, counts.shape[0], most))
        for row in range(counts.shape[0]):
            own = slice(*counts.indptr[row : row + 2])
            words[row, : own.stop - own.start] = counts.indices[own]
            times[row, : own.stop - own.start] = counts.data[own]
        return (
            torch.tensor(words, dtype=torch.int64),
            torch.tensor(times).to(torch.get_default_dtype()),
            len(words),
        )

    # ------------------------------------------------------------------ files

    def state(self) -> dict[str, Any]:
        """The posterior as tensors, numbers and lists: for files that hold no code."""
        check_is_fitted(self)
        names = "vocabulary_", "doc_topic_prior_", "lower_bound_", "n_iter_", "converged_", "n_features_in_"
        found = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return found | {"components_": torch.as_tensor(self.components_)}

    def restore(self, state: Mapping[str, Any]) -> "TopicModel":
        """Take over the :meth:`state` of an estimator that has the same arguments."""
        for name, value in state.items():
            setattr(self, name, value)
        self.components_ = state["components_"].numpy()
        return self

    # ------------------------------------------------------------------ learning

    def _learn(self, counts: csr_matrix, before: np.ndarray | None) -> "TopicModel":
        self._check_parameters()
        if not counts.nnz:
            raise ValueError("X: expected at least one word, got none; give other documents")
        prior = 1 / self.n_components if self.doc_topic_prior is None else float(self.doc_topic_prior)
        self.doc_topic_prior_ = prior
        start = float(self.topic_word_prior) if before is None else before
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        best = -np.inf
        for _ in range(self.n_init):
            order = rng.permutation(counts.shape[0])
            parts = [counts[rows] for rows in np.array_split(order, min(PARTS, len(order)))]
            *_, (topics, change, sweeps) = collapsed(
                parts, prior, np.asarray(start), self.n_components, rng, self.max_iter, self.tol
            )
            bound = self._bound(counts, topics, start)
            if bound > best:
                best, self.components_, self.n_iter_ = bound, topics, sweeps
                self.converged_ = bool(change < self.tol)
        self.lower_bound_ = best
        check_convergence(self.converged_, self.n_iter_, "sweeps", 4)
        return self

    def _bound(self, counts: csr_matrix, topics: np.ndarray, start: float | np.ndarray) -> float:
        """Bound of documents and topics; the topics' divergence is that from λ0."""
        logs, before = expected_log(topics), np.broadcast_to(start, topics.shape)
        divergence = ((topics - before) * logs).sum() - log_normalizer(topics).sum()
        divergence += log_normalizer(before).sum()
        factors = np.exp(logs)
        shares = shares_of(counts, factors, self.doc_topic_prior_, PASSES, self.tol)
        return bound_of(counts, factors, shares, self.doc_topic_prior_) - float(divergence)

    def _shares(self, counts: csr_matrix) -> np.ndarray:
        return shares_of(counts, self._means(), self.doc_topic_prior_, PASSES, 1e-6)

    def _means(self) -> np.ndarray:
        means: np.ndarray = self.components_ / self.components_.sum(1, keepdims=True)
        return means

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    # ------------------------------------------------------------------ documents

    def _known(self, X: Any) -> csr_matrix:
        check_is_fitted(self)
        return self._counts(X, reset=False)

    def _counts(self, X: Any, reset: bool) -> csr_matrix:
        """Counts [N, V] of documents."""
        documents = _words(X)
        if documents is not None:
            X = self._counted(documents, reset)
        counts = validate_data(self, X, reset=reset, dtype=np.float64, accept_sparse="csr")
        check_non_negative(counts, type(self).__name__)
        counts = csr_matrix(counts, copy=True)
        counts.sum_duplicates()
        counts.eliminate_zeros()
        return counts

    def _counted(self, documents: list[list[str]], reset: bool) -> csr_matrix:
        if reset:
            self.vocabulary_ = sorted({word for document in documents for word in document})
        if not hasattr(self, "vocabulary_"):
            raise ValueError("X: expected counts, as in fit, got words")
        places = {word: column for column, word in enumerate(self.vocabulary_)}
        kept = [[places[word] for word in document if word in places] for document in documents]
        columns = [column for document in kept for column in document]
        ends = np.cumsum([0, *map(len, kept)])
        return csr_matrix((np.ones(len(columns)), columns, ends), (len(kept), max(len(places), 1)))

    def _check_parameters(self) -> None:
        for name in ("n_components", "max_iter", "n_init"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        check_tolerance(self.tol)
        for name in ("doc_topic_prior", "topic_word_prior"):
            if getattr(self, name) is not None:
                check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")


def _words(X: ArrayLike) -> list[list[str]] | None:
    """The words of documents that are texts or lists of words; None: they are counts."""
    if not isinstance(X, list | tuple) or not len(X):
        return None
    if all(isinstance(document, str) for document in X):
        return [WORDS.findall(str(document).lower()) for document in X]
    lists = all(isinstance(document, list | tuple) for document in X)
    if lists and all(isinstance(word, str) for document in X for word in document):
        return [list(document) for document in X] if any(X) else None
    return None
