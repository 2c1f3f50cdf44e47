"""A penalty on the dependence of blocks of z on assignments of other factors.

In the prior, factors are independent. In the aggregate posterior they need not be: a decoder can use a block
that repeats the content of another. Labels give a factor's meaning a block of its own; this penalty keeps it
out of the others.
"""

from collections.abc import Sequence

import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.infer.elbo.mixture_terms import MixtureTables
from pyro_fmvae.infer.elbo.terms import Role, Term
from pyro_fmvae.ranks import whole_batch


def dependence_terms(tables: Sequence[MixtureTables], guide: Trace, weight: float | Tensor) -> list[Term]:
    """One term for each mixture with observed labels: ``weight`` · N · Σ_ij η²_ij over blocks i ≠ j.

    η²_ij is :func:`explained` by assignment j of the mixture in block i of any mixture, averaged over the
    dimensions of the block, under responsibilities that are clamped by labels and held constant. For a block
    with labels of its own, means are replaced by what they are :func:`within` its components. N is the number
    of data points that the batch stands for. Where ranks share a batch, all rows count.

    Args:
        tables: of all mixtures, assignments [..., B].
        guide: trace of the guide, with q(z) [..., B] of events [D].
        weight: nats per data point for a block that an assignment determines entirely.
    """
    clamped = {id(table): _clamped(table) for table in tables if table.labels}
    blocks = [
        (table, *_block(guide.nodes[child.name]["fn"], clamped.get(id(table))))
        for table in tables
        for child, site, _ in table.children
        if not site["is_observed"]
    ]
    terms = []
    for table in tables:
        if not table.labels:
            continue
        gamma, counts = (_stacked(part, last) for part, last in zip(clamped[id(table)], (2, 1), strict=True))
        total = gamma.new_zeros(())
        for owner, mean, variance, assignments in blocks:
            share = explained(gamma, counts, mean, variance)
            if owner is table:
                foreign = assignments != torch.arange(len(gamma), device=gamma.device).unsqueeze(-1)
                share = share * foreign
            total = total + (counts.sum(-1) * share.sum(-1)).sum()
        terms.append(Term(f"{table.site['name']}/dependence", Role.DEPENDENCE, weight * total))
    return terms


def _clamped(table: MixtureTables) -> tuple[Tensor, Tensor]:
    """Responsibilities of all rows, clamped by labels and constant, [..., B, K], and counts, [..., B]."""
    site = table.site
    gamma = table.responsibilities()[0].detach()
    counts = scale_and_mask(torch.ones_like(gamma[..., 0]), site["scale"], site["mask"])
    return whole_batch(gamma, -2), whole_batch(counts, -1, counts=True)


def _block(q: Distribution, own: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance of q(z_i) of all rows, [I, B, D], and the numbers of the blocks' assignments, [I].

    With responsibilities and counts of labelled assignments, means are those within components. Several
    blocks may have one assignment: the views of a point.
    """
    mean, variance = (whole_batch(moment, -2) for moment in (q.mean, q.variance))
    if own is None:
        return _stacked(mean, 2), _stacked(variance, 2), None
    gamma, counts = own
    numbers = torch.arange(gamma[..., 0, 0].numel(), device=gamma.device).view(gamma.shape[:-2])
    gamma = _stacked(gamma.expand(*mean.shape[:-1], -1), 2)
    counts = _stacked(counts.expand(mean.shape[:-1]), 1)
    inner = within(gamma, counts, _stacked(mean, 2))
    return inner, _stacked(variance, 2), numbers.expand(mean.shape[:-2]).flatten()


def _stacked(tensor: Tensor, last: int) -> Tensor:
    """All but the last dimensions as one, also where there are none: several assignments, or blocks."""
    return tensor.reshape(-1, *tensor.shape[-last:])


def explained(gamma: Tensor, counts: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The share of the variance of blocks that assignments explain, the correlation ratio η²: [J, I].

        η² = Σ_k n_k (m_k - m)² / (n (Var[μ] + E[σ²])),   n_k = Σ_n γ_nk,   m_k = Σ_n γ_nk μ_n / n_k

    averaged over dimensions: 0 where knowing the component does not move the mean, 1 where z is a function of
    it. The denominator is the variance of draws of z, so that differences far below q's scale do not count.

    Args:
        gamma: responsibilities of J assignments, [J, B, K].
        counts: how many data points each row stands for, >= 0, [J, B].
        mean, variance: of q(z_i) for I blocks, [I, B, D].
    """
    mean = mean - mean.mean(1, keepdim=True).detach()  # so that little is lost in the squares
    p = _shares(counts)
    joint = p.unsqueeze(-1) * gamma
    share = joint.sum(1)[:, None, :, None]
    centre = torch.einsum("jb,ibd->jid", p, mean)
    offset = torch.einsum("jbk,ibd->jikd", joint, mean) - share * centre.unsqueeze(2)
    finfo = torch.finfo(mean.dtype)  # the bounds keep gradients finite where a component has no points
    between = (offset.square() / share.clamp(min=finfo.eps)).sum(2)
    total = torch.einsum("jb,ibd->jid", p, mean.square() + variance) - centre.square()
    return (between / total.clamp(min=finfo.tiny**0.5)).mean(-1)


def within(gamma: Tensor, counts: Tensor, mean: Tensor) -> Tensor:
    """Means of q(z_i) less those of their own components: what block i says beside its own assignment.

        μ_n - Σ_k γ_nk m_k,   m_k = Σ_n c_n γ_nk μ_n / Σ_n c_n γ_nk

    Args:
        gamma: responsibilities of the assignment of each block, [I, B, K].
        counts: how many data points each row stands for, >= 0, [I, B].
        mean: of q(z_i), [I, B, D].

    Returns:
        [I, B, D].
    """
    joint = _shares(counts).unsqueeze(-1) * gamma
    share = joint.sum(1).unsqueeze(-1).clamp(min=torch.finfo(joint.dtype).eps)
    return mean - gamma @ (joint.mT @ mean / share)


def _shares(counts: Tensor) -> Tensor:
    """Counts as shares of all that each assignment counts, [..., B]."""
    return counts / counts.sum(-1, keepdim=True).clamp(min=torch.finfo(counts.dtype).tiny)
