import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.infer import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.learn.coordinate_ascent import ascend, ascended, bound_of
from pyro_fmvae.models import ObservedMixture
from tests.models.mixture_case import LEVELS, PRIOR, STICKS, K, N, fitted, table


@pytest.mark.parametrize("prior", [PRIOR, STICKS])
@pytest.mark.parametrize("full", [False, True])
def test_the_bound_is_that_of_the_elbo_and_rises(full, prior):
    x, labels, gamma = table()
    model, bounds = ObservedMixture(LEVELS, K, N, (2, 3), prior, full), []
    seen = model.observations(x, labels)
    for _ in range(12):
        ascend(model, seen, gamma)
        rows = model.table(seen)
        bounds.append(bound_of(model, rows))
        gamma = rows.softmax(-1)
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(bounds))
    assert bounds[-1] > bounds[0] + 1
    assert TraceConjugate_ELBO().loss(model.model, model.guide, x, labels) == pytest.approx(-bounds[-1])


@pytest.mark.parametrize(("full", "prior"), [(False, PRIOR), (True, PRIOR), (False, STICKS)])
def test_a_step_is_the_natural_gradient_step_of_rate_one(full, prior):
    model, x, labels = fitted(full, steps=1, prior=prior)
    svi = ConjugateSVI(
        model.model,
        model.guide,
        NaturalGradient(1.0, lambda p: torch.optim.SGD(p, lr=0.0)),
        TraceConjugate_ELBO(),
    )
    ours, _, _ = fitted(full, steps=1, prior=prior)
    seen = ours.observations(x, labels)
    ascend(ours, seen, ours.table(seen).softmax(-1))
    svi.step(x, labels)
    theirs = model.state_dict()
    for name, value in ours.state_dict().items():
        assert_close(theirs[name], value, rtol=1e-9, atol=1e-9)


def test_half_a_step_on_a_batch_goes_half_way_to_the_posterior_of_rows_that_stand_for_all():
    model, x, labels = fitted(num_data=2 * N)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole, seen = fitted(num_data=2 * N)[0], model.observations(x, labels)
    gamma = model.table(seen).softmax(-1)
    ascend(model, seen, gamma, 0.5)
    ascend(whole, model.observations(x.repeat(2, 1), labels.repeat(2, 1)), gamma.repeat(2, 1))
    for name, target in whole.state_dict().items():
        assert_close(model.state_dict()[name], 0.5 * (before[name] + target))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_categories_of_all_columns_together_give_what_they_give_column_by_column(full, missing):
    """Where no number is missing, two mixtures side by side."""
    x, labels, gamma = table(missing)
    starts, found = [gamma, gamma.flip(0)], []
    models = [ObservedMixture(LEVELS, K, N, (2, 3), PRIOR, full) for _ in starts]
    for model in models:
        model.forget()
    seen = models[0].packed(x, labels)
    together = ascended(models, seen, starts, 4, math.inf, 0.0, learn=False)
    for start in starts:
        alone = ObservedMixture(LEVELS, K, N, (2, 3), PRIOR, full)
        alone.forget()
        for _ in range(4):
            ascend(alone, seen, start)
            rows = alone.table(seen)
            start = rows.softmax(-1)
        found.append((alone, bound_of(alone, rows), start))
    for reached, (alone, bound, after) in zip(together, found, strict=True):
        assert reached.bound == pytest.approx(bound, rel=1e-12)
        assert_close(reached.gamma, after, rtol=1e-10, atol=1e-10)
        for name, value in alone.state_dict().items():
            assert_close(reached.model.state_dict()[name], value, rtol=1e-10, atol=1e-10)
