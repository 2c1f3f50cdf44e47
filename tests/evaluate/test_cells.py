"""Cells of a new batch against the batch that they were drawn of; fold changes against quadrature."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_fmvae.distributions import NegativeBinomialObservation, PoissonObservation
from pyro_fmvae.evaluate import bound, differential_expression, with_new_batch
from pyro_fmvae.models import VAE, FactorialMixtureVAE
from pyro_fmvae.nn import CountDecoder, CountEncoder

GENES, TOTAL = 12, 300.0


def made(batches, hidden=(8,), make=FactorialMixtureVAE):
    """A model whose batches shift the genes."""
    torch.manual_seed(0)
    decoder = CountDecoder(4, GENES, batches, TOTAL, True, hidden)
    with torch.no_grad():
        decoder.log_concentration.fill_(2.0)
        decoder.first.weight[:, 4:] *= 3
    encoder = CountEncoder(GENES, batches, 4, hidden)
    shape = ((3, 2), 2, 50) if make is FactorialMixtureVAE else (4, 50)
    return make(encoder, decoder, NegativeBinomialObservation(GENES), *shape).to(torch.get_default_dtype())


def rows(counts, batch):
    return torch.cat([counts, torch.full((len(counts), 1), float(batch))], -1)


@pytest.mark.parametrize("make", [FactorialMixtureVAE, VAE])
@pytest.mark.parametrize("hidden", [(8,), ()])
def test_a_new_batch_is_learnt_and_nothing_else(make, hidden):
    model = made(2, hidden, make)
    old = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        shares = torch.randn(GENES).softmax(-1)  # as no batch of the model has them
    counts = torch.poisson(TOTAL * shares.expand(200, -1)) + 1
    x = rows(counts, 2)
    start, new = with_new_batch(model, x, 0), with_new_batch(model, x, 150)
    bounds = [bound(each, [(x,)])["elbo"] for each in (start, new)]
    assert bounds[1] > bounds[0] + 1
    known = rows(counts, 1)
    for name, tensor in model.encode(known).items():
        assert_close(new.encode(known)[name], tensor)
    for net, inputs in (("encoder", GENES), ("decoder", 4)):
        layer = next(name for name in old if name.startswith(net) and name.endswith("weight"))
        mean = old[layer][:, inputs:].mean(1)
        assert_close(start.state_dict()[layer][:, -1], mean)
        assert not torch.equal(new.state_dict()[layer][:, -1], mean)
        assert_close(new.state_dict()[layer][:, :-1], old[layer], rtol=0, atol=0)
        old.pop(layer)
    for name, value in old.items():  # of the copies, and of the model that they were made of
        assert_close(new.state_dict()[name], value, rtol=0, atol=0)
        assert_close(model.state_dict()[name], value, rtol=0, atol=0)


def test_the_genes_of_a_new_batch_are_shifted_as_its_cells_are():
    """Without hidden layers, the new weights are the shifts of the genes."""
    model = made(2, (), VAE)
    with torch.no_grad():
        model.decoder.linear.weight[:, :4] *= 0.1
    shares = torch.randn(GENES).softmax(-1)
    x = rows(torch.poisson(TOTAL * shares.expand(400, -1)), 2)
    new = with_new_batch(model, x, 600)
    found = new.reconstruct(x)[:, :-1].detach().mean(0)
    assert_close(found, x[:, :-1].mean(0), rtol=0.1, atol=1.0)
    others = model.reconstruct(rows(x[:, :-1], 1))[:, :-1].detach().mean(0)
    assert (others - x[:, :-1].mean(0)).abs().max() > 20


def test_fold_changes_are_those_of_quadrature():
    """Two genes of shares σ(z) and σ(-z) without hidden layers; one cell a group, so that only z is drawn."""
    torch.manual_seed(0)
    decoder = CountDecoder(1, 2, 0, 100.0, False, ())
    with torch.no_grad():
        decoder.linear.weight.copy_(torch.tensor([[0.5], [-0.5]]))
        decoder.linear.bias.zero_()
    encoder = CountEncoder(2, 0, 1, ())
    model = VAE(encoder, decoder, PoissonObservation(2), 1, 2).to(torch.get_default_dtype())
    groups = torch.tensor([[30.0, 5.0]]), torch.tensor([[2.0, 40.0]])
    offset, delta, draws = 0.5, 0.8, 20_000
    found = differential_expression(model, *groups, delta, draws, offset, 0)
    nodes = np.linspace(-8, 8, 801)
    logs, weights = [], stats.norm.pdf(nodes) / stats.norm.pdf(nodes).sum()
    for x in groups:
        q = model.posterior(x)
        z = q.mean.item() + q.stddev.item() * nodes
        logs.append(np.log2(100 / (1 + np.exp(-z)) + offset))
    change, weight = logs[0][:, None] - logs[1], weights[:, None] * weights
    mean, beyond = (weight * change).sum(), (weight * (np.abs(change) > delta)).sum()
    std = ((weight * (change - mean) ** 2).sum()) ** 0.5
    assert abs(found.lfc[0] - mean) < 4 * std / draws**0.5
    assert found.lfc_std[0] == pytest.approx(std, rel=0.04)
    assert 0.01 < beyond < 0.99
    assert abs(found.probability[0] - beyond) < 4 * (beyond * (1 - beyond) / draws) ** 0.5
    again = differential_expression(model, *groups, delta, draws, offset, 0)
    np.testing.assert_array_equal(found.lfc, again.lfc)


def test_batches_and_totals_do_not_count():
    model = made(2)
    with torch.no_grad():
        model.encoder.hidden[0].weight.zero_()  # every cell has the same q(z | x)
    few, many = rows(torch.ones(30, GENES), 0), rows(torch.full((40, GENES), 9.0), 1)
    found = differential_expression(model, few, many, 0.0, 2000, 0.0, 0)
    assert (np.abs(found.lfc) < 4 * found.lfc_std / 2000**0.5).all()
