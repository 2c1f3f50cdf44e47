"""A model that goes on from one with fewer factors: the same reconstructions, the same λ."""

from copy import deepcopy

import pytest
import torch

from pyro_fmvae.distributions import BernoulliObservation, NegativeBinomialObservation
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.models.further_factors import regress_blocks, take_over
from pyro_fmvae.nn import ConvDecoder, ConvEncoder, CountDecoder, CountEncoder, MLPDecoder, MLPEncoder

SHAPE, DIM = (8, 8), 3


def make(factors, labelled=(), conv=False, hidden=(7, 5)):
    size = len(factors) * DIM
    pair = (
        (ConvEncoder(SHAPE, size, 0.1), ConvDecoder(size, SHAPE, 1, 0.1))
        if conv
        else (MLPEncoder(SHAPE, size, hidden), MLPDecoder(size, SHAPE, 1, hidden[::-1]))
    )
    return FactorialMixtureVAE(*pair, BernoulliObservation(2), factors, DIM, 100, labelled).eval()


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("standard", [False, True])
def test_other_factors_stay_as_they_were(conv, standard):
    old = make((2, 4, 3), (0,), conv)
    if standard:
        old.groups[0].use_standard()
    new = make((2, 2, 5, 4, 3), (0, 1, 2), conv)
    take_over(new, old, (0, 3, 4))
    x = torch.rand(6, *SHAPE).round()
    before, after = old.posterior(x), new.posterior(x)
    blocks = after.mean.unflatten(-1, (5, DIM)), after.stddev.unflatten(-1, (5, DIM))
    for block, part in zip(blocks, (before.mean, before.stddev), strict=True):
        torch.testing.assert_close(block[:, [0, 3, 4]].flatten(1), part)
    torch.testing.assert_close(new.decoder(after.mean), old.decoder(before.mean))
    gammas, known = new.responsibilities(x), old.responsibilities(x)
    for factor, place in enumerate((0, 3, 4)):
        torch.testing.assert_close(gammas[place], known[factor])


def make_of_counts(factors, labelled=(), batches=3):
    size = len(factors) * DIM
    pair = CountEncoder(5, batches, size, (7,)), CountDecoder(size, 5, batches, 30.0, True, (6,))
    return FactorialMixtureVAE(*pair, NegativeBinomialObservation(5), factors, DIM, 100, labelled).eval()


def test_batches_of_counts_are_still_told():
    old, new = make_of_counts((2, 4), (0,)), make_of_counts((2, 3, 4), (0, 1))
    take_over(new, old, (0, 2))
    batch = torch.arange(6)[:, None] % 3
    x = torch.cat([torch.randint(1, 9, (6, 5)), batch], -1).to(torch.get_default_dtype())
    total = x[:, :5].sum(-1, keepdim=True)
    before, after = old.posterior(x).mean, new.posterior(x).mean
    torch.testing.assert_close(after.unflatten(-1, (3, DIM))[:, [0, 2]].flatten(1), before)
    decoded = new.decoder(after, total, batch)
    torch.testing.assert_close(decoded, old.decoder(before, total, batch))
    assert not torch.allclose(decoded, new.decoder(after, total, (batch + 1) % 3))
    with pytest.raises(ValueError, match=r"other: encoder.hidden.0.weight is \(7, 7\) there, \(7, 8\) here"):
        take_over(make_of_counts((2, 3)), make_of_counts((3,), batches=2), (1,))


def test_the_other_model_is_left_alone():
    old = make((2, 4), (0,))
    state = deepcopy(old.state_dict())
    new = make((2, 3, 4), (0, 1))
    take_over(new, old, (0, 2))
    for parameter in new.parameters():
        parameter.data.add_(1.0)
    assert all(torch.equal(state[name], value) for name, value in old.state_dict().items())


def test_other_networks_are_refused():
    with pytest.raises(
        ValueError, match=r"other: encoder.hidden.0.weight is \(6, 64\) there, \(7, 64\) here"
    ):
        take_over(make((2, 3), (0,)), make((3,), hidden=(6, 5)), (1,))


def test_regressed_blocks_lie_at_the_centres_of_their_values():
    """Labels that are linear in the features are told by λ of the labelled points, and other blocks stay."""
    model = make((3, 4), (0,), hidden=(40, 40))
    x = torch.rand(90, *SHAPE).round()
    x[:, :3] = 0
    labels = torch.arange(90)[:, None] % 3
    for row, (value,) in enumerate(labels.tolist()):
        x[row, value] = 1
    before = model.posterior(x).mean[:, DIM:]
    unknown = labels.clone()
    unknown[60:] = -1
    regress_blocks(model, x, unknown, [0])
    q = model.posterior(x)
    torch.testing.assert_close(q.mean[:, DIM:], before)
    centres = torch.stack([q.mean[:60, :DIM][labels[:60, 0] == value].mean(0) for value in range(3)])
    nearest = torch.cdist(q.mean[60:, :DIM], centres).argmin(-1)
    assert (nearest == labels[60:, 0]).double().mean() > 0.9
    assert torch.allclose(centres.norm(dim=1), torch.tensor(3.0), rtol=0.1)
    assert (q.stddev[:, :DIM].std(0) < 1e-12).all()


def test_the_regression_is_the_ridge_regression_of_scikit_learn():
    from sklearn.linear_model import Ridge

    from pyro_fmvae.models.further_factors import RIDGE, _centres

    model = make((2, 4), (0,))
    x, labels = torch.rand(30, *SHAPE), torch.arange(30)[:, None] % 2
    features = model.encoder.hidden(x.flatten(1)).detach()
    regress_blocks(model, x, labels, [0])
    design = torch.cat([features, torch.ones(30, 1)], -1)
    alpha = 30 * RIDGE * design.square().mean().item()
    fitted = Ridge(alpha, fit_intercept=False).fit(design, _centres(2, DIM)[labels[:, 0]])
    found = model.posterior(x).mean[:, :DIM].detach()
    torch.testing.assert_close(found, torch.as_tensor(fitted.predict(design.numpy())), rtol=1e-6, atol=1e-8)
