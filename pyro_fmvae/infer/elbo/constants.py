"""Constants among the parents of a program: what ``poutine.do``, a ``pyro.param`` or a plain tensor sets.

A parent that no site returned, but that has numbers, is a point mass. Each gets a node in the model's trace
under the name of the child and the argument, so that it is looked up like any other parent.
"""

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import Assignment, MixtureComponent
from pyro_fmvae.infer.elbo.placeholder import Unsampled
from pyro_fmvae.infer.elbo.structure import Site


def add_constants(model: Trace, sites: dict[str, Site], owners: dict[int, str]) -> None:
    """Give the constant parents of assignments and of components nodes in the model's trace.

    Args:
        model: the trace of the model.
        sites: its sample sites.
        owners: name of the site of a value, by the identity of the value; the constants' are added.
    """
    for name, site in sites.items():
        fn = site["fn"]
        dims = {"weights": 1} if isinstance(fn, Assignment) else {}
        if isinstance(fn, MixtureComponent):
            dims = {fn.parents[0]: fn.parameter_dim}
            if _is_constant(fn.assignment, owners):
                _add_assignment(model, f"{name}.assignment", site, owners)
        for argument, event_dim in dims.items():
            value = getattr(fn, argument)
            if _is_constant(value, owners):
                owners[id(value)] = _add(model, f"{name}.{argument}", value, event_dim)


def _is_constant(value: Tensor, owners: dict[int, str]) -> bool:
    return id(value) not in owners and not isinstance(value, Unsampled)


def _add(model: Trace, name: str, value: Tensor, event_dim: int) -> str:
    fn, plain = dist.Delta(value, event_dim=event_dim), {"scale": 1.0, "mask": None, "cond_indep_stack": ()}
    model.add_node(name, name=name, type="constant", fn=fn, value=value, is_observed=True, infer={}, **plain)
    return name


def _add_assignment(model: Trace, name: str, site: Site, owners: dict[int, str]) -> None:
    """An assignment to the components that are given, with a probability of 1 for each."""
    component = site["fn"]
    if component.assignment.is_floating_point():
        raise ValueError(f"site '{site['name']}': expected integers as its assignment, got floating point")
    parameter = getattr(component, component.parents[0])
    weights = torch.ones(parameter.shape[-1 - component.parameter_dim], device=parameter.device)
    owners[id(weights)] = _add(model, f"{name}.weights", weights, 1)
    fn, value = Assignment(weights).expand(component.batch_shape), component.assignment
    owners[id(value)] = name
    like = {key: site[key] for key in ("scale", "mask", "cond_indep_stack")}
    model.add_node(name, name=name, type="constant", fn=fn, value=value, is_observed=False, infer={}, **like)
