"""Re-entering the plates of a recorded site."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyro.poutine.indep_messenger import IndepMessenger

from pyro_fmvae.infer.structure import Site


@contextmanager
def frames_of(site: Site) -> Iterator[None]:
    """Enter the plates that a recorded site was in, without issuing their index sites a second time in one trace.

    Args:
        site: a sample site; the statement inside has to bring its full batch shape.
    """
    with ExitStack() as stack:
        for frame in site["cond_indep_stack"]:
            stack.enter_context(IndepMessenger(frame.name, frame.size, dim=frame.dim))
        yield
