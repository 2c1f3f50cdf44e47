"""Expressions of values that are not there, expanded, at point masses: their values by torch itself."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from pyro_fmvae.distributions.exponential_family import event_dim_of, natural_class
from pyro_fmvae.infer.elbo.expansion import Expansion, is_one
from pyro_fmvae.infer.elbo.expectation import Moments, expectation_of
from pyro_fmvae.infer.elbo.lazy import Lazy, NeedsValueError, Sampled, sites_of

D = torch.float64
SITES = {
    "real": dist.Normal(torch.zeros(3, 2, dtype=D), 1.0),
    "scalar": dist.Normal(torch.zeros((), dtype=D), 1.0),
    "vector": dist.MultivariateNormal(torch.zeros(3, 2, dtype=D), torch.eye(2, dtype=D)),
    "rate": dist.Gamma(2 * torch.ones(3, dtype=D), 1.0),
    "variance": dist.InverseGamma(3 * torch.ones(3, dtype=D), 1.0),
    "prob": dist.Beta(2 * torch.ones(3, dtype=D), 1.0),
    "simplex": dist.Dirichlet(torch.ones(3, 4, dtype=D)),
}
INDEX = torch.tensor([[2], [0], [2], [1]])
DATA = torch.linspace(-1, 1, 10, dtype=D).view(5, 2)
WEIGHTS = torch.arange(1, 13, dtype=D).view(3, 4)
KEPT = torch.tensor([True, False, True])

EXPRESSIONS = {
    "sum of squares": lambda v: ((1.5 - v["real"]) ** 2).sum(),
    "index": lambda v: v["real"][INDEX] * 2 - 1,
    "two indices": lambda v: v["real"][INDEX, torch.arange(2)],
    "slice": lambda v: v["real"][1:, ..., None],
    "gather": lambda v: v["real"].gather(0, INDEX.expand(-1, 2)),
    "Gaussian exponent": lambda v: -0.5 * (DATA[:, :1] - v["real"][:, 0]) ** 2 * v["rate"],
    "precision from a scale": lambda v: v["rate"].rsqrt() ** -2 + (1 / v["rate"].sqrt()).log(),
    "variance": lambda v: DATA[:, :1] / v["variance"].sqrt() ** 2 - v["variance"].sqrt().log(),
    "log of a product": lambda v: (2 * v["rate"] * v["prob"] / v["variance"]).log(),
    "xlogy": lambda v: torch.xlogy(DATA[:, :1], v["rate"]) + torch.log1p(-v["prob"]),
    "log of one minus": lambda v: (1 - v["prob"]).log(),
    "exp of logs": lambda v: (2 * v["rate"].log() + 0.3 - 2 * v["rate"].log()).exp(),
    "exp of a log": lambda v: (v["rate"].log() + DATA[0, 0]).exp(),
    "matrix times vector": lambda v: DATA @ v["vector"][0],
    "vector times matrix": lambda v: v["vector"][0] @ DATA.T,
    "matrices": lambda v: v["vector"] @ DATA.T,
    "its square": lambda v: (DATA @ v["vector"][0]).square(),
    "product of sites": lambda v: v["vector"][1] @ v["real"].T,
    "linear": lambda v: F.linear(DATA, v["vector"], v["rate"]),
    "einsum": lambda v: torch.einsum("nd,kd->kn", DATA, v["vector"]),
    "einsum of two": lambda v: torch.einsum("kd,kd->d", v["vector"], v["real"]),
    "mean": lambda v: v["real"].mean(0) + v["real"].mean(),
    "sum with keepdim": lambda v: v["real"] * v["vector"].sum(-1, keepdim=True),
    "cumsum": lambda v: v["real"].cumsum(0),
    "stack": lambda v: torch.stack([v["real"][:, 0], v["rate"]], -1),
    "cat": lambda v: torch.cat([v["real"], v["vector"]], 1) * 3,
    "where": lambda v: torch.where(KEPT, v["real"][:, 0], v["rate"]),
    "log of roots": lambda v: (
        torch.cat([v["rate"], v["prob"]]).rsqrt().log() - (2 * torch.cat([v["prob"], v["rate"]])).sqrt().log()
    ),
    "log of where": lambda v: torch.where(KEPT, v["prob"], v["rate"]).log(),
    "reshape": lambda v: v["real"].reshape(2, 3).T.flatten(),
    "broadcast": lambda v: v["scalar"].expand(4, 3) * torch.arange(3, dtype=D),
    "stick-breaking": lambda v: (
        F.pad(v["prob"], (0, 1), value=1) * F.pad((1 - v["prob"]).cumprod(-1), (1, 0), value=1)
    ).log(),
    "normalised probabilities": lambda v: dist.Categorical(v["simplex"]).logits[1:],
    "normalised logits": lambda v: dist.Categorical(logits=v["simplex"].log()).logits,
    "rows of probabilities": lambda v: dist.Categorical(v["simplex"][INDEX[:, 0]]).logits,
    "padding": lambda v: F.pad(v["real"], (1, 0), value=2.5) + F.pad(v["rate"][:1], (-1, 3)),
    "log of a padding that cuts off": lambda v: F.pad(v["prob"], (-1, 1), value=1.0).log(),
    "masked_fill": lambda v: v["real"].masked_fill(KEPT[:, None], 0.5) ** 2,
    "power of masked_fill": lambda v: v["rate"].masked_fill(KEPT, 0.5).rsqrt().log(),
    "repeat": lambda v: v["rate"].repeat(2, 2).rsqrt() ** -2,
    "tile": lambda v: v["real"].tile(2) ** 2,
    "repeat_interleave": lambda v: v["prob"].repeat_interleave(2).log(),
    "repeated by numbers": lambda v: (
        v["rate"].repeat_interleave(torch.tensor([1, 0, 2]), output_size=3).log()
    ),
    "hstack": lambda v: torch.hstack([v["real"], v["vector"], v["real"]]),
    "vstack of a value and numbers": lambda v: torch.vstack([v["real"], DATA]) ** 2,
    "roll": lambda v: v["simplex"].roll(1, -1).log(),
    "ravel": lambda v: v["real"].ravel(),
    "triangle": lambda v: v["real"].tril(),
    "diag_embed": lambda v: v["rate"].diag_embed(),
    "embedding": lambda v: (
        F.embedding(INDEX[:, 0], v["real"]) + F.embedding(INDEX[:, 0], v["rate"][:, None]).log()
    ),
    "mask as an index": lambda v: v["real"][KEPT] ** 2 + v["real"][KEPT, 1:],
    "scatter": lambda v: v["rate"].scatter(0, INDEX[1:2, 0], 2.0).log(),
    "diff": lambda v: v["real"].diff(dim=0) ** 2,
    "outer": lambda v: torch.outer(v["rate"], v["real"][:, 0]),
    "index_add": lambda v: torch.zeros(4, 2, dtype=D).index_add(0, INDEX[[0, 1, 0], 0], v["real"]) ** 2,
    "scatter_add": lambda v: torch.ones(4, dtype=D).scatter_add(0, INDEX[:3, 0], v["rate"]),
    "tensordot": lambda v: torch.tensordot(DATA, v["real"], dims=([1], [1])),
    "conv1d": lambda v: F.conv1d(v["real"].T[None], DATA.T[None, :, :2], padding=1),
    "addmm": lambda v: torch.addmm(DATA @ DATA.T[:, :3], DATA, v["real"].T, alpha=0.5),
    "a diagonal by einsum": lambda v: torch.einsum("kii->k", v["real"][:2].expand(3, 2, 2)),
    "changed in place": lambda v: changed_in_place(v["real"]) ** 2,
    "elements set": lambda v: elements_set(v["real"] * 2),
    "power of cases": lambda v: torch.where(KEPT, v["rate"].rsqrt(), v["variance"].sqrt()) ** -2,
    "power of cases, one known": lambda v: torch.where(KEPT, 0.1, v["rate"]).rsqrt() ** -2 + 1.0,
    "power of an index into a stack": lambda v: (
        (2 * torch.stack([v["rate"], 3 * v["rate"]])[INDEX[3, 0]].rsqrt()) ** -2
    ),
    "quotient of cases": lambda v: v["real"][:, 0] / (3 * torch.where(KEPT, v["variance"], 2.0)),
    "normalised cases": lambda v: dist.Categorical(torch.where(KEPT[:, None], v["simplex"], WEIGHTS)).logits,
    "inverse of a diagonal": lambda v: torch.cholesky_inverse(
        torch.linalg.cholesky((1 / v["rate"]).diag_embed().expand(2, 3, 3))
    ),
    "log det of a diagonal": lambda v: (
        (v["rate"].expand(2, 3).diag_embed() * 1).diagonal(dim1=-2, dim2=-1).log()
        + v["rate"].diag_embed().expand(2, 3, 3).logdet()[:, None]
    ),
    "ones like a value": lambda v: torch.ones_like(v["real"]) * v["real"],
}


def changed_in_place(x):
    total = x[:, 0] * 0
    for column in range(2):
        total += DATA[:3, column] * x[:, column]
    total.sub_(1).mul_(2)
    total += total
    return total


def elements_set(x):
    x[0] = 0.0
    x[KEPT, 1] = DATA[:2, 0]
    x.masked_fill_(DATA[:3] < -0.9, 2.0)
    return x


def lazy(name):
    fn = SITES[name]
    return Lazy.make(fn.shape(), D, torch.device("cpu"), Sampled(name, fn.support))


def check_at_point_masses(expression):
    torch.manual_seed(0)
    values = {site: fn.sample() for site, fn in SITES.items()}
    moments = {}
    for site, fn in SITES.items():
        family = natural_class(fn).family
        moments[site] = Moments(family, family.stats(values[site]), values[site].shape)
        assert values[site].dim() >= event_dim_of(family)
    value = expression({site: lazy(site) for site in SITES})
    result = expectation_of(Expansion({}).of(value), value.shape, moments, D, torch.device("cpu"))
    assert_close(result, expression(values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expansion_at_point_masses(name):
    check_at_point_masses(EXPRESSIONS[name])


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("real", lambda x: x.exp()),
        ("real", lambda x: x.relu()),
        ("real", lambda x: torch.zeros(4)[x.long()]),
        ("rate", lambda x: (1 + x).log()),
        ("prob", lambda x: 1 / (1 + x)),
        ("simplex", lambda x: (x / x[..., :2].sum(-1, keepdim=True)).log()),
        ("real", lambda x: (x * DATA[:3]).logsumexp(-1)),
    ],
)
def test_what_is_no_sum_of_products(name, use):
    with pytest.raises(NeedsValueError, match=f"site '{name}': its value is needed") as error:
        Expansion({}).of(use(lazy(name)))
    assert error.value.sites == {name}


@pytest.mark.parametrize(
    "use",
    [
        lambda x: bool(x.sum() > 0),
        lambda x: x[0, 0].item(),
        lambda x: torch.zeros(3, 2, dtype=D).copy_(x),
        lambda x: x.add_(1),
        lambda x: x.nonzero(),
        lambda x: x[0].add_(1),
        lambda x: (x * 2, y := x * 1, y[0], y.add_(1)),
        lambda x: torch.zeros(3, 2, dtype=D).__setitem__(0, x[0]),
        lambda x: torch.mul(x, 2, out=torch.zeros(3, 2, dtype=D)),
    ],
)
def test_numbers_that_are_not_there(use):
    with pytest.raises(NeedsValueError, match="site 'real': its value is needed"):
        use(lazy("real"))


def test_what_a_value_was_computed_from():
    value = lazy("real").sum() * lazy("rate") + 1
    assert sites_of([value, 3]) == {"real", "rate"}
    assert value.shape == (3,) and value.dtype == D and "3" in repr(value)


def test_distributions_of_values_that_are_not_there_pass_their_checks():
    scale = lazy("rate").rsqrt()
    fn = dist.Normal(lazy("real")[:, 0], scale, validate_args=True)
    assert fn.batch_shape == (3,)
    with pytest.raises(ValueError, match="within the support"):
        dist.Poisson(lazy("rate"), validate_args=True).log_prob(torch.tensor(-1.0, dtype=D))


def test_arrays_of_numpy_that_print_alike_are_different_indices():
    x = Lazy.make(torch.Size([3]), torch.float32, torch.device("cpu"), Sampled("x", dist.constraints.real))
    with np.printoptions(legacy="1.25"):
        assert [x[np.zeros(count, dtype=np.int64)].shape for count in (2000, 3000)] == [(2000,), (3000,)]


def test_tensors_that_are_changed_in_place_later_are_refused():
    regressor, x = torch.ones(3, dtype=D), lazy("real")[:, 0]
    product, copy = x * regressor, x * regressor.clone()
    log = (lazy("rate") * regressor).log
    regressor += 1
    assert Expansion({}).of(copy)
    for value in (product, log()):
        with pytest.raises(
            NeedsValueError, match=r"for 'mul' with a tensor that is changed in place later\)"
        ):
            Expansion({}).of(value)
    assert Expansion({}).of(x * regressor)


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (lambda rate, x: (rate * x).log(), lambda x: torch.where(x > 0, 1 / x, 0.0)),
        (lambda rate, x: torch.linalg.cholesky(rate * (x @ x.mT)).diagonal().log(), lambda x: x.inverse().mT),
        (lambda rate, x: (rate * x).log().diagonal(), lambda x: (1 / x.diagonal()).diag_embed()),
    ],
)
def test_logarithms_of_learnt_zeros_have_no_gradient(function, slope):
    factor = torch.tensor([[2.0, 0.0], [0.5, 3.0]], dtype=D, requires_grad=True)
    value = function(lazy("rate")[0], factor)
    family = natural_class(SITES["rate"]).family
    rates = torch.ones(3, dtype=D)
    moments = {"rate": Moments(family, family.stats(rates), rates.shape)}
    found = expectation_of(Expansion({}).of(value), value.shape, moments, D, torch.device("cpu"))
    found.clamp(min=-1e9).sum().backward()
    assert_close(factor.grad, slope(factor.detach()))


def test_columns_of_the_same_shape_may_hold_other_numbers():
    known = {}
    p = lazy("simplex")
    whole, twice = torch.arange(p.shape[-1]), torch.zeros(p.shape[-1], dtype=torch.int64)
    rows = torch.tensor([[0], [1]])
    for columns, adds in ((whole, True), (twice, False), (whole.flip(0), True)):
        assert is_one(p[rows, columns].sum(-1), known) == adds


WHOLE = torch.zeros(3, dtype=torch.int64)
READ = {
    "axis": lambda v: v["real"].sum(axis=0),
    "axis, keepdims": lambda v: v["real"] * torch.sum(v["real"], axis=-1, keepdims=True),
    "by position": lambda v: v["real"] * torch.sum(v["real"], (0, 1), True),
    "input by name": lambda v: torch.sum(input=v["real"], dim=0),
    "another float": lambda v: v["real"].sum(0, dtype=D),
    "mean, axis": lambda v: v["real"].mean(axis=-1),
    "cumsum, axis": lambda v: torch.cumsum(v["real"], axis=1),
    "stack, axis": lambda v: torch.stack([v["rate"], v["rate"] / 2, v["real"][:, 0]], axis=1),
    "cat, axis": lambda v: torch.cat([v["real"], v["vector"]], axis=1),
    "add, alpha": lambda v: torch.add(v["rate"], v["real"][:, 0], alpha=2),
    "sub, alpha": lambda v: v["rate"].sub(v["real"][:, 0], alpha=2),
    "rsub, alpha": lambda v: torch.rsub(v["rate"], 1, alpha=2),
    "other by name": lambda v: torch.mul(v["rate"], other=v["real"][:, 0]) + v["rate"].add(other=v["rate"]),
    "exponent by name": lambda v: v["variance"].pow(exponent=-1),
    "where": lambda v: torch.where(KEPT, v["rate"], v["real"][:, 0]),
    "method where": lambda v: (
        v["rate"].where(KEPT, v["real"][:, 0]) + torch.zeros(3, dtype=D).where(KEPT, v["rate"])
    ),
    "log of method where": lambda v: v["rate"].where(KEPT, v["prob"]).log(),
    "sum of a scalar": lambda v: v["scalar"].sum(-1) + v["scalar"].mean(0, keepdim=True),
    "one linear function": lambda v: F.linear(v["vector"], DATA[0]),
    "an integer in a tensor": lambda v: v["rate"] * torch.tensor(2) + v["real"][torch.tensor(1), 0],
    "view of a broadcast product": lambda v: (v["rate"].unsqueeze(-1) * DATA[0]).view(-1),
    "a guard of a rate": lambda v: v["rate"].clamp(min=1e-10).log() + v["rate"][[0, 0, 1]].clamp(min=0.0),
    "a guard of a share": lambda v: (
        v["prob"].clamp(1e-8, 1 - 1e-8).log() + v["simplex"][:, 0].clamp(0, 1).log()
    ),
}
NOT_READ = {
    "whole numbers": lambda v: v["rate"].sum(dtype=torch.int64),
    "to whole numbers": lambda v: v["rate"].to(torch.int64),
    "as whole numbers": lambda v: v["rate"].type_as(WHOLE),
    "rounding": lambda v: torch.div(v["rate"], 2, rounding_mode="floor"),
    "a clamp of a real": lambda v: v["real"].clamp(min=0.0),
    "a clamp of a real from above": lambda v: v["real"].clamp(max=1.0),
    "a clamp of a rate from above": lambda v: v["rate"].clamp(0.0, 1.0),
    "a clamp of a difference": lambda v: (v["rate"] - 1).clamp(min=0.0),
    "the other factor": lambda v: torch.linalg.cholesky(torch.eye(2, dtype=D) / v["rate"][0], upper=True),
    "a wide clamp": lambda v: v["real"].clamp(-1e20, 1e20),
    "a threshold": lambda v: F.hardshrink(v["scalar"], 1e-3),
    "another threshold": lambda v: F.hardshrink(v["real"], 1e-2),
    "a rectifier of one number": lambda v: F.relu(v["scalar"]),
    "the largest": lambda v: v["real"].amax(0),
    "sorting": lambda v: v["real"].sort(0)[0],
    "rounding to whole numbers": lambda v: v["real"].round(),
    "a power in a tensor": lambda v: v["rate"] ** torch.tensor([1, 1, 1]),
    "a remainder": lambda v: v["rate"].fmod(1e12),
    "a random choice": lambda v: F.dropout(v["scalar"], 0.5),
    "products of two": lambda v: torch.addcmul(v["real"], v["real"], v["vector"]),
    "a large matrix": lambda v: v["real"].expand(2000, 3, 2).diff(dim=0),
    "a larger one": lambda v: torch.maximum(v["real"], torch.tensor(0)),
    "of the other factor": lambda v: torch.cholesky_inverse(torch.eye(2, dtype=D) * v["rate"][0], True),
}


@pytest.mark.parametrize("name", READ)
def test_arguments_are_read_however_they_are_written(name):
    check_at_point_masses(READ[name])


@pytest.mark.parametrize("name", NOT_READ)
def test_arguments_without_a_rule_are_refused(name):
    value = NOT_READ[name]({site: lazy(site) for site in SITES})
    with pytest.raises(NeedsValueError):
        Expansion({}).of(value)
    with pytest.raises(NeedsValueError):
        Expansion({}).log(value)
