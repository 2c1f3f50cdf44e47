import math
import time
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.data import Batches, Split
from pyro_fmvae.learn import Budget, fit, mixture_ascent
from pyro_fmvae.learn.coordinate_ascent import bound_of
from pyro_fmvae.learn.mixture import mixture_of_rows
from pyro_fmvae.learn.mixture_ascent import MixtureAscent
from pyro_fmvae.models import ObservedMixture

N = 60


def split(labels=False):
    torch.manual_seed(0)
    kinds = torch.arange(N) % 2
    x = torch.stack([4.0 * kinds - 2 + torch.randn(N), torch.randn(N)], -1)
    x[::8, 0] = torch.nan
    return Split(x.float(), kinds.unsqueeze(-1) if labels else None)


def run(batch_size, iterations=15, labels=False, order=0):
    rows = split(labels)

    def make(components, num_data):
        return ObservedMixture((0, 0), components, num_data, (2,) if labels else ())

    model = make(2, N)
    phase = MixtureAscent(model, make, Budget(iterations=iterations))
    records = list(fit([phase], Batches(rows, batch_size, seed=order, indexed=True)))
    return model, records


def test_the_loss_falls_with_all_rows_in_the_batch():
    model, records = run(N)
    losses = [record.loss for record in records[1:]]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(losses))
    assert losses[-1] == pytest.approx(-bound_of(model, model.table(model.observations(split().x))))


def test_the_start_does_not_depend_on_the_order_of_the_rows():
    one, other = (run(N, order=order)[0] for order in (0, 7))
    assert_close(one.locations(), other.locations())


def test_batches_come_near_to_it():
    whole, batched = run(N)[0], run(20, 60)[0]
    assert_close(whole.locations().sort(0).values, batched.locations().sort(0).values, rtol=0, atol=0.5)


def test_labels_are_learnt():
    model, _ = run(N, labels=True)
    known = ~split().x[:, 0].isnan()
    assert (model.codes(split().x)[known, 0] == (torch.arange(N) % 2)[known]).float().mean() > 0.9


def test_starts_take_a_quarter_of_the_minutes(caplog, monkeypatch):
    """Of no time, next to nothing is tried, and the log says so."""
    asked = []

    def asking(*args, until, **options):
        asked.append(until)
        return mixture_of_rows(*args, until=until, **options)

    monkeypatch.setattr(mixture_ascent, "mixture_of_rows", asking)
    for minutes in (None, 4.0, 1e-9):
        model = ObservedMixture((0, 0), 2, N)
        phase = MixtureAscent(model, partial(ObservedMixture, (0, 0)), Budget(1, minutes))
        phase.prepare(Batches(split(), N, indexed=True))
        assert ("not every start was tried" in caplog.text) == (minutes == 1e-9)
    assert asked[0] == math.inf and 50 < asked[1] - time.monotonic() < 60


def test_batches_need_their_rows():
    phase = MixtureAscent(ObservedMixture((0, 0), 2, N), lambda: None, Budget(iterations=1))
    phase.enter()
    with pytest.raises(ValueError, match="batch: expected the indices of its rows last"):
        phase.step(split().x)
