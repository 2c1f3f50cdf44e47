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

from pyro_fmvae.infer.elbo.mixture_terms import MixtureTables, Role, Term
from pyro_fmvae.ranks import whole_batch


def dependence_terms(tables: Sequence[MixtureTables], guide: Trace, weight: float | Tensor) -> list[Term]:
    """One term for each mixture with observed labels: ``weight`` · N · Σ_ij η²_ij over blocks i ≠ j.

    η²_ij is :func:`explained` by assignment j of the mixture in block i of any mixture, averaged over the
    dimensions of the block, under responsibilities that are clamped by labels and held constant. N is the
    number of data points that the batch stands for. Where ranks share a batch, all of its rows count.

    Args:
        tables: of all mixtures, assignments [..., B].
        guide: trace of the guide, with q(z) [..., B] of events [D].
        weight: nats per data point for a block that an assignment determines entirely.
    """
    blocks = [
        (table, guide.nodes[child.name]["fn"])
        for table in tables
        for child, site, _ in table.children
        if not site["is_observed"]
    ]
    terms = []
    for table in tables:
        if not table.labels:
            continue
        site = table.site
        gamma = table.responsibilities()[0].detach()
        counts = scale_and_mask(torch.ones_like(gamma[..., 0]), site["scale"], site["mask"])
        gamma = whole_batch(_stacked(gamma, 2), -2)
        counts = whole_batch(_stacked(counts, 1), -1, counts=True)
        total = gamma.new_zeros(())
        for owner, q in blocks:
            moments = (whole_batch(_stacked(moment, 2), -2) for moment in (q.mean, q.variance))
            share = explained(gamma, counts, *moments)
            if owner is table:  # views of a block come one after the other
                own = torch.eye(len(share), dtype=share.dtype, device=share.device)
                share = share * (1 - own.repeat(1, share.shape[1] // len(share)))
            total = total + (counts.sum(-1) * share.sum(-1)).sum()
        terms.append(Term(f"{site['name']}/dependence", Role.DEPENDENCE, weight * total))
    return terms


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
    p = counts / counts.sum(-1, keepdim=True).clamp(min=torch.finfo(counts.dtype).tiny)
    joint = p.unsqueeze(-1) * gamma
    share = joint.sum(1)[:, None, :, None]
    centre = torch.einsum("jb,ibd->jid", p, mean)
    offset = torch.einsum("jbk,ibd->jikd", joint, mean) - share * centre.unsqueeze(2)
    finfo = torch.finfo(mean.dtype)  # the bounds keep gradients finite where a component has no points
    between = (offset.square() / share.clamp(min=finfo.eps)).sum(2)
    total = torch.einsum("jb,ibd->jid", p, mean.square() + variance) - centre.square()
    return (between / total.clamp(min=finfo.tiny**0.5)).mean(-1)
