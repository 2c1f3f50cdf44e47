"""Rows whose statistics are computed once have the table and the update of the rows themselves."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.learn.mixture_steps import ascend
from pyro_fmvae.models import ObservedMixture
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


def test_statistics_that_are_too_many_are_not_kept(monkeypatch):
    model, x = ObservedMixture((0, 0, 0), 2, 10, full=True), torch.zeros(10, 3)
    monkeypatch.setattr(module, "LARGEST", 10 * 11)
    assert isinstance(model.packed(x)["x"], PackedNumbers)
    monkeypatch.setattr(module, "LARGEST", 10 * 11 - 1)
    assert isinstance(model.packed(x)["x"], torch.Tensor)
