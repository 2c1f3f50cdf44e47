"""Complete conditionals of conjugate sites: the distribution of a site given the data and all other sites.

The log joint density of a program is linear in the statistics t of a conjugate site. Its slope is λ* of the
complete conditional. The other sites have values, so that the algebra is that of one site, or of a block of
jointly Gaussian ones: Hoffman, Johnson and Tran (2018), Section 4.
"""

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.exponential_family import event_dim_of
from pyro_fmvae.distributions.joint_parts import NormalBlock
from pyro_fmvae.distributions.multivariate_normal import MultivariateNormalFamily
from pyro_fmvae.infer.elbo.density import log_density
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import (
    Expects,
    Moments,
    NormalBlockMoments,
    PairsOfBlock,
    Squares,
    expectation_of,
)
from pyro_fmvae.infer.elbo.lazy import Lazy, Sampled, has_lazy_arguments
from pyro_fmvae.infer.elbo.recognition import recognise_conjugacy
from pyro_fmvae.infer.elbo.structure import (
    Site,
    check_filled,
    is_discrete,
    is_latent,
    sample_sites,
    total,
    unmasked,
)
from pyro_fmvae.infer.elbo.sums import Sum, widest

Values = Mapping[str, Tensor]
_LOCATION = frozenset({("x",), ("x", "x")})
LEAF = "nothing depends on it"


class AtValues(Messenger):
    """Gives latent sites their values, and those that are free a value that is not there.

    Args:
        values: by name.
        free: names of sites.
    """

    def __init__(self, values: Values, free: Collection[str] = ()) -> None:
        super().__init__()
        self._values, self._free = values, free

    def _pyro_sample(self, msg: Any) -> None:
        check_filled(msg)
        if msg["done"] or not is_latent(msg) or msg["name"] not in self._values:
            return
        value = self._values[msg["name"]]
        if msg["name"] in self._free:
            value = Lazy.make(value.shape, value.dtype, value.device, Sampled(msg["name"], msg["fn"].support))
        msg["value"], msg["done"] = value, True


@dataclass
class Block:
    """Sites that have one complete conditional: one site, or jointly Gaussian ones as one vector.

    Attributes:
        sites: their names, and the shapes of their values.
        kind: class of the conditional.
        is_vector: whether the values are one vector, in this order.
        users: names of the sites whose log-density depends on these.
        coupled: pairs of the conditional's batch, as numbers, that depend on each other.
    """

    sites: NormalBlock
    kind: type[NaturalDistribution]
    is_vector: bool = False
    users: set[str] = field(default_factory=set)
    coupled: set[tuple[int, int]] = field(default_factory=set)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.sites.names

    @property
    def is_normal_vector(self) -> bool:
        """True for multivariate Normal conditionals."""
        return isinstance(self.kind.family, MultivariateNormalFamily)

    def together(self, values: Values) -> Tensor:
        """The values as the conditional has them: [*batch, *event]."""
        if not self.is_vector:
            return values[self.names[0]]
        return torch.cat([values[name].reshape(-1) for name in self.names])

    def apart(self, value: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`together`."""
        return self.sites.apart(value) if self.is_vector else {self.names[0]: value}

    def moments(self, stats: Tensor, value: Tensor) -> Moments | NormalBlockMoments:
        """Expectations under a point mass at a value, as functions of t.

        Args:
            stats: t at the value, float64 [..., P].
            value: see :meth:`together`.
        """
        family = self.kind.family
        if self.is_vector:
            return NormalBlockMoments(Moments(family, stats, value.shape), self.sites)
        if family.monomials != _LOCATION:
            return Moments(family, stats, value.shape)
        batch = tuple(range(value.dim() - event_dim_of(family)))
        centre = value.detach().mean(batch, keepdim=True) if batch else value.detach()
        about = family.stats(value.detach().double() - centre.double())
        return Moments(family, stats, value.shape, centre.double(), about)


class LogJoint:
    """The log joint density of a program at values of its latent sites, as a function of some sites' t.

    Args:
        model, args, kwargs: the program, in Pyro's own distributions.
    """

    def __init__(self, model: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._program = model, args, kwargs
        self._identities: dict[Hashable, bool] = {}

    def sites(self, values: Values, free: Collection[str] = ()) -> dict[str, Site]:
        """The sample sites of a run at values, by name."""
        model, args, kwargs = self._program
        with poutine.block(), AtValues(values, free):
            return sample_sites(poutine.trace(model).get_trace(*args, **kwargs))

    def densities(
        self,
        values: Values,
        moments: Mapping[str, Expects],
        see: Callable[[str, Sum], None] = lambda name, terms: None,
    ) -> dict[str, Tensor]:
        """Log-densities, scaled, masked and summed, of the sites that depend on free ones: float64, by name.

        The components of a ``MixtureSameFamily`` and the states of a ``HiddenMarkov`` or a
        ``LinearGaussianChain`` are drawn given all values, and count at their draws.

        Args:
            values: of all latent sites.
            moments: of the free ones.
            see: gets the name of each site, and the products that its density consists of.

        Raises:
            NeedsValueError: a density is not linear in what the moments know.
        """
        sites = self.sites(values, moments.keys())
        centres = {
            name: own.centre
            for name, own in moments.items()
            if isinstance(own, Moments) and own.centre is not None
        }
        expansion = Expansion(self._identities, centres, keeps_squares=True)

        def evaluate(table: Any, shape: torch.Size | None = None) -> Tensor:
            terms = expansion.of(table)
            products, known = terms, moments
            if expansion.squares:
                squares = Squares(expansion.squares, moments, torch.float64, table.device)
                terms = squares.apart(terms)
                products, known = squares.products(terms), squares.moments(terms)
            see(name, products)
            shape = table.shape if shape is None else shape
            return expectation_of(terms, shape, known, widest(table.device), table.device)

        found: dict[str, Tensor] = {}
        for name, site in sites.items():
            value = unmasked(site)
            if not (isinstance(value, Lazy) or has_lazy_arguments(site["fn"])):
                continue
            density: Any = log_density(site["fn"], value, evaluate, drawn=True)
            density = density.expand(torch.broadcast_shapes(density.shape, site["fn"].batch_shape))
            if isinstance(density, Lazy):
                is_single = site["mask"] is None and not torch.as_tensor(site["scale"]).dim()
                density = evaluate(density.sum() if is_single else density)
            found[name] = total(density.double(), site)
        return found

    def naturals(self, blocks: Sequence[Block], values: Values, create_graph: bool = False) -> list[Tensor]:
        """λ* of blocks that do not depend on each other, float64 [..., P], at values of all latent sites.

        Args:
            blocks: sites with conjugate conditionals.
            values: by name.
            create_graph: whether λ* is to be differentiated with respect to the values of other sites.
        """
        with torch.enable_grad():
            leaves, moments = [], dict[str, Expects]()
            for block in blocks:
                value = block.together(values).detach()
                leaves.append(block.kind.family.stats(value.double()).detach().requires_grad_())
                moments |= dict.fromkeys(block.names, block.moments(leaves[-1], value))
            density = sum(self.densities(values, moments).values(), torch.zeros((), dtype=torch.float64))
            slopes = torch.autograd.grad(density, leaves, create_graph=create_graph)
            return [
                slope - base_slope(block.kind, leaf)
                for block, leaf, slope in zip(blocks, leaves, slopes, strict=True)
            ]


def base_slope(kind: type[NaturalDistribution], stats: Tensor) -> Tensor | float:
    """The slope of log h(θ), which is linear in t, [..., P]; λ does not have it."""
    base = kind.family.log_base_measure(stats).sum()
    return torch.autograd.grad(base, stats)[0] if base.requires_grad else 0.0


def gaussian_blocks(
    joint: LogJoint, blocks: Iterable[Block], values: Values, chosen: Set[str]
) -> list[Block]:
    """Blocks in which coupled Gaussian sites are one vector, where they are jointly Gaussian given the rest.

    Args:
        joint: of the program.
        blocks: of single sites.
        values: of all latent sites.
        chosen: names of the sites whose log-density depends on discrete ones.
    """
    result: list[Block] = []
    for block in blocks:
        if block.kind.family.monomials != _LOCATION:
            result.append(block)
            continue
        if block.coupled:
            block = _joined(joint, [block], values, chosen) or block
        for other in [each for each in result if each.kind.family.monomials == _LOCATION]:
            if block.users & other.users and (joined := _joined(joint, [other, block], values, chosen)):
                result.remove(other)
                block = joined
        result.append(block)
    return result


def _joined(joint: LogJoint, parts: Sequence[Block], values: Values, chosen: Set[str]) -> Block | None:
    """The parts as one vector; None if no product has elements of both, or some are of no Normal vector."""
    names = [name for each in parts for name in each.names]
    seen = PairsOfBlock({name: values[name] for name in names})
    try:
        joint.densities(values, dict.fromkeys(names, seen))
    except ValueError:
        return None
    pairs, first = seen.pairs(), sum(values[name].numel() for name in parts[0].names)
    if len(parts) > 1 and not bool(((pairs < first).sum(0) == 1).any()):
        return None
    users = set().union(*(each.users for each in parts))
    # discrete values may pick other pairs in each sweep
    sites = NormalBlock.of({name: values[name] for name in names}, None if users & chosen else pairs)
    return None if sites is None else Block(sites, sites.kind, is_vector=True, users=users)


def products_of(joint: LogJoint, blocks: Iterable[Block], values: Values) -> list[set[str]]:
    """The names of the sites in each product of the log joint density, as a function of the blocks' t.

    Raises:
        ValueError: it is no sum of products of what the families know.
    """
    moments = dict[str, Expects]()
    for block in blocks:
        value = block.together(values)
        own = block.moments(block.kind.family.stats(value.double()), value)
        moments |= dict.fromkeys(block.names, own)
    found: list[set[str]] = []
    joint.densities(values, moments, lambda _, terms: found.extend({f.site for f in term} for term in terms))
    return found


def find_blocks(
    model: Callable[..., Any], args: Any, kwargs: Any, joint: LogJoint, values: Values
) -> tuple[list[Block], dict[str, str]]:
    """The blocks of continuous sites whose complete conditionals have a family, in the order of the model.

    Args:
        model, args, kwargs: the program.
        joint: of the program.
        values: of all latent sites.

    Returns:
        The blocks, and why other sites have no such conditional, by name.
    """
    blocks: list[Block] = []
    reasons: dict[str, str] = {}
    sites = joint.sites(values)
    chosen = _chosen(joint, sites, values)
    for name, site in sites.items():
        if site["is_observed"] or site["fn"].support.is_discrete:
            continue
        others = {other: value for other, value in values.items() if other != name}
        found = recognise_conjugacy(poutine.condition(model, data=others), args, kwargs)
        if name not in found.kinds:
            reasons[name] = LEAF if _is_leaf(joint, name, values) else found.drawn[name]
            continue
        block = Block(NormalBlock((name,), (values[name].shape,)), found.kinds[name])
        stats = block.kind.family.stats(values[name].double())
        moments = block.moments(stats, values[name])

        pairing = set[str]()  # sites whose densities have products of two elements

        def see(
            user: str, terms: Sum, block: Block = block, moments: Any = moments, pairing: set[str] = pairing
        ) -> None:
            for term in terms:
                own = [f for f in term if f.site in block.names]
                if len(own) > 1:
                    pairing.add(user)
                    block.coupled |= moments.blocks_apart(own)

        block.users = set(joint.densities(values, {name: moments}, see))
        if pairing & chosen:  # discrete values may pick other pairs in each sweep
            block.coupled = set(itertools.combinations(range(stats.shape[:-1].numel()), 2))
        blocks.append(block)
    return gaussian_blocks(joint, blocks, values, chosen), reasons


def _chosen(joint: LogJoint, sites: Mapping[str, Site], values: Values) -> set[str]:
    """Names of the sites whose log-density depends on discrete latents; all if the program asks for one."""
    discrete = [name for name, site in sites.items() if is_latent(site) and is_discrete(site)]
    try:
        found = joint.sites(values, discrete)
    except (ValueError, TypeError, IndexError, RuntimeError):
        return set(sites)
    return {name for name, site in found.items() if name in discrete or has_lazy_arguments(site["fn"])}


def _is_leaf(joint: LogJoint, name: str, values: Values) -> bool:
    """True if no other site depends on a site."""
    try:
        sites = joint.sites(values, [name])
    except ValueError:  # the program asks for its value
        return False
    return not any(has_lazy_arguments(site["fn"]) for other, site in sites.items() if other != name)
