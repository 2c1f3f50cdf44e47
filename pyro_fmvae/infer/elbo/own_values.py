"""Observed values that tell which site they belong to."""

from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.infer.elbo.frames import check_filled


class OwnValues(Messenger):
    """Gives a tensor that is observed at several sites to each but the first as a view of its own.

    ``pyro.sample`` returns it, so that a parent tells which of the sites it is the value of.
    """

    def __init__(self) -> None:
        super().__init__()
        self._observed: dict[int, Tensor] = {}  # by identity; they are kept, so that none comes again

    def _pyro_sample(self, msg: Any) -> None:
        check_filled(msg)
        value = msg["value"]
        if not (msg["is_observed"] and isinstance(value, Tensor)) or msg["infer"].get("_deterministic"):
            return
        if id(value) in self._observed:
            msg["value"] = value.view_as(value)
        self._observed[id(value)] = value
