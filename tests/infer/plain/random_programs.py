"""Small random programs: every family, under every link, plate, index, mask and scale."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from hypothesis import strategies as st
from pyro.ops.indexing import Vindex
from torch import Tensor

K, N = 2, 4

REALS = [0.3, -1.2, 4.0, 3.1]
POSITIVE = [0.3, 1.2, 4.0, 3.1]
COUNTS = [0.0, 1.0, 5.0, 3.0]
BITS = [0.0, 1.0, 1.0, 0.0]
CATEGORIES = [0, 2, 1, 2]


@dataclass(frozen=True)
class Family:
    """Priors of parameters, each with the links that are exact, and a likelihood.

    Attributes:
        priors: site → class of the prior, and its parameters.
        links: site → functions of its value.
        likelihood: the distribution of data, given the parameters in the priors' order.
        data: [N].
    """

    priors: dict[str, Any]
    links: dict[str, list[Callable[[Any], Any]]]
    likelihood: Callable[..., Any]
    data: list[float]


def same(x):
    return x


LINEAR = [same, lambda x: 0.5 - 2 * x, lambda x: -x / 3, lambda x: (x + 1) * 2]
TO_SCALE = [
    lambda t: t.rsqrt(),
    lambda t: 1 / t.sqrt(),
    lambda t: t**-0.5,
    lambda t: (2 * t).sqrt().reciprocal(),
]
TO_RATE = [same, lambda r: 3 * r, lambda r: r / 2, lambda r: (r.log() + 0.5).exp()]
TO_PROBABILITY = [same, lambda p: 1 - p]
LOC, PRECISION, RATE = (dist.Normal, 1.0, 2.0), (dist.Gamma, 3.0, 2.0), (dist.Gamma, 2.0, 1.5)
PROPORTION = (dist.Beta, 2.0, 1.5)

FAMILIES = {
    "normal": Family({"m": LOC}, {"m": LINEAR}, lambda m: dist.Normal(m, 1.5), REALS),
    "normal precision": Family(
        {"m": LOC, "t": PRECISION}, {"m": LINEAR, "t": TO_SCALE}, lambda m, s: dist.Normal(m, s), REALS
    ),
    "normal variance": Family(
        {"m": LOC, "v": (dist.InverseGamma, 3.0, 2.0)},
        {"m": LINEAR, "v": [lambda v: v.sqrt(), lambda v: v**0.5, lambda v: (3 * v).sqrt()]},
        lambda m, s: dist.Normal(m, s),
        REALS,
    ),
    "log normal": Family({"m": LOC}, {"m": LINEAR}, lambda m: dist.LogNormal(m, 0.8), POSITIVE),
    "poisson": Family({"r": RATE}, {"r": TO_RATE}, lambda r: dist.Poisson(r), COUNTS),
    "exponential": Family({"r": RATE}, {"r": TO_RATE}, lambda r: dist.Exponential(r), POSITIVE),
    "gamma": Family({"r": RATE}, {"r": TO_RATE}, lambda r: dist.Gamma(2.5, r), POSITIVE),
    "bernoulli": Family({"p": PROPORTION}, {"p": TO_PROBABILITY}, lambda p: dist.Bernoulli(p), BITS),
    "binomial": Family({"p": PROPORTION}, {"p": TO_PROBABILITY}, lambda p: dist.Binomial(6, p), COUNTS),
    "geometric": Family({"p": PROPORTION}, {"p": TO_PROBABILITY}, lambda p: dist.Geometric(p), COUNTS),
    "negative binomial": Family(
        {"p": PROPORTION}, {"p": TO_PROBABILITY}, lambda p: dist.NegativeBinomial(3.0, p), COUNTS
    ),
    "categorical": Family(
        {"p": (dist.Dirichlet, [1.0, 2.0, 1.5])},
        {"p": [same, lambda p: p[..., [2, 0, 1]]]},
        lambda p: dist.Categorical(p),
        CATEGORIES,
    ),
}
INDICES = {
    "[a]": lambda value, a: value[a],
    "Vindex": lambda value, a: Vindex(value)[a],
    "index_select": lambda value, a: value.index_select(0, a.reshape(-1)).reshape(
        (*a.shape, *value.shape[1:])
    ),
}


@dataclass(frozen=True)
class RandomProgram:
    """A program as a choice of each of its parts.

    Attributes:
        family: name in ``FAMILIES``.
        links: number of the link of every parameter.
        structure: how a point gets its component: all have one, known groups, assignments, a Markov chain.
        index: name in ``INDICES``.
        in_plate: True if components are in a plate, False if they are one event.
        link_first: True to apply links to the components, False to apply them to a point's.
        mask, scale: of the data, None for none.
    """

    family: str
    links: tuple[int, int]
    structure: str
    index: str
    in_plate: bool
    link_first: bool
    mask: tuple[bool, ...] | None
    scale: float | None

    def parameters(self) -> list[Tensor]:
        """The components' parameters [K, ...], linked or not yet."""
        values = []
        for name, (kind, *numbers) in FAMILIES[self.family].priors.items():
            prior = kind(*map(torch.tensor, numbers))
            if self.in_plate:
                with pyro.plate(f"components_{name}", K):
                    value = pyro.sample(name, prior)
            else:
                value = pyro.sample(name, prior.expand([K]).to_event(1))
            values.append(value)
        return self.linked(values) if self.link_first else values

    def linked(self, values: list[Tensor]) -> list[Tensor]:
        """Each parameter through its link."""
        choices = zip(FAMILIES[self.family].links.values(), self.links, values, strict=False)
        return [links[number % len(links)](value) for links, number, value in choices]

    def likelihood(self, parameters: list[Tensor], a: Tensor) -> Any:
        """The distribution of points in components ``a``."""
        values = [INDICES[self.index](value, a) for value in parameters]
        return FAMILIES[self.family].likelihood(*(values if self.link_first else self.linked(values)))

    def model(self) -> None:
        parameters, data = self.parameters(), torch.tensor(FAMILIES[self.family].data)
        if self.structure == "chain":
            self.chain(parameters, data)
            return
        weights = (
            pyro.sample("weights", dist.Dirichlet(torch.ones(K))) if self.structure == "mixture" else None
        )
        with pyro.plate("data", N), self.adjusted():
            if weights is not None:
                a = pyro.sample("a", dist.Categorical(weights))
            else:
                a = torch.arange(N) % K if self.structure == "groups" else torch.zeros(N, dtype=torch.long)
            pyro.sample("x", self.likelihood(parameters, a), obs=data)

    def chain(self, parameters: list[Tensor], data: Tensor) -> None:
        """A hidden Markov model."""
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K, K)).to_event(1))
        z = torch.tensor(0)
        for t in pyro.markov(range(N)):
            z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
            with poutine.mask(mask=self.mask is None or self.mask[t]):
                pyro.sample(f"x_{t}", self.likelihood(parameters, z), obs=data[t])

    def adjusted(self) -> Any:
        """The data's mask or scale."""
        if self.mask is not None:
            return poutine.mask(mask=torch.tensor(self.mask))
        return poutine.scale(scale=self.scale or 1.0)


random_programs = st.builds(
    RandomProgram,
    family=st.sampled_from(sorted(FAMILIES)),
    links=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    structure=st.sampled_from(["one", "groups", "mixture", "mixture", "chain"]),
    index=st.sampled_from(sorted(INDICES)),
    in_plate=st.booleans(),
    link_first=st.booleans(),
    mask=st.none() | st.tuples(*[st.booleans()] * N),
    scale=st.none() | st.sampled_from([0.3, 4.0]),
)
