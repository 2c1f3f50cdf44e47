"""Mean field of binary sparse coding, x ~ N(W h, I/β) with causes h_i ~ Bernoulli(σ(b_i)).

All functions treat R models at once: weights W [R, D, H], logits b [R, H] and noise precisions β [R], for the
same data x [B, D], in which NaN marks missing elements. Source of the model: Henniges et al. (2010).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli, binary_states

LARGEST_GROUP = 10
PANEL, PANEL_OF_MISSING = 64, 8  # units whose fields come from one matrix product
OFF = -1e30  # logits of the units that pad the last group


def energy(x: Tensor, causes: Tensor, weight: Tensor, logits: Tensor, noise_precision: Tensor) -> Tensor:
    """E = -b'h + β/2 ‖x - W h‖² over observed elements, so that log p(x, h) = -E - log Z.

    Args:
        x: [B, D].
        causes: h, [R, B, H]; values between 0 and 1 are allowed.
        weight, logits, noise_precision: W [R, D, H], b [R, H] and β [R].

    Returns:
        Nats, [R, B].
    """
    error = (x - causes @ weight.mT).masked_fill(x.isnan(), 0.0).square().sum(-1)
    return 0.5 * noise_precision.unsqueeze(-1) * error - (causes @ logits.unsqueeze(-1)).squeeze(-1)


def log_partition(x: Tensor, logits: Tensor, noise_precision: Tensor) -> Tensor:
    """The constant log Z = Σ_i log(1 + exp b_i) + D/2 log(2π/β), D being the number of observed elements.

    Arguments as in :func:`energy`; nats, [R, B].
    """
    observed = (~x.isnan()).sum(-1).to(logits.dtype)
    variance = noise_precision.unsqueeze(-1).reciprocal()
    return softplus(logits).sum(-1, keepdim=True) + 0.5 * observed * (2 * math.pi * variance).log()


def bound(
    posterior: GroupedBernoulli, x: Tensor, weight: Tensor, logits: Tensor, noise_precision: Tensor
) -> Tensor:
    """E_q[log p(x, h)] + H[q] in closed form, in nats per point [R, B].

    Args:
        posterior: q, batch shape [R, B].
        x, weight, logits, noise_precision: as in :func:`energy`.
    """
    variance = posterior.superposed_variance(weight).masked_fill(x.isnan(), 0.0).sum(-1)
    expected = energy(x, posterior.mean, weight, logits, noise_precision)
    expected = expected + 0.5 * noise_precision.unsqueeze(-1) * variance
    return posterior.entropy() - expected - log_partition(x, logits, noise_precision)


@torch.no_grad()
def mean_field(
    x: Tensor,
    weight: Tensor,
    logits: Tensor,
    noise_precision: Tensor,
    means: Tensor | None = None,
    *,
    group_size: int = 1,
    sweeps: int = 100,
    tolerance: float = 1e-6,
    temperature: float = 1.0,
    shuffle: bool = True,
) -> GroupedBernoulli:
    """Approximate posterior q(h) = Π_S q(h_S) over groups S of units, by coordinate ascent.

    The update of a group, given the means m of the others, minimises KL(q ‖ p(h | x)) over q(h_S) exactly:

        log q(h_S) = h_S'(b_S + β W_S'(x - Σ_{j not in S} W_j m_j)) - β/2 h_S' W_S'W_S h_S + const,

    which for a single unit is m_i = σ(b_i + β[W_i'x - ‖W_i‖²/2 - Σ_{j≠i} W_i'W_j m_j]). The divergence never
    rises. Groups are updated one after another, since updating all units at once may cycle; each update is
    batched over points and models.

    Args:
        x, weight, logits, noise_precision: as in :func:`energy`.
        means: initial m, [R, B, H]; None: the prior's.
        group_size: g from 1 to 10, number of consecutive units in a group; the cost grows with 2^g.
        sweeps: maximum number of sweeps over all units.
        tolerance: stop after a sweep that changes no mean by this much; 0: never stop early.
        temperature: T > 0; the noise precision is divided by it.
        shuffle: draw a random order of the groups for each sweep, shared by all points and models; False:
            their own order.

    Returns:
        q, batch shape [R, B], without gradients.

    Raises:
        ValueError: shapes that do not fit, or a number out of range.
    """
    check_shapes(x, weight, logits, noise_precision)
    if not 1 <= group_size <= LARGEST_GROUP:
        raise ValueError(f"group_size: expected 1 to {LARGEST_GROUP}, got {group_size}")
    if sweeps < 1:
        raise ValueError(f"sweeps: expected a number >= 1, got {sweeps}")
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number > 0, got {temperature}")
    starts, _, units = weight.shape
    if means is None:
        means = logits.sigmoid().unsqueeze(1).expand(starts, len(x), units)
    if means.shape != (starts, len(x), units):
        raise ValueError(f"means: expected {[starts, len(x), units]}, got {list(means.shape)}")
    surplus = -units % group_size
    weight, logits = pad(weight, (0, surplus)), pad(logits, (0, surplus), value=OFF)
    columns = pad(means, (0, surplus)).mT.clone(memory_format=torch.contiguous_format)
    precision = (noise_precision / temperature)[:, None, None]
    fields: _Fields = (_Missing if x.isnan().any() else _Complete)(x.mT, columns, weight, logits, precision)
    groups = (units + surplus) // group_size
    table = columns.new_empty(starts, groups if group_size > 1 else 0, 2**group_size, len(x))
    for _ in range(sweeps):
        before = fields.means.clone()
        order = torch.randperm(groups, device=x.device) if shuffle else torch.arange(groups, device=x.device)
        _sweep(fields, order, table, group_size)
        if tolerance > 0 and (fields.means - before).abs().max() < tolerance:
            break
    if group_size == 1:
        on = fields.means.mT
        return GroupedBernoulli(torch.stack([1 - on, on], -1), validate_args=False)
    return GroupedBernoulli(table.permute(0, 3, 1, 2), units, validate_args=False)


class _Complete:
    """Fields b + β W'(x - W m) of units, from W'W and W'x.

    Args:
        x: [D, B].
        means: m, [R, H, B].
        weight, logits, precision: [R, D, H], [R, H], [R, 1, 1].
    """

    panel = PANEL

    def __init__(self, x: Tensor, means: Tensor, weight: Tensor, logits: Tensor, precision: Tensor) -> None:
        scaled = precision * weight.mT
        self.means, self.gram = means, scaled @ weight
        self.drive = logits.unsqueeze(-1) + scaled @ x

    def open(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of p units at the present means [R, p, B], and their block of β W'W [R, p, p, 1]."""
        rows = self.gram[:, units]
        return torch.baddbmm(self.drive[:, units], rows, self.means, alpha=-1), rows[:, :, units, None]

    def close(self, units: Tensor, means: Tensor) -> None:
        """Set the means of these units, [R, p, B]."""
        self.means[:, units] = means


class _Missing:
    """Fields as in :class:`_Complete`, with sums over the observed elements of each point."""

    panel = PANEL_OF_MISSING

    def __init__(self, x: Tensor, means: Tensor, weight: Tensor, logits: Tensor, precision: Tensor) -> None:
        missing = x.isnan()
        self.means, self.weight, self.logits, self.precision = means, weight, logits, precision
        self.residual = (x - weight @ means).masked_fill(missing, 0.0)
        self.observed = (~missing).to(weight.dtype)

    def open(self, units: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight[:, :, units]
        scaled = self.precision * weight
        products = (scaled.unsqueeze(-1) * weight.unsqueeze(-2)).flatten(2)
        block = (products.mT @ self.observed).unflatten(1, (len(units), len(units)))
        return self.logits[:, units, None] + scaled.mT @ self.residual, block

    def close(self, units: Tensor, means: Tensor) -> None:
        change = self.weight[:, :, units] @ (means - self.means[:, units])
        self.residual.addcmul_(change, self.observed, value=-1)
        self.means[:, units] = means


_Fields = _Complete | _Missing


def _sweep(fields: _Fields, order: Tensor, table: Tensor, group_size: int) -> None:
    """Update groups in the given order and write the probabilities of their states into the table."""
    states = binary_states(group_size, fields.means)
    within = torch.arange(group_size, device=order.device)
    for groups in order.split(max(fields.panel // group_size, 1)):
        units = (groups.unsqueeze(-1) * group_size + within).flatten()
        field, block = fields.open(units)
        means = fields.means[:, units]
        probs = _sweep_panel(field, block, means, states)
        fields.close(units, means)
        if group_size > 1:
            table[:, groups] = torch.stack(probs, 1)


def _sweep_panel(field: Tensor, block: Tensor, means: Tensor, states: Tensor) -> list[Tensor]:
    """Update the groups of a panel in place, one after another.

    Args:
        field: b + β W'(x - W m), [R, p, B].
        block: β W'W, [R, p, p, B or 1].
        means: [R, p, B].
        states: [2^g, g].

    Returns:
        The probabilities of the states of each group, [R, 2^g, B]; an empty list for groups of one unit.
    """
    size, probs = states.shape[1], []
    halves = 0.5 * (states.unsqueeze(-1) * states.unsqueeze(-2)).flatten(1)
    for start in range(0, means.shape[1], size):
        stop = start + size
        own, old = block[:, start:stop, start:stop], means[:, start:stop].clone()
        without = field[:, start:stop] + _times(own, old)
        if size == 1:
            new = (without - 0.5 * own[:, 0]).sigmoid()
        else:
            log_probs = states @ without - halves @ own.flatten(1, 2)
            probs.append(log_probs.softmax(1))
            new = states.mT @ probs[-1]
        means[:, start:stop] = new
        field[:, stop:].sub_(_times(block[:, stop:, start:stop], new - old))
    return probs


def _times(block: Tensor, values: Tensor) -> Tensor:
    """Products of matrices [R, p, g, B or 1] with vectors [R, g, B]: [R, p, B]."""
    if values.shape[1] == 1:
        return block[:, :, 0] * values
    return (block * values.unsqueeze(1)).sum(2)


def check_shapes(x: Tensor, weight: Tensor, logits: Tensor, noise_precision: Tensor) -> None:
    """Check that the shapes of data and of the parameters of R models fit.

    Raises:
        ValueError: they do not.
    """
    if weight.dim() != 3:
        raise ValueError(f"weight: expected shape [R, D, H], got {list(weight.shape)}")
    starts, size, units = weight.shape
    for name, value, shape in (
        ("x", x, [len(x), size]),
        ("logits", logits, [starts, units]),
        ("noise_precision", noise_precision, [starts]),
    ):
        if list(value.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {list(value.shape)}")
