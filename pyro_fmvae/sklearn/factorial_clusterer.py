"""The factorial mixture VAE as a scikit-learn estimator."""

from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_consistent_length, validate_data
from tqdm import tqdm

from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.registry import configure
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split
from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.sklearn.factorial_codes import FactorialCodes
from pyro_fmvae.sklearn.label_columns import LabelColumns

IN_MEMORY: Final = "array in memory"
"""Name of the data of an estimator."""
PRETRAINED, PRIOR = 0.3, 0.05
"""Shares of ``max_iter`` for the networks alone and for the prior alone."""
WORTH_CAPTURING: Final = 500
"""Iterations of a training from which on recording its steps pays."""


class FactorialClusterer(FactorialCodes):
    """Clusters of several properties at once, some of them labelled: the factorial mixture VAE.

    A row is explained by several factors. Each has a mixture of Gaussians over its own block of a latent
    vector, and the chosen components are the row's code. A column of ``y`` gives the components of one factor
    their meaning; a few known entries may do. The other factors are clustered without labels.

    Training is that of the command ``train --model fmvae``, on all rows and in memory: networks alone, prior
    alone, then everything. Nothing is written to disk.

    Args:
        factors: components of each factor without labels. Labelled factors come before them.
        factor_dim: latent dimensions of each factor; None: 8, or the number of columns if there are fewer.
        hidden: units of the hidden layers of encoder and decoder; None: one layer of 200, or of 50 for fewer
            than 1,000 rows.
        likelihood: "gaussian", or "bernoulli" for columns of 0 and 1.
        max_iter: minibatches in all.
        max_minutes: train for so many minutes instead.
        batch_size: rows of a minibatch.
        learning_rate: Adam's.
        output: result of :meth:`transform` and input of :meth:`inverse_transform`: "means" of the latent
            vector, or "codes", an integer for each factor.
        num_draws: draws of the latent vector by which :meth:`score_samples` integrates over it.
        random_state: seed of everything random.
        device: where to compute; "auto" is a GPU where there is one.
        verbose: 1 shows a progress bar.

    Attributes:
        latent_dim_: J, dimensions of the latent vector.
        factor_names_: names of the factors, in the order of codes.
        n_components_: components of each factor.
        classes_: for each column of ``y``, its values; empty without labels.
        n_iter_: minibatches that were taken.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Paquet, Ghaisas and Tieleman (2018), A factorial mixture prior for compositional deep generative
        models.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import FactorialClusterer
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(2, size=200)
        >>> X = 4 * y[:, None] + rng.normal(size=(200, 3))
        >>> known = np.where(rng.random(200) < 0.2, y, -1)
        >>> clusterer = FactorialClusterer(factors=(2,), max_iter=150, random_state=0).fit(X, known)
        >>> bool((clusterer.predict(X) == y).mean() > 0.9)
        True
    """

    def __init__(
        self,
        factors: tuple[int, ...] = (8,),
        *,
        factor_dim: int | None = None,
        hidden: tuple[int, ...] | None = None,
        likelihood: str = "gaussian",
        max_iter: int = 3000,
        max_minutes: float | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        output: str = "means",
        num_draws: int = 16,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.factors = factors
        self.factor_dim = factor_dim
        self.hidden = hidden
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.max_minutes = max_minutes
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.output = output
        self.num_draws = num_draws
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # ------------------------------------------------------------------ learning

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> "FactorialClusterer":
        """Train on all rows.

        Args:
            X: finite numbers [n, D].
            y: values of one label [n] or of several [n, L], integers or words; -1, None or NaN where one is
                unknown. None in place of all: no factor is labelled.

        Raises:
            ValueError: an argument out of range, or a column of ``y`` without a known value.
        """
        self._check_parameters()
        given: np.ndarray = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._labels = LabelColumns.of(y)
        self.classes_ = list(self._labels.classes)
        codes = None
        if y is not None:
            check_consistent_length(given, y)
            codes = torch.from_numpy(self._labels.encoded(y))
        seed, device = check_random_state(self.random_state).randint(2**31 - 1), resolve_device(self.device)
        preprocessing = Preprocessing(Kind.BINARY, given.shape[1:])
        if self.likelihood == "gaussian":
            preprocessing = Preprocessing.standardizing(given, source="X")
        rows = Split(preprocessing(given, "X"), codes)
        none = rows.select(torch.arange(0))
        dataset = Dataset.of_splits(
            rows,
            none,
            none,
            name=IN_MEMORY,
            preprocessing=preprocessing,
            label_names=self._labels.names,
            label_sizes=tuple(map(len, self.classes_)),
        )
        run = Run.new(Path(IN_MEMORY), configure(FMVAE.name, IN_MEMORY, **self._options(seed)), dataset)
        self._train(run, dataset, device, seed)
        return self

    def _train(self, run: Run, dataset: Dataset, device: torch.device, seed: int) -> None:
        with seeded(seed):
            trainer = Trainer(run, dataset, device)
            with tqdm(total=100, desc="training", unit="%", disable=not self.verbose) as bar:
                done = 0.0
                for record in trainer.records():
                    self.n_iter_ = record.total_steps
                    share = trainer.progress.phase + record.fraction
                    now = 100 * share / len(trainer.phases)
                    bar.update(max(round(now - done), 0))
                    done = max(done, now)
        self._recipe: Recipe[Any] = run.recipe
        self._model = trainer.model.cpu().eval().double()
        self.latent_dim_ = self._model.latent_dim
        self.n_components_, self.factor_names_ = tuple(run.recipe.factors), tuple(run.recipe.factor_names)

    def _options(self, seed: int) -> dict[str, Any]:
        """Options of the training, as the command line has them."""
        sizes = tuple(len(values) for values in self.classes_)
        options: dict[str, Any] = {
            "labels": 1.0 if sizes else 0.0,
            "factors": (*sizes, *self.factors),
            "factor_dim": self.factor_dim,
            "hidden": self.hidden,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "seed": seed,
            "max_minutes": self.max_minutes,
            "patience": 0,
        }
        if self.max_minutes is not None:
            return options
        pretrained, prior = round(PRETRAINED * self.max_iter), round(PRIOR * self.max_iter)
        return options | {
            "pretrain_iterations": pretrained,
            "prior_iterations": prior,
            "joint_iterations": self.max_iter - pretrained - prior,
            "refine_iterations": 0,
            "eager": self.max_iter < WORTH_CAPTURING,
        }

    def _check_parameters(self) -> None:
        for name, choices in {"likelihood": ("gaussian", "bernoulli"), "output": ("means", "codes")}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: expected {' or '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("max_iter", "batch_size", "num_draws"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        for name in ("learning_rate", *(["max_minutes"] if self.max_minutes is not None else [])):
            check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")
