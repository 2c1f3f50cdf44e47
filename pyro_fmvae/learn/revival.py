"""Free factors started anew: where new components reach a greater bound, and where components coincide.

Networks that are still learning move codes faster than λ follows by small steps, and points leave narrow
components for a wide one until that has all of them. So λ is compared with new starts.

A factor whose components coincide says nothing, and gradients hardly move it: no point prefers a component.
The codes may still hold a property that it could stand for, spread over the blocks of others. An independent
component of the codes (:mod:`pyro_fmvae.learn.independent_components`) is turned into the factor's block, by
a rotation in the plane of this direction and an axis of the block. The networks absorb it, and λ is seeded
anew there. If the bound does not gain, all is as before.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.posteriors import ConjugatePosterior, NaturalPosterior, to_standard
from pyro_fmvae.infer.seeding import ITERATIONS, coordinate_ascent, responsibilities
from pyro_fmvae.learn.independent_components import INFORMATIVE, MOST, Array, IndependentComponents, entropy
from pyro_fmvae.learn.phase import arguments, endless
from pyro_fmvae.models.change_of_basis import change_basis
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE

POINTS: Final = 2000
"""Points at most by which factors are looked at."""
GAIN: Final = 0.05
"""Nats per point that a new start has to gain: less may be due to the draws by which bounds are compared."""


@torch.no_grad()
def revive(
    model: FactorialMixtureVAE, batches: Iterable[Any], seed: int, restarts: int = 1
) -> dict[int, float]:
    """Start free factors anew, in place, where the bound gains by it.

    Args:
        model: its factors share a latent space.
        batches: a loader of points x, or of x and what belongs to them.
        seed: of new starts, the analysis of codes, and the draws by which bounds are compared.
        restarts: k-means starts that λ of each factor is compared with.

    Returns:
        Factor → gain in nats per point, for each factor that was started anew. Networks of a kind whose basis
        cannot change are left as they are.
    """
    x = _points(batches, min(POINTS, model.num_data))
    codes = _encoded(model, x)
    gains = model.restart(*codes, torch.Generator().manual_seed(seed), restarts, GAIN)
    gammas = _responsibilities(model, *codes)
    for factor, size in enumerate(model.num_components):
        if factor in model.labelled or size == 1 or _bits(gammas[factor]) >= INFORMATIVE:
            continue
        before, state = _bound(model, x, seed), {name: p.clone() for name, p in model.state_dict().items()}
        try:
            if not _start(model, x, codes, factor, gammas, seed):
                break
        except TypeError:
            break
        gain = _bound(model, x, seed) - before
        if not gain > GAIN:
            model.load_state_dict(state)
            break
        gains[factor] = gain
        codes = _encoded(model, x)
        gammas = _responsibilities(model, *codes)
    return gains


def _start(
    model: FactorialMixtureVAE,
    x: Sequence[Tensor],
    codes: tuple[Tensor, Tensor],
    factor: int,
    gammas: Sequence[Tensor],
    seed: int,
) -> bool:
    """Turn the direction of most information that no factor holds into a factor's block, and seed λ there.

    Args:
        model: changed in place.
        x: batches.
        codes: location and scale of q(z | x) of their points, [M, J] each.
        factor: the one to start.
        gammas: responsibilities of all factors, [M, K_i] each.
        seed: of the analysis.

    Returns:
        Whether there is such a direction.
    """
    from sklearn.metrics import adjusted_mutual_info_score  # heavy, and needed only here

    mean, scale = (part.cpu().numpy() for part in codes)
    variance = np.square(scale)
    found, size = IndependentComponents.of(mean, variance, seed), model.num_components[factor]
    units = [found.unit([number], min(size, MOST)) for number in range(len(found.directions))]
    assigned = [gamma.argmax(-1).cpu().numpy() for gamma in gammas]
    left = [
        unit.bits * (1 - max(adjusted_mutual_info_score(unit.assignments, held) for held in assigned))
        for unit in units
    ]
    if max(left, default=0.0) < INFORMATIVE:
        return False
    number = int(np.argmax(left))
    to, back = turn(found, number, range(factor * model.dim, (factor + 1) * model.dim))
    change = to, back, np.zeros(len(to)), variance.mean(0)
    change_basis(model.encoder, model.decoder, *map(torch.from_numpy, change))
    start = torch.from_numpy(found.responsibilities([number], size)).to(gammas[factor].device)
    _update(model, x, [start if each == factor else gamma for each, gamma in enumerate(gammas)], factor)
    return True


def turn(found: IndependentComponents, number: int, block: Sequence[int]) -> tuple[Array, Array]:
    """The change of basis by which an independent component becomes an axis of a block, and its inverse.

    Both are [J, J].

    It is a rotation of codes that are scaled to standard deviation 1, in the plane of the component and the
    block's nearest axis. Axes that are at right angles to the component stay as they are.

    Args:
        found: independent components of codes of J dimensions.
        number: of the component.
        block: dimensions, out of 0..J-1.
    """
    spread = np.sqrt(np.square(found.colouring).sum(0))
    direction = spread * (found.whitening @ found.directions[number])
    direction /= np.linalg.norm(direction)
    axis = max(block, key=lambda dim: abs(direction[dim]))
    direction *= math.copysign(1.0, direction[axis])
    unit = np.eye(len(spread))[axis]
    plane = np.outer(unit, direction) - np.outer(direction, unit)
    rotation = np.eye(len(spread)) + plane + plane @ plane / (1 + direction[axis])
    return spread[:, None] * rotation / spread, spread[:, None] * rotation.T / spread


def _update(model: FactorialMixtureVAE, x: Sequence[Tensor], gammas: Sequence[Tensor], factor: int) -> None:
    """λ of all factors from responsibilities of points, in place; one factor's goes on to its best."""
    mean, variance = model._moments(*_encoded(model, x))
    for group in model.factor_groups():
        priors = [natural_prior(prior) for prior in group.priors(mean.device)]
        mixtures = [
            coordinate_ascent(
                *group.of_factor(place, *priors),
                mean[each],
                variance[each],
                gammas[each],
                model.num_data / mean.shape[1],
                ITERATIONS if each == factor else 1,
            )
            for place, each in enumerate(group.factors)
        ]
        _replace(group.weights, torch.stack([one.weights.natural for one in mixtures])[:, None])
        _replace(group.loc_precision, torch.stack([one.components.natural for one in mixtures]))


def _replace(posterior: ConjugatePosterior, natural: Tensor) -> None:
    """Give a posterior other natural parameters, in the parameters that it has."""
    new: ConjugatePosterior = NaturalPosterior(posterior.kind, natural)
    if not isinstance(posterior, NaturalPosterior):
        new = to_standard(new)
    for parameter, value in zip(posterior.parameters(), new.parameters(), strict=True):
        parameter.copy_(value)


def _points(batches: Iterable[Any], number: int) -> list[Tensor]:
    """Batches of x, of so many points at least."""
    x: list[Tensor] = []
    for batch in endless(batches):
        x.append(arguments(batch)[0])
        if sum(map(len, x)) >= number:
            return x
    return x


def _encoded(model: FactorialMixtureVAE, x: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Location and scale of q(z | x), [M, J] each."""
    locs, scales = zip(*map(model.encoder, x), strict=True)
    return torch.cat(locs).double(), torch.cat(scales).double()


def _responsibilities(model: FactorialMixtureVAE, loc: Tensor, scale: Tensor) -> list[Tensor]:
    """γ of every factor without labels, I tensors [M, K_i], of codes [M, J]."""
    mean, variance = model._moments(loc, scale)
    of_groups = []
    for group in model.factor_groups():
        priors = [natural_prior(prior) for prior in group.priors(mean.device)]
        values = group.weights.natural_value(), group.loc_precision.natural_value()
        whole = [prior.with_natural(value) for prior, value in zip(priors, values, strict=True)]
        of_groups += [
            responsibilities(*group.of_factor(place, *whole), mean[factor], variance[factor])
            for place, factor in enumerate(group.factors)
        ]
    return model.layout.in_order(of_groups)


def _bits(gamma: Tensor) -> float:
    """H(π) - E[H(γ)] of responsibilities [M, K]; 0 where components coincide."""
    p = gamma.cpu().numpy()
    return float(entropy(p.mean(0)) - entropy(p).mean()) / math.log(2)


def _bound(model: FactorialMixtureVAE, x: Sequence[Tensor], seed: int) -> float:
    """Nats per point, by the same draws at each call; torch's own generators are left as they are."""
    elbo = TraceConjugate_ELBO()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        losses = [
            len(each) * elbo.loss(model.model, model.guide, each, None, model.encoder(each)) for each in x
        ]
    return -sum(losses) / sum(map(len, x)) / model.num_data
