"""Checks of observed values, with both shapes in the message."""

from textwrap import shorten
from typing import Any

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.lazy import is_lazy


def check_is_tensor(site: dict[str, Any]) -> None:
    """Refuse an observed value that is no tensor.

    Raises:
        ValueError: it is a list or an array, say.
    """
    if not isinstance(site["value"], Tensor):
        kind = type(site["value"]).__name__
        raise ValueError(
            f"site '{site['name']}': expected a tensor as its value, got {kind}; "
            "convert it by torch.as_tensor"
        )


def check_observed(site: dict[str, Any]) -> None:
    """Refuse an observed value that does not fit the distribution at its site.

    Raises:
        ValueError: it is no tensor, or its shape does not broadcast to that of the distribution, or (at a
            site with recognised parents) its events have another shape. The message has both shapes.
    """
    name, fn, value = site["name"], site["fn"], site["value"]
    check_is_tensor(site)
    events = len(fn.event_shape)
    same_events = value.shape[value.dim() - events :] == fn.event_shape if value.dim() >= events else False
    try:
        fits = broadcast_shape(value.shape, fn.shape()) == fn.shape()
    except ValueError:
        fits = False
    if fits and (same_events or not hasattr(fn, "parents")):
        return
    plates = ", ".join(f"'{f.name}' of size {f.size}" for f in site["cond_indep_stack"] if f.dim is not None)
    where = f"in plate {plates}" if plates else "in no plate"
    shared = len(fn.batch_shape) and value.dim() > 1 and value.shape[:1] == fn.batch_shape[-1:]
    if is_lazy(value) and value.dim() > len(fn.shape()):  # obs=x - locs[z], over all values of z
        advice = (
            "observe data alone, and give the distribution what a discrete site picks, as in "
            "dist.Normal(locs[z], scale)"
        )
    elif shared and not events and not hasattr(fn, "parents"):
        advice = (
            f"data points of shape {tuple(value.shape[1:])} are events: give the parameters these "
            "dimensions, and write .to_event(1) at their site and at this one"
        )
    elif same_events:
        advice = "for a batch write pyro.plate(name, N, subsample=batch), for all data a plate of their size"
    elif value.shape == fn.shape()[:-1] and fn.event_shape == (1,):
        advice = "single numbers become events by value.unsqueeze(-1)"
    else:
        advice = f"give events of shape {tuple(fn.event_shape)}, or parameters of another size"
    raise ValueError(
        f"site '{name}': its value is of shape {tuple(value.shape)}, but {type(fn).__name__} {where} has the "
        f"batch shape {tuple(fn.batch_shape)} and the event shape {tuple(fn.event_shape)}: {advice}"
    )


def check_support(site: dict[str, Any]) -> None:
    """Refuse observed numbers outside of a plain distribution's support, while validation is on.

    What is masked may be anything.

    Raises:
        ValueError: with the name of the site, and the support.
    """
    name, fn, value = site["name"], site["fn"], site["value"]
    if not fn._validate_args or hasattr(fn, "parents") or not value.numel() or is_lazy(value):
        return
    inside = fn.support.check(value)
    if not value.sum().isfinite():  # one of them is not, or they are huge
        finite = value.isfinite()
        for _ in range(fn.event_dim):
            finite = finite.all(-1)
        inside = inside & finite
    if site["mask"] is not None:
        inside = inside | ~torch.as_tensor(site["mask"], device=value.device)
    if not is_lazy(inside) and not inside.all():
        raise ValueError(
            f"site '{name}': {int((~inside).sum())} of its {inside.numel()} observed values are not finite "
            f"or outside of the support of {type(unwrap(fn)).__name__}, "
            f"{shorten(str(fn.support), 100, placeholder=' …')}"
        )
