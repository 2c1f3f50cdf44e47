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


def subsamples(trace: Trace) -> Trace:
    """The index sites of a trace's plates alone: replayed, they give another run the same minibatch."""
    indices = Trace()
    for name, site in trace.nodes.items():
        if type(site.get("fn")).__name__ == "_Subsample":
            indices.add_node(name, **site)
    return indices
