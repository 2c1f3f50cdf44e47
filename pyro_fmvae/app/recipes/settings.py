"""Budgets of phases and splits that options come to, and checks of options."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import yaml

from pyro_fmvae.data import CountOptions
from pyro_fmvae.data.labels import check_amount
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.data.splitting import Splitting
from pyro_fmvae.files.untrusted import check_type, check_yaml, read_text
from pyro_fmvae.learn.options import (
    PATIENCE,
    PHASES,
    CountableOptions,
    EstimatorOptions,
    FMVAEOptions,
    TrainConfig,
    unset,
)
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.models import Hyperprior

OWN_MINUTES: Final = 5.0
"""Time limit of a training on a person's own data, where no length is given."""
HELD_OUT: Final = {"sprites": 0.2}
"""Share of the combinations of labels that is held out by default, by the name of the data."""


def checked(kind: type[TrainConfig], values: Mapping[str, Any]) -> TrainConfig:
    """Options by name.

    Raises:
        ValueError: a value of another type, or one out of range.
    """
    for one in fields(kind):
        if one.name in values:
            check_type(one.name, values[one.name], one.type)
    config = kind(**{one.name: unset(one) for one in fields(kind)} | dict(values))
    splitting_of(config)
    if isinstance(config, FMVAEOptions):
        hyperprior_of(config)
    if (amount := getattr(config, "labels", None)) is not None:
        check_amount("labels", amount)
    return config


def is_own(config: TrainConfig) -> bool:
    """True if the data are a person's own: a path, not the name of a published or generated set."""
    return config.data not in LOADERS


def splitting_of(config: TrainConfig) -> Splitting:
    """How the rows of a person's own data are split."""
    valid = 0.0 if isinstance(config, EstimatorOptions) else config.valid  # estimators validate nothing
    return Splitting(valid, config.test, config.fold)


def hyperprior_of(config: FMVAEOptions) -> Hyperprior:
    """Hyperparameters c0, m0, s0, a0 and b0 of the prior."""
    return Hyperprior(config.c0, config.m0, config.s0 or Hyperprior.s0, config.a0, config.b0)


def table_options(config: TrainConfig) -> TableOptions:
    """Statements of the options about the columns of a table."""
    kinds = tuple((column, kind) for column, _, kind in (one.rpartition("=") for one in config.kind or ()))
    header = None if config.header is None else config.header == "yes"
    return TableOptions(kinds, config.label or (), header, getattr(config, "ignore", None) or ())


def with_columns(config: TrainConfig, kinds: Mapping[str, str]) -> TrainConfig:
    """Options that give the kinds of columns themselves, not the name of a file of them.

    Args:
        config: as given.
        kinds: of columns, which the options overrule.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or it is no YAML of names and kinds.
    """
    found = dict(kinds)
    if config.columns is not None:
        path = Path(config.columns)
        try:
            text = read_text(path)
            check_yaml(text)
            read = yaml.safe_load(text)
            check_type("columns", read, dict[str, str])
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"columns: expected lines of NAME: KIND in {path}: {error}") from None
        found |= read
    found |= dict(one.rpartition("=")[::2] for one in config.kind or ())
    return replace(config, kind=tuple("=".join(one) for one in found.items()) or None, columns=None)


def counts_of(config: TrainConfig) -> CountOptions | None:
    """How to read counts; None unless their likelihood is asked for."""
    if not isinstance(config, CountableOptions) or config.likelihood is None:
        return None
    return CountOptions(config.batch_column, config.layer)


def patience_of(config: TrainConfig) -> int:
    """``patience``, or its default for the data; 0: phases are never ended early."""
    if config.patience is None:
        return PATIENCE if is_own(config) else 0
    return config.patience


def budgets_of(config: TrainConfig) -> dict[str, Budget]:
    """Budget of each phase that the model has, for resolved options."""
    given = {phase: number or 0 for phase, number in config.iterations.items()}
    if config.max_minutes is not None:
        shares = {phase: PHASES[phase] if number else 0.0 for phase, number in given.items()}
        minutes = _shared_out(config.max_minutes, shares)
        return {phase: Budget(minutes=part) for phase, part in minutes.items()}
    if not config.time_limit:
        return {phase: Budget(iterations=number) for phase, number in given.items()}
    minutes = _shared_out(config.time_limit, given)
    return {phase: Budget(number, minutes[phase]) for phase, number in given.items()}


def _shared_out(minutes: float, shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values()) or 1.0
    return {name: minutes * share / total for name, share in shares.items()}


def shared_defaults(config: TrainConfig) -> dict[str, Any]:
    """Defaults of options that data may choose, where a model has no others."""
    lengths = (config.max_minutes, *config.iterations.values())
    own = is_own(config) and all(length is None for length in lengths)
    usual = {one.name: one.default for one in fields(config) if one.metadata["by_data"]}
    return {name: value for name, value in usual.items() if value is not None} | {
        "hold_out": HELD_OUT.get(config.data, 0.0),
        "time_limit": OWN_MINUTES if own else None,
    }
