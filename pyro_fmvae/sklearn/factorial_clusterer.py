"""The factorial mixture VAE as a scikit-learn estimator."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor
from tqdm import tqdm

from pyro_fmvae.data import Batches, Dataset, Kind, Preprocessing, Split
from pyro_fmvae.data.learnable import check_learnable
from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation
from pyro_fmvae.distributions.observation import COLUMN_SCALES
from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.learn import Budget, FMVAEOptions, Progress, fit
from pyro_fmvae.learn.fitting import LONG, Stepping, compile_problem, naming_divergence
from pyro_fmvae.learn.fmvae_phases import fmvae_phases
from pyro_fmvae.learn.label_spreading import CLASSIFICATION
from pyro_fmvae.learn.options import weight_decay
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.nn import MLPDecoder, MLPEncoder
from pyro_fmvae.nn.mlp import hidden_sizes
from pyro_fmvae.sklearn.factorial_codes import FactorialCodes
from pyro_fmvae.sklearn.label_columns import LabelColumns

SHARES: Final = {"pretrain": 0.3, "prior": 0.05, "joint": 0.65}
"""Shares of ``max_iter``, or of ``max_minutes``, for networks alone, for the prior alone, and for both."""
BLOCK: Final = 8
"""Latent dimensions of a factor, if there are as many columns."""
WORTH_CAPTURING: Final = 500
"""Iterations of a training from which on recording its steps pays."""


class FactorialClusterer(FactorialCodes):
    """Clusters of several properties at once, some of them labelled: the factorial mixture VAE.

    A row is explained by several factors. Each has a mixture of Gaussians over its own block of a latent
    vector, and the chosen components are the row's code. A column of ``y`` gives the components of one factor
    their meaning; a few known entries may do. The other factors are clustered without labels.

    Training takes all rows, in memory, and has three phases: networks alone, prior alone, then everything.

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
        if y is None and not self.factors:
            raise ValueError("factors: expected a size without labels, such as (8,), got ()")
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
            name="array",
            preprocessing=preprocessing,
            label_names=self._labels.names,
            label_sizes=tuple(map(len, self.classes_)),
        )
        check_learnable(dataset, self._labels.names)
        self._preprocessing = preprocessing
        with seeded(seed):
            model = self._untrained(dataset).to(device)
            batches = Batches(
                rows, self.batch_size, seed=seed, device=device, full=self.max_minutes is not None
            )
            self._train(model, batches, codes, seed)
        self._model = model.cpu().eval().double()
        self.latent_dim_, self.n_components_ = model.latent_dim, model.num_components
        free = range(len(model.labelled), len(model.num_components))
        self.factor_names_ = (*self._labels.names, *(f"factor {factor}" for factor in free))
        return self

    def _untrained(self, dataset: Dataset) -> FactorialMixtureVAE:
        """The model, whose leading factors have a component for each value of a label."""
        (columns,), number = dataset.event_shape, len(dataset.train)
        dim = min(BLOCK, columns) if self.factor_dim is None else self.factor_dim
        hidden = hidden_sizes(number) if self.hidden is None else self.hidden
        sizes = (*dataset.label_sizes, *self.factors)
        binary = dataset.preprocessing.binary
        observation = BernoulliObservation(1) if binary else GaussianObservation(1, *COLUMN_SCALES)
        return FactorialMixtureVAE(
            MLPEncoder((columns,), len(sizes) * dim, hidden),
            MLPDecoder(len(sizes) * dim, (columns,), observation.outputs, hidden[::-1]),
            observation,
            sizes,
            dim,
            number,
            range(len(dataset.label_sizes)),
        )

    def _train(
        self, model: FactorialMixtureVAE, batches: Iterable[Any], labels: Tensor | None, seed: int
    ) -> None:
        device, timed = model.gate.device, self.max_minutes is not None
        share_known = 0.0 if labels is None else (labels >= 0).double().mean().item()
        eager = not timed and self.max_iter < WORTH_CAPTURING
        budgets = self._budgets()

        def compiled() -> bool:
            return device.type == "cpu" and not compile_problem(device)

        options = FMVAEOptions(
            learning_rate=self.learning_rate,
            weight_decay=weight_decay(model.num_data),
            label_weight=CLASSIFICATION / share_known if share_known else 0.0,
            independent_start=not budgets["pretrain"].empty
            and 2 <= len(model.num_components) > len(model.labelled),
            eager=eager,
            compile=not timed and self.max_iter >= LONG and compiled(),
        )
        phases, progress = fmvae_phases(model, options, budgets, seed), Progress()
        advice = f"Fit with a lower learning_rate, such as {self.learning_rate / 4:g}"
        records = fit(phases, batches, progress, stepping=Stepping(compiled) if timed else None)
        with (
            naming_divergence(phases, progress, advice),
            tqdm(total=100, desc="training", unit="%", disable=not self.verbose) as bar,
        ):
            for record in records:
                now = 100 * (progress.phase + record.fraction) / len(phases)
                bar.update(max(round(now) - bar.n, 0))
        self.n_iter_ = progress.total_steps

    def _budgets(self) -> dict[str, Budget]:
        """Length of each phase; nothing is left to refine."""
        if self.max_minutes is not None:
            minutes = {name: Budget(minutes=share * self.max_minutes) for name, share in SHARES.items()}
            return {**minutes, "refine": Budget(minutes=0.0)}
        alone = {name: round(SHARES[name] * self.max_iter) for name in ("pretrain", "prior")}
        iterations = {**alone, "joint": self.max_iter - sum(alone.values()), "refine": 0}
        return {name: Budget(number) for name, number in iterations.items()}

    def _check_parameters(self) -> None:
        for name, choices in {"likelihood": ("gaussian", "bernoulli"), "output": ("means", "codes")}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: expected {' or '.join(choices)}, got {getattr(self, name)!r}")
        sizes = {"factors": self.factors, "hidden": () if self.hidden is None else self.hidden}
        counts = [(name, size) for name, of in sizes.items() for size in of]
        counts += [(name, getattr(self, name)) for name in ("max_iter", "batch_size", "num_draws")]
        counts += [] if self.factor_dim is None else [("factor_dim", self.factor_dim)]
        for name, count in counts:
            check_scalar(count, name, Integral, min_val=1)
        for name in ("learning_rate", *(["max_minutes"] if self.max_minutes is not None else [])):
            check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")
