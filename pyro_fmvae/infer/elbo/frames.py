"""Re-entering the plates of a recorded site."""

from typing import Any

from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger

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
