"""Random programs, held against the definition of the bound and differences."""

import pytest

pytest.importorskip("hypothesis", reason="needs the package hypothesis")

from hypothesis import assume, given, settings

from pyro_fmvae.infer import AutoConjugate
from tests.infer.plain.oracles import assert_bound, assert_gradient
from tests.infer.plain.random_programs import FAMILIES, random_programs

options = {"deadline": None, "derandomize": True, "database": None}


def check(program):
    guide = AutoConjugate(program.model, fallback=None)
    guide()
    assert {*FAMILIES[program.family].priors} <= {*guide.posteriors}
    assume(assert_bound(program.model, guide) < 1)
    assert_gradient(program.model, guide)


@given(program=random_programs)
@settings(max_examples=12, **options)
def test_random_programs(program):
    check(program)


@pytest.mark.slow
@given(program=random_programs)
@settings(max_examples=400, **options)
def test_many_random_programs(program):
    check(program)
