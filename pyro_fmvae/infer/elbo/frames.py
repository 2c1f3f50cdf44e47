"""Re-entering the plates of a recorded site."""

from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.structure import Site


class frames_of(Messenger):
    """Enter the plates that a recorded site was in, without issuing their index sites again.

    Sequential plates are re-entered too, at the iteration that the site was recorded in.

    Args:
        site: a sample site; the statement inside has to bring its full batch shape.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._frames = tuple(site["cond_indep_stack"])

    def _process_message(self, msg: Any) -> None:
        msg["cond_indep_stack"] = self._frames + msg["cond_indep_stack"]


def check_filled(msg: Any) -> None:
    """Refuse a plate whose minibatch has no points, by whose number Pyro would divide.

    Args:
        msg: of any sample site.

    Raises:
        ValueError: with the name of the plate.
    """
    fn, rows = msg["fn"], msg["value"]
    if type(fn).__name__ == "_Subsample" and fn.size and rows is not None and not len(rows):
        raise ValueError(
            f"plate '{msg['name']}': its minibatch is empty; give it at least one of {fn.size} points"
        )


def subsamples(trace: Trace) -> Trace:
    """The index sites of a trace's plates alone: replayed, they give another run the same minibatch."""
    indices = Trace()
    for name, site in trace.nodes.items():
        if type(site.get("fn")).__name__ == "_Subsample":
            indices.add_node(name, **site)
    return indices


def are_rows(rows: Any, size: int) -> bool:
    """True for distinct integers from 0 to ``size`` - 1."""
    if not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype not in (torch.int64, torch.int32):
        return False
    if is_recorded() or not len(rows):
        return True
    ordered = rows.sort().values
    return bool(ordered[0] >= 0 and ordered[-1] < size and (ordered.diff() > 0).all())


def check_same_points(site: str, plate: str, rows: Any, whole: dict[str, Tensor]) -> None:
    """Refuse all points of a plate in another order, where each has a posterior of its own.

    Args:
        site: that has these posteriors.
        plate: with as many points as ``rows``.
        rows: what the plate has as its subsample: numbers of rows, or data.
        whole: the data that a plate had first, by plate; filled in.

    Raises:
        ValueError: with the names of site and plate.
    """
    if not isinstance(rows, Tensor) or is_recorded():
        return
    if are_rows(rows, len(rows)):
        moved = bool((rows.diff() < 0).any())
    else:
        first = whole.setdefault(plate, rows)
        moved = first is not rows and first.shape == rows.shape and not torch.equal(first, rows)
        moved = moved and torch.equal(first.flatten().sort().values, rows.flatten().sort().values)
    if moved:
        raise ValueError(
            f"site '{site}': plate '{plate}' has its {len(rows)} rows in another order, but each has a "
            "posterior of its own; give the rows in order, or have these posteriors found anew for each "
            f"batch by AutoConjugate(model, local=['{plate}'])"
        )
