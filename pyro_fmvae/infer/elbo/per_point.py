"""The losses of single data points, of any program that ``TraceConjugate_ELBO`` takes.

The terms of sites in the plate of the data are linear in the scale of these sites. The gradient of the loss
with respect to a factor on that scale, one number per point, is therefore the loss of each point, however the
terms are computed. Nothing else is differentiated: the program itself runs without gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.indep_messenger import CondIndepStackFrame
from torch import Tensor

from pyro_fmvae.infer.elbo.kind import check_options
from pyro_fmvae.infer.elbo.placeholder import Unsampled
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.structure import Site, sample_sites
from pyro_fmvae.infer.elbo.terms import Role, sum_terms
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import TraceConjugate_ELBO


def loss_per_point(
    elbo: TraceConjugate_ELBO, model: Any, guide: Any, *args: Any, plate: str = "data", **kwargs: Any
) -> dict[Role, Tensor]:
    """The summands of the loss by their part of equation 4, for each data point.

    Over the B points of a batch that stands for N they add up to B / N of ``elbo.loss_per_role``, without the
    terms of sites outside of the plate.

    Args:
        elbo: says how many draws are averaged over.
        model, guide: the program; further arguments are passed on to both.
        plate: name of the plate over data points.

    Returns:
        Every :class:`Role` → nats per point, [B] in the order of the plate; 0 if there is no such loss.

    Raises:
        ValueError: a program that is not of a recognised shape, or one without a site in such a plate, or
            whose points are summed out together; or weights of the loss for a plain program.
    """
    with torch.no_grad():
        traces = elbo.traces(model, guide, *args, **kwargs)
    if any(isinstance(program, PlainProgram) for program, _ in traces):
        check_options(elbo, {"kl_weight": 1.0, "label_weight": 0.0})
    with torch.enable_grad():
        weight, frame = _weight(traces[0][0].model, plate)
        for program, guide_trace in traces:
            if isinstance(program, PlainProgram):
                program.points[plate] = weight
            for trace in (program.model, guide_trace):
                _weigh(trace, weight, plate)
        terms = elbo.average([elbo.terms_of(*pair) for pair in traces])
        losses = {role: sum_terms([term for term in terms if term.role is role]) for role in Role}
    share = frame.size / (frame.full_size or frame.size)
    return {role: share * _gradient(loss, weight) for role, loss in losses.items()}


def _weight(trace: Trace, plate: str) -> tuple[Tensor, CondIndepStackFrame]:
    """A weight of 1 for every point, to be differentiated, and the plate that the points are in."""
    sites = [(site, frame) for site in sample_sites(trace).values() if (frame := _frame(site, plate))]
    if not sites:
        raise ValueError(f"plate: expected the name of one that holds a sample site, got '{plate}'")
    device = next(
        (site["value"].device for site, _ in sites if not isinstance(site["value"], Unsampled)), None
    )
    frame = sites[0][1]
    return torch.ones(frame.size, device=device, requires_grad=True), frame


def _weigh(trace: Trace, weight: Tensor, plate: str) -> None:
    """Multiply weights into the scale of all sites in the plate."""
    for site in sample_sites(trace).values():
        frame = _frame(site, plate)
        if frame is None:
            continue
        site["unweighted"] = site["scale"]
        if frame.dim is None:  # a sequential plate: the site belongs to one point
            site["scale"] = site["scale"] * weight[frame.counter - 1]
        else:
            site["scale"] = site["scale"] * weight[(..., *(None,) * (-frame.dim - 1))]


def _frame(site: Site, plate: str) -> CondIndepStackFrame | None:
    frames: Sequence[CondIndepStackFrame] = site["cond_indep_stack"]
    return next((frame for frame in frames if frame.name == plate), None)


def _gradient(loss: Tensor, weight: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(weight)
    (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True, allow_unused=True)
    return torch.zeros_like(weight) if gradient is None else gradient
