"""Reasons why the posterior of a site has no closed form, with what to write for one that has."""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from pyro.distributions import ExpandedDistribution, MaskedDistribution
from torch.distributions import Independent, constraints

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.natural_distribution import natural_classes_on
from pyro_fmvae.infer.elbo.density import held
from pyro_fmvae.infer.elbo.expansion import OF_A_SUM, Expansion
from pyro_fmvae.infer.elbo.expectation import Monomial
from pyro_fmvae.infer.elbo.lazy import TRUTH_VALUE, NeedsValueError, functions_of, sites_of
from pyro_fmvae.infer.elbo.structure import Site

_PRECISION = "give the precision a Gamma prior, and write precision.rsqrt() as the scale"
_MATRIX = "give the precision matrix a Wishart prior, and pass it as precision_matrix="
_PROBABILITY = "without regressors, give probs= a Beta prior, or a Dirichlet prior for several values"
_ARGUMENTS = {
    "scale": _PRECISION,
    "scale_tril": _MATRIX,
    "covariance_matrix": _MATRIX,
    "rate": "without regressors, give the rate a Gamma prior",
    "probs": _PROBABILITY,
    "logits": _PROBABILITY,
}
_CLASSES = {
    "ZeroInflatedPoisson": (
        "write a Bernoulli site z in its plate, with a Beta prior, and a Poisson of "
        "torch.where(z == 1, rate, 0.0)"
    ),
    "StudentT": "write a Normal, with a Gamma(df / 2, df / 2) site in its plate as a factor of the precision",
    "LKJCholesky": _MATRIX,
    "Weibull": "give a rate a Gamma prior, and write rate ** (-1 / concentration) as the scale",
    "GammaPoisson": "write a Gamma of concentration and rate in its plate, and a Poisson of that",
}
_OF_SEVERAL = {"Categorical", "OneHotCategorical", "Multinomial"}
_CONJUGATE = {"rate": {"Gamma"}, "probs": {"Beta", "Dirichlet"}}
_UNGUARDED = "leave it out, as expectations of logarithms are finite without it"
_NO_EVENT = (
    "a Bernoulli of exp(-x) that is 1 has the density of a Poisson of x that is 0: write that, if no 0 is "
    "observed"
)
_SUM = "a sum has none, so pick one value by an index, such as precision[z], where that is meant"


@dataclass
class Use:
    """How the log-density of one site depends on the value of another, or on its own.

    Attributes:
        user: the site whose density it is.
        arguments: names of the arguments of its distribution that depend on the value; none for a site's own.
        products: monomials of the value that the log-density is linear in.
        needed_for: a function without a closed form, in words; None if the log-density is a sum of products.
        is_in_argument: True if the program, not the density, calls that function.
        functions: names of those that the program computes the arguments by.
        guard: a small number or a clamp without which the log-density had a closed form.
    """

    user: Site
    arguments: list[str]
    products: set[Monomial]
    needed_for: str | None = None
    is_in_argument: bool = False
    functions: Set[str] = frozenset()
    guard: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        user: Site,
        products: set[Monomial],
        error: NeedsValueError | None,
        expansion: Expansion,
    ) -> "Use":
        """How the log-density of a site depends on the value of the site ``name``.

        Args:
            name, user, products: as above.
            error: that reading the log-density raised.
            expansion: of the run's values.
        """
        from_it = {
            key.removeprefix("_unbroadcasted_"): part
            for key, part in held(user["fn"])
            if name in sites_of(part)
        }
        use = error.use if error is not None and name in error.sites else None
        arguments = [key for key in from_it if not key.startswith("_")]
        is_in_argument = use is not None and use in {
            _needed_for(part, expansion) for part in from_it.values()
        }
        return cls(user, arguments, products, use, is_in_argument, functions_of(list(from_it.values())))

    def __str__(self) -> str:
        what = " and ".join(self.arguments) or "an argument"
        return f"{what} of {_class_of(self.user)} at '{self.user['name']}'"


def _needed_for(x: Any, expansion: Expansion) -> str | None:
    """The function because of which a value is no sum of products; None if it is one."""
    try:
        expansion.of(x)
    except NeedsValueError as error:
        return error.use
    return None


def reason_of_program(use: str) -> str:
    """Why a site is drawn whose value the model asks for outside of densities, for a function in words."""
    if use == TRUTH_VALUE:
        return "the model branches on its value"
    if use == "'setitem'":
        return "the model writes it into a tensor by an assignment; write torch.cat, torch.stack or F.pad"
    return (
        f"the model takes its value out of the tensor, or writes into it, by {use}; compute with the tensor"
    )


def reason_for(site: Site, uses: Iterable[Use]) -> str:
    """Why a site has no conjugate posterior, and what to write instead where there is something.

    Args:
        site: that has to be drawn.
        uses: of its value by all densities, its own among them.
    """
    others = [use for use in uses if use.user["name"] != site["name"]]
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    hard = next((use for use in others if not _covering(kinds, [use])), None)
    prior = _class_of(site)
    if hard is not None and hard.guard is not None:
        return f"no closed form as {hard}, because of {hard.guard}; {_UNGUARDED}"
    if hard is not None:
        because = f", because of {hard.needed_for}" if hard.is_in_argument else ""
        on_reals = natural_classes_on(constraints.real, site["fn"].event_shape)
        normal = "a Normal prior, on all real numbers, has one" if _covering(on_reals, [hard]) else None
        return _with_advice(f"no closed form as {hard}{because}", _advice(hard, prior) or normal)
    if not others:
        return _with_advice(f"no family has the density of its {prior} prior", _CLASSES.get(prior))
    fitting = _covering(kinds, others)
    users = ", ".join(map(str, others))
    if not fitting:
        return f"no family of posteriors goes with all of {users}"
    names = " or ".join(kind.family.distribution.__name__ for kind in fitting)
    article = "an" if names[0] in "AEIOU" else "a"
    return _with_advice(f"its {prior} prior is not conjugate to {users}", f"write {article} {names} prior")


def has_family(site: Site, products: Set[Monomial]) -> bool:
    """True if a family on the support of a site has these products among its statistics."""
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    return any(products <= kind.family.monomials for kind in kinds)


def _covering(kinds: list[type[NaturalDistribution]], uses: list[Use]) -> list[type[NaturalDistribution]]:
    products = set().union(*(use.products for use in uses))
    readable = not any(use.needed_for for use in uses)
    return [kind for kind in kinds if readable and products <= kind.family.monomials]


def _advice(use: Use, prior: str) -> str | None:
    if use.is_in_argument and str(use.needed_for).endswith(OF_A_SUM):
        return _SUM
    if prior == "Beta" and _class_of(use.user) in _OF_SEVERAL and not use.is_in_argument:
        return "its probabilities add up to 1, so give all of them one Dirichlet prior"
    if prior == "Gamma" and _class_of(use.user) == "Bernoulli" and "exp" in use.functions:
        return _NO_EVENT
    by_class = _CLASSES.get(_class_of(use.user)) or _CLASSES.get(prior)
    return by_class or next(filter(None, (_by_argument(use, name, prior) for name in use.arguments)), None)


def _by_argument(use: Use, name: str, prior: str) -> str | None:
    """Advice for an argument; None if the program follows it already."""
    if prior in _CONJUGATE.get(name, ()):
        return f"its {prior} prior has one where {name} is the value itself" if use.functions else None
    if name == "scale" and prior == "Gamma" and "rsqrt" in use.functions:
        return None
    return _ARGUMENTS.get(name)


def _with_advice(reason: str, advice: str | None) -> str:
    return reason if advice is None else f"{reason}; {advice}"


def _class_of(site: Site) -> str:
    fn = site["fn"]
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return type(fn).__name__
