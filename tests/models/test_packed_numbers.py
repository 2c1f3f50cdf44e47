"""Rows whose statistics are computed once have the table and the update of the rows themselves."""

import math
from copy import deepcopy

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions.marginal_component import marginal_table, marginal_update
from pyro_fmvae.learn.coordinate_ascent import ascend, ascended
from pyro_fmvae.models import ObservedMixture, packed_numbers
from pyro_fmvae.models import table_posterior as module
from pyro_fmvae.models.packed_numbers import PackedNumbers


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("missing", [0.0, 0.2, 1.0])
def test_the_table_and_the_update_are_those_of_the_rows(full, missing):
    torch.manual_seed(0)
    x = torch.randn(40, 5).masked_fill(torch.rand(40, 5) < missing, torch.nan)
    x[:, 3] = (torch.arange(40) % 3).float()
    model = ObservedMixture((0, 0, 0, 3, 0), 4, 80, full=full)
    plain, packed = model.observations(x), model.packed(x)
    assert isinstance(packed["x"], PackedNumbers) and len(packed["x"]) == 40
    assert_close(model.table(packed), model.table(plain))
    gamma, found = model.table(plain).softmax(-1), []
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for seen in (plain, packed):
        model.load_state_dict(start)
        ascend(model, seen, gamma)
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    assert_close(found[0], found[1])


def test_an_update_takes_up_what_the_table_found(monkeypatch):
    """Rows with gaps, full covariances: the update at the table's own responsibilities factorises nothing."""
    torch.manual_seed(0)
    x = torch.randn(40, 30).masked_fill(torch.rand(40, 30) < 0.5, torch.nan)
    x[:, 3], x[20:, 0] = (torch.arange(40) % 3).float(), x[20:, 0] + 8
    model, found = ObservedMixture((0, 0, 0, 3, *26 * [0]), 4, 80, full=True), []
    plain, packed = model.observations(x), model.packed(x)
    for name in "recomputed", "taken up":
        gamma = model.table(packed).softmax(-1)
        assert_close(gamma, model.table(plain).softmax(-1))
        start = {name: value.clone() for name, value in model.state_dict().items()}
        ascend(model, plain if name == "recomputed" else packed, gamma)
        found.append({name: value.clone() for name, value in model.state_dict().items()})
        model.load_state_dict(start)
        monkeypatch.setattr(packed_numbers, "marginal_update", None)
    assert_close(found[0], found[1])
    with pytest.raises(TypeError):
        ascend(model, packed, gamma.flip(0))
    some = torch.tensor([True, False, True, False])
    among = model.table(packed, some)
    assert (among[:, ~some] == -torch.inf).all()
    assert_close(among[:, some].softmax(-1), model.table(plain)[:, some].softmax(-1))


def test_filled_rows_have_no_gaps():
    """With known components, their update is that of rows that are filled in by their own component."""
    torch.manual_seed(0)
    x = torch.randn(40, 5).masked_fill(torch.rand(40, 5) < 0.2, torch.nan)
    model = ObservedMixture((0, 0, 0, 0, 0), 2, 40, full=True)
    stats, gamma = model.natural("x_parameter").expected_stats(), torch.eye(2).double()[torch.arange(40) % 2]
    numbers, prior = model.packed(x)["x"], model.natural_priors()["x_parameter"].natural
    filled = numbers.filled(stats, gamma)
    assert filled.gaps is None and len(filled) == 40
    assert_close(filled.update(prior, gamma, stats, 3.0), numbers.update(prior, gamma, stats, 3.0))
    table, other = filled.log_likelihoods(stats, gamma), model.packed(x.nan_to_num(0.0))["x"]
    complete = ~x.isnan().any(-1)
    assert 5 < complete.sum() < 20
    assert_close(table[complete], other.log_likelihoods(stats, gamma)[complete])


@pytest.mark.parametrize("rows", [[3, 7], range(40)])
def test_rows_without_any_number_are_no_gaps(rows):
    """They have E[log p] 0 and add nothing, as in the table of the rows themselves, also side by side."""
    torch.manual_seed(0)
    x = torch.randn(40, 4, dtype=torch.float64).index_fill(0, torch.tensor(list(rows)), torch.nan)
    model = ObservedMixture((0, 0, 0, 0), 3, 40, full=True)
    numbers, prior = model.packed(x)["x"], model.natural_priors()["x_parameter"].natural
    stats = model.natural("x_parameter").expected_stats()
    gamma = torch.rand(40, 3, dtype=torch.float64)
    assert numbers.gaps is None and len(numbers) == 40
    table = numbers.log_likelihoods(stats, torch.zeros(3))
    assert_close(table, marginal_table(x, stats))
    assert (table[list(rows)] == 0.0).all()
    assert_close(numbers.update(prior, gamma, stats, 2.0), marginal_update(prior, gamma, x, stats, 2.0))
    places = torch.tensor([[3, 4, 5], [6, 7, 8]])
    chosen = numbers.chosen(places).log_likelihoods(stats.expand(2, -1, -1), torch.zeros(3))
    assert_close(chosen, table[places])
    found = [
        ascended(
            [deepcopy(model)], observations, [gamma / gamma.sum(-1, keepdim=True)], 20, math.inf, 0.0, True
        )
        for observations in (model.packed(x), model.observations(x))
    ]
    assert found[0][0].bound == pytest.approx(found[1][0].bound, rel=1e-12)
    x[0, 0], x[0, 1] = 1.0, torch.nan
    mixed = model.packed(x)["x"]
    assert mixed.gaps.tolist() == [0]
    assert_close(mixed.log_likelihoods(stats, torch.zeros(3)), marginal_table(x, stats))
    assert_close(mixed.filled(stats, gamma).own_statistics[:, 3], torch.zeros(len(stats.mT)).double())


def test_statistics_that_are_too_many_are_not_kept(monkeypatch):
    model, x = ObservedMixture((0, 0, 0), 2, 10, full=True), torch.zeros(10, 3)
    monkeypatch.setattr(module, "LARGEST", 10 * 11)
    assert isinstance(model.packed(x)["x"], PackedNumbers)
    monkeypatch.setattr(module, "LARGEST", 10 * 11 - 1)
    assert isinstance(model.packed(x)["x"], torch.Tensor)
