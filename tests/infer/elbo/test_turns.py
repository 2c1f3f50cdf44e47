"""Which natural parameters move in which turns."""

import torch

from pyro_fmvae.distributions import GAMMA, NaturalParameter
from pyro_fmvae.infer.elbo.expectation import Moments
from pyro_fmvae.infer.elbo.plain_terms import UpdateOrder
from pyro_fmvae.infer.elbo.sums import element, times


def parameters(*names, size=1):
    return {name: NaturalParameter(torch.ones(size, 2)) for name in names}


def product(*sites):
    term = []
    for site in sites:
        term = times(term, [element(site, torch.arange(1))])
    return term


def turns_of(naturals, terms, moments=None):
    turns = UpdateOrder(naturals)
    turns.see(terms, moments or {})
    turns.note()
    return [None if p.moves is None else p.moves[:-1].squeeze(-1).tolist() for p in naturals.values()]


def test_parameters_without_common_products_have_no_turns():
    assert turns_of(parameters("a", "b"), [product("a"), product("b")]) == [None, None]


def test_a_chain_has_two_turns_and_what_is_alone_moves_in_both():
    found = turns_of(parameters("a", "b", "c", "d"), [product("a", "b"), product("b", "c"), product("d")])
    assert found == [[1, 0], [0, 1], [1, 0], [1, 1]]


def test_sites_with_one_parameter_move_together():
    (shared,) = parameters("a").values()
    assert turns_of({"a": shared, "b": shared}, [product("a", "b")]) == [None, None]


def test_blocks_of_one_parameter_move_apart():
    naturals = parameters("a", size=3)
    stats = torch.zeros(3, 2, dtype=torch.float64)
    moments = {"a": Moments(GAMMA, stats, torch.Size([3]))}
    neighbours = [[element("a", torch.arange(2)), element("a", torch.arange(1, 3))]]
    assert turns_of(naturals, neighbours, moments) == [[[1, 0, 1], [0, 1, 0]]]


def test_turns_are_forgotten_with_the_products():
    naturals = parameters("a", "b")
    assert turns_of(naturals, [product("a", "b")]) == [[1, 0], [0, 1]]
    assert turns_of(naturals, []) == [None, None]
