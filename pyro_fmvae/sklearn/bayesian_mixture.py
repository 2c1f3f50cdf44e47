"""A Bayesian mixture as a scikit-learn estimator."""

from copy import copy
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from tqdm import tqdm

from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.learn.cluster_tree import cluster_tree, cut
from pyro_fmvae.learn.coordinate_ascent import IncrementalAscent, Rows
from pyro_fmvae.learn.mixture import STARTED, mixture_of_rows
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.sklearn.mixture_density import PART, MixtureDensity
from pyro_fmvae.sklearn.standardisation import Standardisation, distinct
from pyro_fmvae.sklearn.table_estimator import check_convergence

WHOLE: Final = 20_000
"""Rows up to which a sweep is a single step on all of them, unless ``batch_size`` says otherwise."""


class BayesianMixture(MixtureDensity):
    """Bayesian mixture of Gaussian, count and categorical columns, fitted by variational inference.

    The model is that of :class:`sklearn.mixture.BayesianGaussianMixture`. The defaults of its prior follow
    the data, so that their units do not matter.
    Beyond it,

    * rows may have weights, and missing entries (NaN), which are marginalised;
    * large data are learnt in parts: each sweep over the rows makes one exact step per part, and each step
      raises the bound (:class:`~pyro_fmvae.learn.coordinate_ascent.IncrementalAscent`);
    * :meth:`score_samples` is the log posterior predictive density, a mixture of Student-t distributions, and
      ``lower_bound_`` the whole evidence lower bound, both in nats, with all constants;
    * the number of components can be chosen, by splits, merges and deletions;
    * clusters can be unions of components (``n_clusters``), so that a cluster need not be Gaussian;
    * :meth:`co_clustering` and :meth:`credible_interval` tell how sure the mixture is;
    * :meth:`transform` gives responsibilities to a next step, with ``set_output``.

    Args:
        n_components: K, or "auto": as many, up to 200, as a sample of up to 10,000 rows asks for, by
            splits, merges and deletions (:func:`~pyro_fmvae.learn.mixture.split_and_merge`).
        n_clusters: join components into so many clusters, if there are more components, or with "auto" into
            those that valleys of the density separate, deeper than half of the lower peak
            (:func:`~pyro_fmvae.learn.cluster_tree.cluster_tree`). The density stays as it is;
            :meth:`predict`, :meth:`predict_proba` and :meth:`co_clustering` are about clusters. None: about
            components.
        covariance_type: "full", or "diag" for independent columns within a component.
        tol: a sweep that gains less, in nats per row, is the last.
        max_iter: sweeps over all rows at most.
        n_init: clusterings of a sample of rows. With K given, more never end at a lower bound of the sample,
            which is all rows up to 10,000.
        batch_size: rows of a step; None: all up to 20,000 rows, else 5,000.
        weight_concentration_prior_type: "dirichlet_distribution", or "dirichlet_process" for stick-breaking
            weights, of which unneeded components keep next to nothing.
        weight_concentration_prior: of the symmetric Dirichlet, or of the process; None: 4, so that no
            component is left empty, or 1 / K of a process, 1 if K is "auto".
        mean_prior: prior mean of a component's mean, [D]; None: the data's mean.
        mean_precision_prior: rows that it counts for; None: at most 1, chosen by the bound.
        degrees_of_freedom_prior: rows that the prior covariance counts for, above D - 1 if full; None: D.
        covariance_prior: scatter of these rows, [D, D] or [D] if diagonal; None: the principal axes are those
            of the covariance of the data, plus a millionth of each column's variance, and the variances along
            them are chosen by the bound (:class:`~pyro_fmvae.models.learnt_prior.LearntPrior`).
        categorical_features: columns that hold categories 0, 1, 2, ..., by index or by name. Two categories
            make a Bernoulli column. A category above those of ``fit`` counts as missing.
        category_prior: concentration of the Dirichlet over the categories of a column.
        count_features: columns that hold counts 0, 1, 2, ..., by index or by name. A component's counts are
            Poisson.
        rate_prior: shape of the Gamma prior of a component's Poisson rates, whose mean is the data's.
        random_state: seed of the start and of :meth:`sample`.
        warm_start: begin where the last fit ended, with its prior.
        device: where to compute; "auto" is a GPU where there is one.
        verbose: 1 shows a progress bar.

    Attributes:
        n_components_: K.
        cluster_tree_: order in which the components join, [K - 1, 4], as
            :func:`scipy.cluster.hierarchy.dendrogram` draws it. This and the next three are there if
            ``n_clusters`` is given.
        component_clusters_: cluster of each component, int64 [K].
        cluster_labels_, component_labels_: most probable cluster and component of the rows of the last
            fit, int64 [n].
        weights_: posterior means of the weights, [K].
        means_: posterior means of the components' means, of the columns of numbers, [K, D].
        covariances_: inverses of the expected precisions, [K, D, D], or [K, D] if diagonal.
        rates_: posterior means of the components' Poisson rates, of the columns of counts, [K, D].
        probabilities_: probabilities of the categories, by column: a dictionary of arrays [K, L].
        weight_concentration_: of the posterior Dirichlet, [K]. Of stick-breaking weights, both shapes of the
            Beta posteriors of the K - 1 sticks, each [K - 1].
        mean_precision_: rows behind each mean, [K], or [K, D] if diagonal.
        degrees_of_freedom_: of the precisions' posterior, [K], or [K, D] if diagonal.
        lower_bound_: bound on the log-probability of all rows, in nats and in the data's units.
        lower_bounds_: the same after each sweep, one for each.
        n_iter_: sweeps.
        converged_: whether the last sweep gained less than ``tol``.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Bishop (2006), Pattern Recognition and Machine Learning, Section 10.2. Of missing entries: Ghahramani
        and Jordan (1994). Of stick-breaking weights: Blei and Jordan (2006). Of :meth:`partial_fit`:
        Broderick et al. (2013), Streaming variational Bayes.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import BayesianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0, 1, (50, 2)), rng.normal(8, 1, (50, 2))])
        >>> X[::10, 1] = np.nan
        >>> mixture = BayesianMixture(n_components=2, random_state=0).fit(X)
        >>> np.bincount(mixture.predict(X))
        array([50, 50])

        Columns of numbers, of counts, and of yes or no:

        >>> kinds = np.repeat([0, 1], 50)
        >>> yes = rng.random(100) < 0.9 * kinds
        >>> X = np.column_stack([rng.normal(kinds, 0.5), rng.poisson(2 + 8 * kinds), yes])
        >>> mixture = BayesianMixture(2, count_features=[1], categorical_features=[2], random_state=0).fit(X)
        >>> mixture.means_.shape, mixture.rates_.shape, mixture.probabilities_[2].shape
        ((2, 1), (2, 1), (2, 2))
    """

    lower_bound_: float
    lower_bounds_: np.ndarray
    _total_weight: float
    _so_far: tuple[np.ndarray, np.ndarray] | None
    """Rows of :meth:`partial_fit`, as long as they are few."""
    _begun_with: float
    """Total weight of the rows that the last start was found by."""

    # ------------------------------------------------------------------ learning

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> "BayesianMixture":
        """Fit the mixture.

        Args:
            X: rows [n, D], NaN where missing.
            y: ignored.
            sample_weight: rows that each one stands for, >= 0, [n].

        Raises:
            ValueError: fewer rows than components, or an argument out of range.
        """
        self._check_parameters()
        warm = self.warm_start and hasattr(self, "_mixture")
        X, weights = self._rows(X, sample_weight, reset=not warm)
        if not warm:
            self._check_enough(weights)
        self._so_far = None
        return self._learn(*distinct(X, weights, resolve_device(self.device)), warm)._label(X)

    def partial_fit(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> "BayesianMixture":
        """Learn from more rows: the posterior given the rows so far is the prior of these.

        Units, prior and start are those of :meth:`fit` to all rows so far, which is done anew whenever these
        have doubled, up to 10,000 rows. No row is forgotten, and none should be given twice. After
        :meth:`fit`, its posterior is the first prior.

        Args:
            X, y, sample_weight: as for :meth:`fit`.

        Raises:
            ValueError: see :meth:`fit`.
        """
        begins = not hasattr(self, "_mixture")
        self._check_parameters()
        given, each = self._rows(X, sample_weight, reset=begins)
        return self._learn_more(*distinct(given, each, resolve_device(self.device)), begins)._label(given)

    def _learn_more(self, X: np.ndarray, weights: np.ndarray, begins: bool) -> "BayesianMixture":
        """Go on with distinct rows."""
        device = resolve_device(self.device)
        if begins:
            self._so_far = X, weights
            return self._learn(X, weights, False)
        if self._so_far is not None:
            rows, each = (np.concatenate(both) for both in zip(self._so_far, (X, weights), strict=True))
            self._so_far = (rows, each) if len(rows) <= STARTED else None
            if self._so_far is not None and each.sum() >= 2 * self._begun_with:
                return self._learn(*distinct(rows, each, device), False)
        model = self._on_device()
        before = {name: model.natural(name).natural.clone() for name in model.natural_priors()}
        bound_before, self._total_weight = self.lower_bound_, self._total_weight + float(weights.sum())
        self._sweep(IncrementalAscent(model, self._parts(X, weights, model.device), before), X, weights)
        self.lower_bounds_ = bound_before + self.lower_bounds_
        self.lower_bound_ = float(self.lower_bounds_[-1])
        return self

    def fit_predict(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> np.ndarray:
        """Fit, and return the most probable component or cluster of each row, int64 [n]."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def _check_enough(self, weights: np.ndarray) -> None:
        total = max(weights.sum(), np.count_nonzero(weights))
        if self.n_components != "auto" and total < self.n_components:
            raise ValueError(
                f"n_components: expected no more than the rows, got {self.n_components} with n_samples = "
                f"{total:g}"
            )

    def _label(self, X: np.ndarray) -> "BayesianMixture":
        """Join components into clusters, if that is asked for, and assign rows [n, D] to both."""
        if self.n_clusters is None:
            return self
        self.cluster_tree_ = cluster_tree(self._mixture)
        number = None if self.n_clusters == "auto" else min(int(self.n_clusters), self.n_components_)
        self.component_clusters_ = cut(self.cluster_tree_, number)
        gamma = self._responsibilities(X)
        self.component_labels_, self.cluster_labels_ = gamma.argmax(1), self._of_clusters(gamma).argmax(1)
        return self

    def _of_rows(self, X: np.ndarray, rows: np.ndarray, columns: np.ndarray, seed: int) -> "BayesianMixture":
        """A copy that is fitted to some rows and columns, and knows the categories of all rows [n, D]."""
        copied = copy(self).set_params(random_state=seed)
        copied._so_far, copied.n_features_in_ = None, len(columns)
        if hasattr(self, "feature_names_in_"):
            copied.feature_names_in_ = self.feature_names_in_[columns]
        every = X[:, columns]
        return copied._learn(*distinct(every[rows], np.ones(len(rows))), False, every)

    def _learn(
        self, X: np.ndarray, weights: np.ndarray, warm: bool, every: np.ndarray | None = None
    ) -> "BayesianMixture":
        """Fit the mixture to distinct rows.

        Args:
            X, weights: of the rows.
            warm: go on from the last fit.
            every: rows whose categories there are; None: these.
        """
        self._begun_with = float(weights.sum())
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        with seeded(seed):
            if warm:
                model, stand_for = self._on_device(), self._total_weight
            else:
                model, stand_for = self._start(X, weights, seed, X if every is None else every)
            parts = self._parts(X, weights, model.device)
            self._total_weight = float(weights.sum())
            self._sweep(IncrementalAscent(model, parts, stand_for=stand_for), X, weights)
        return self

    def _start(
        self, X: np.ndarray, weights: np.ndarray, seed: int, every: np.ndarray
    ) -> tuple[ObservedMixture, float]:
        """The best clustering of a sample of rows, improved, and the number of its rows."""
        device, number = resolve_device(self.device), self.n_components
        categorical, counted = self._indices("categorical_features"), self._indices("count_features")
        if both := set(categorical) & set(counted):
            raise ValueError(f"count_features: expected no column of categorical_features, got {min(both)}")
        self._columns = Standardisation.of(X, weights, categorical, counted, device, every)
        self._rates = self._columns.rate_prior(self.rate_prior, float(weights.sum()))
        x = self._columns.standardised(X, device)
        self._prior = self._prior_given(x, weights)
        components = None if number == "auto" else int(number)
        make = partial(self._new, device=device)
        found = mixture_of_rows(make, x, seed, components, self.n_init, weights)
        return found.model, float(found.model.num_data)

    def _sweep(self, ascent: IncrementalAscent, X: np.ndarray, weights: np.ndarray) -> None:
        """Sweep over the rows until the bound hardly rises, and keep what was learnt."""
        bounds: list[float] = []
        self.converged_, small = False, False
        bar = tqdm(range(self.max_iter), desc="sweeps", disable=not self.verbose)
        for _ in bar:
            bounds.append(ascent.sweep(plain=small))
            bar.set_postfix_str(f"{bounds[-1] / ascent.total_weight:.4f} nats per row")
            small = len(bounds) > 1 and bounds[-1] - bounds[-2] < self.tol * ascent.total_weight
            self.converged_ = small and ascent.plain
            if self.converged_:
                break
        bar.close()
        check_convergence(self.converged_, len(bounds), "sweeps", 5)
        self.lower_bounds_ = np.array(bounds) - weights @ self._columns.log_scales(X)
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(bounds)
        self._keep(ascent.model)

    # ------------------------------------------------------------------ arguments

    def _parts(self, X: np.ndarray, weights: np.ndarray, device: torch.device) -> list[Rows]:
        size = self.batch_size or (len(X) if len(X) <= WHOLE else PART)
        x = self._columns.standardised(X, device)
        return Rows(x, torch.as_tensor(weights, device=device)).split(size)
