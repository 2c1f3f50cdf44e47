import copy
import io
import math
import re

import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.inspect import get_model_relations
from scipy import stats

from pyro_fmvae import (
    BernoulliObservation,
    CapturedSVI,
    ConjugateSVI,
    FactorialMixtureVAE,
    GaussianObservation,
    Hyperprior,
    NaturalGradient,
    NormalGamma,
    Role,
    TraceConjugate_ELBO,
)
from pyro_fmvae.distributions import NORMAL_GAMMA
from pyro_fmvae.infer.posteriors import to_standard
from pyro_fmvae.infer.seeding import kmeans_mixture
from pyro_fmvae.models.label_predictor import LabelPredictor
from pyro_fmvae.nn import ConvDecoder, ConvEncoder
from tests.infer.programs import seeded
from tests.models.small import (
    SHAPE,
    binary_data,
    brute_force,
    drawn_z,
    factor_losses,
    losses,
    posterior_of,
    small_model,
)


def some_labels(sizes, size=20):
    """int64 [B, columns], a third of them unknown."""
    return torch.stack([torch.randint(-1, k, (size,)) for k in sizes], -1)


def centred(model, precision=1e9):
    """Make λ as good as certain that every component is N(0, I)."""
    for group in model.factor_groups():
        shape = (len(group.factors), group.num_components)
        parts = [
            torch.full((*shape, n), value)
            for n, value in ((1, 1), (1, -0.5), (model.dim, -1), (model.dim, 0))
        ]
        group.set_natural(torch.ones(shape).unsqueeze(-2), precision * torch.cat(parts, -1))
    return model


@pytest.mark.parametrize(
    ("sizes", "labelled"),
    [((3,), ()), ((1,), ()), ((2, 2), ()), ((1, 4, 1), ()), ((3, 2, 3, 4), (3, 0)), ((2, 2, 2), (0, 1, 2))],
)
def test_bound_is_brute_force_evaluation(sizes, labelled):
    model, x = small_model(sizes, labelled=labelled), binary_data(7)
    labels = some_labels([sizes[i] for i in labelled], 7) if labelled else None
    expected = brute_force(model, x, labels)
    for role, value in losses(model, x, *(() if labels is None else (labels,))).items():
        assert value.item() == pytest.approx(expected[role].item(), rel=1e-9), role


def test_hyperpriors_are_arguments():
    prior = Hyperprior(c0=0.7, m0=-1.0, s0=0.3, a0=2.0, b0=0.5)
    model, x = small_model((2, 3), hyperprior=prior), binary_data(5)
    expected = brute_force(model, x, prior=prior)
    assert losses(model, x)[Role.KL_GLOBAL].item() == pytest.approx(expected[Role.KL_GLOBAL].item(), rel=1e-9)


@pytest.mark.parametrize("name", ["c0", "s0", "a0", "b0"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_hyperprior_refuses(name, value):
    with pytest.raises(ValueError, match=rf"^{name}: expected a number > 0, got {value}"):
        Hyperprior(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_hyperprior_refuses_m0(value):
    with pytest.raises(ValueError, match=r"^m0: expected a finite number"):
        Hyperprior(m0=value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labelled": (2,)}, "labelled"),
        ({"labelled": (1, 1)}, "labelled"),
        ({"labelled": (-1,)}, "labelled"),
    ],
)
def test_constructor_refuses(changes, message):
    arguments = {"num_components": (2, 2), "dim": 2, "num_data": 5, **changes}
    network = torch.nn.Identity()
    with pytest.raises(ValueError, match=rf"^{message}.*: expected"):
        FactorialMixtureVAE(network, network, BernoulliObservation(1), **arguments)


def test_one_component_at_the_standard_normal_is_the_plain_vae():
    model, x = centred(small_model((1, 1))), binary_data(7)
    mixture, plain = losses(model, x), losses_of_vae(model.pretraining(), x)
    assert mixture[Role.KL_R].item() == 0
    assert mixture[Role.KL_Z].item() == pytest.approx(plain[Role.KL_Z].item(), rel=1e-7)
    gap = mixture[Role.RECONSTRUCTION] - plain[Role.RECONSTRUCTION]
    assert gap.abs() < 0.2 * plain[Role.RECONSTRUCTION]  # not the same z


def losses_of_vae(vae, x):
    pyro.set_rng_seed(3)
    with torch.no_grad():
        return TraceConjugate_ELBO().loss_per_role(vae.model, vae.guide, x)


def test_parameters_as_points_through_delta_sites():
    """ξ as point parameters: VaDE's model. KL[z] and KL[r] then are those of a plain Gaussian mixture."""
    model, x = small_model((3,)), binary_data(7)
    weights = torch.tensor([[[0.2, 0.5, 0.3]]])
    loc, precision = torch.randn(1, 3, 2), 1 + torch.rand(1, 3, 2)

    def guide(x):
        factors, components = model.factor_groups()[0].plates
        with factors:
            pyro.sample("weights", pyro.distributions.Delta(weights, event_dim=1))
            with components:
                pyro.sample(
                    "loc_precision", pyro.distributions.Delta(torch.stack([loc, precision], -2), event_dim=2)
                )
        mean, scale = (t.unsqueeze(0) for t in model.encoder(x))
        with pyro.plate("data", model.num_data, subsample=torch.arange(len(x)), dim=-1), factors:
            pyro.sample("z", pyro.distributions.Normal(mean, scale).to_event(1))

    with torch.no_grad():
        actual = TraceConjugate_ELBO().loss_per_role(model.model, guide, x)
        mean, scale = model.encoder(x)
    q = torch.distributions.Normal(mean.unsqueeze(1), scale.unsqueeze(1))  # [B, 1, D]
    p = torch.distributions.Normal(loc, precision.rsqrt())  # [1, K, D]
    divergence = torch.distributions.kl_divergence(q, p).sum(-1)
    gamma = (weights[0].log() - divergence).softmax(-1)
    per_point = model.num_data / len(x)
    assert actual[Role.KL_Z].item() == pytest.approx(per_point * (gamma * divergence).sum().item())
    kl_r = per_point * (gamma * (gamma / weights[0]).log()).sum().item()
    assert actual[Role.KL_R].item() == pytest.approx(kl_r)


@pytest.mark.parametrize("sizes", [(3, 3), (2, 3)])
def test_vectorised_particles(sizes):
    model, x = small_model(sizes), binary_data(6)
    elbo = TraceConjugate_ELBO(num_particles=400, vectorize_particles=True, max_plate_nesting=2)
    with torch.no_grad():
        many, one = elbo.loss_per_role(model.model, model.guide, x), losses(model, x)
        loc, scale = model.encoder(x)
        z = loc + scale * torch.randn(400, *loc.shape)
        log_likelihood = model.observation(model.decoder(z)).log_prob(x).sum(-1) * model.num_data / len(x)
    for role in (Role.KL_Z, Role.KL_R, Role.KL_GLOBAL):
        assert many[role].item() == pytest.approx(one[role].item(), rel=1e-9), role
    error = 5 * log_likelihood.std().item() * math.sqrt(2 / 400)
    assert -many[Role.RECONSTRUCTION].item() == pytest.approx(log_likelihood.mean().item(), abs=error)


def step(model, x, *labels):
    adam = NaturalGradient(0.5, lambda p: torch.optim.Adam(p, lr=1e-2))
    return ConjugateSVI(model.model, model.guide, adam, TraceConjugate_ELBO()).step(x, *labels)


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module, before):
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def test_two_models_in_one_process():
    first, second, x = small_model((2, 3)), small_model((2, 3)), binary_data()
    before = copy_of(first), copy_of(second)
    step(first, x)
    assert changed(first, before[0]) == set(before[0])
    assert changed(second, before[1]) == set()
    step(second, x)
    assert changed(second, before[1]) == set(before[1])
    assert list(pyro.get_param_store().keys()) == []


@pytest.mark.parametrize(
    ("sizes", "labelled", "size", "labels"),
    [
        ((1,), (), 20, None),
        ((2,), (), 1, None),
        ((2, 3), (0,), 20, -1),
        ((2, 3), (0,), 20, 1),
        ((1, 3), (0,), 1, 0),
        ((2,), (), 50, None),
    ],
    ids=["K=1", "one point", "all unknown", "all known", "K=1 labelled", "more than N"],
)
def test_edge_cases_take_finite_steps(sizes, labelled, size, labels):
    model = small_model(sizes, labelled=labelled)
    before = copy_of(model)
    given = () if labels is None else (torch.full((size, len(labelled)), labels),)
    assert math.isfinite(step(model, binary_data(size), *given))
    assert changed(model, before) == set(before)
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_full_natural_step_is_the_exact_posterior_of_labelled_points():
    model, x = small_model((2,), num_data=20, labelled=(0,)), binary_data(20)
    y = torch.arange(20) % 2
    loc, scale = (t.detach() for t in model.encoder(x))
    optim = NaturalGradient(1.0, lambda p: torch.optim.SGD(p, lr=0.0))
    ConjugateSVI(model.model, model.guide, optim, TraceConjugate_ELBO()).step(x, y.unsqueeze(-1))
    c, m, s, a, b = posterior_of(model, 0)
    assert c.tolist() == pytest.approx([11, 11])
    for k in range(2):
        rows = y == k
        mean = loc[rows].sum(0) / 11  # s0 = 1 at m0 = 0
        assert torch.allclose(m[k], mean)
        squares = (loc[rows] ** 2 + scale[rows] ** 2).sum(0)
        assert torch.allclose(b[k], 0.01 + 0.5 * (squares - 11 * mean**2))
        assert (s[k].item(), a[k].item()) == pytest.approx((11, 5.01))


def test_responsibilities_and_codes():
    sizes = (3, 2, 3)
    model, x = small_model(sizes, labelled=(1,)), binary_data(6)
    gammas = model.responsibilities(x)
    for factor, gamma in enumerate(gammas):
        assert gamma.shape == (6, sizes[factor])
        assert torch.allclose(gamma.sum(-1), torch.ones(6))
        kl_z, kl_r = factor_losses(model, factor, x)
        c = posterior_of(model, factor)[0]
        log_weights = c.digamma() - c.sum().digamma()
        assert torch.allclose((gamma * (gamma.log() - log_weights)).sum(-1), kl_r)
        assert kl_z.shape == kl_r.shape
    assert torch.equal(model.codes(x), torch.stack([gamma.argmax(-1) for gamma in gammas], -1))


def test_labels_with_a_predictor_are_told_by_it():
    """Also by a copy into which the state is loaded; other factors keep their codes."""
    model, copied, x = *(small_model((3, 3, 2), labelled=(0, 2)) for _ in range(2)), binary_data(6)
    assert torch.equal(model.predicted_codes(x), model.codes(x))
    predictor = LabelPredictor(x[0].numel(), 2, 1, 1)
    predictor.weights.copy_(torch.tensor([0.0, 1.0, 0.0]))
    predictor.regression.weight.zero_()[0] = torch.where(torch.arange(x[0].numel()) == 0, 2.0, 0.0)
    predictor.regression.bias.copy_(torch.tensor([0.0, 1.0]))
    model.predictors["1"] = predictor
    copied.match(model.state_dict())
    copied.load_state_dict(model.state_dict())
    for each in (model, copied):
        found = each.predicted_codes(x)
        assert torch.equal(found[:, :2], model.codes(x)[:, :2])
        assert torch.equal(found[:, 2], (x.flatten(1)[:, 0] == 0).long())


@torch.no_grad()
def test_log_weights_lie_between_the_bounds():
    model, x = small_model((2, 3)), binary_data(8)
    log_weights = model.log_weights(x, 800)
    assert log_weights.shape == (800, 8)
    collapsed = log_weights.mean(0)
    weighted = log_weights.logsumexp(0) - math.log(800)
    assert (weighted >= collapsed).all()
    kl = sum(sum(factor_losses(model, factor, x)) for factor in range(2))
    loc, scale = model.encoder(x)
    z = loc + scale * torch.randn(4000, *loc.shape)
    log_likelihood = model.observation(model.decoder(z)).log_prob(x)
    eleven = log_likelihood.mean(0) - kl
    error = 4 * (log_weights.std(0) / math.sqrt(800) + log_likelihood.std(0) / math.sqrt(4000))
    assert (collapsed >= eleven - error).all()
    assert (collapsed > eleven + error).any()  # it is tighter


def student(model, factor, k):
    """The predictive density of component k, by scipy."""
    _, m, s, a, b = (t.detach().numpy() for t in posterior_of(model, factor))
    return stats.t(2 * a[k], m[k], ((s[k] + 1) / s[k] * b[k] / a[k]) ** 0.5)


@pytest.mark.parametrize("sizes", [(3,), (1,), (3, 2, 3)])
@pytest.mark.parametrize("at_once", [1, 2**17])
def test_log_prior_is_brute_force_sum(sizes, at_once, monkeypatch):
    monkeypatch.setattr("pyro_fmvae.models.factorial_prior._IN_CACHE", at_once)
    model, z = small_model(sizes), torch.randn(4, len(sizes) * 2)
    for row, actual in zip(z.numpy(), model.log_prior(z), strict=True):
        expected = 0.0
        for factor, components in enumerate(sizes):
            c = posterior_of(model, factor)[0]
            part = row[2 * factor : 2 * factor + 2]
            density = sum(
                (c[k] / c.sum()).item() * student(model, factor, k).pdf(part).prod()
                for k in range(components)
            )
            expected += math.log(density)
        assert actual.item() == pytest.approx(expected, rel=1e-9)


def test_sample_latent_follows_the_predictive_of_the_given_components():
    model, n = small_model((3, 2, 3)), 4000
    z = model.sample_latent(n, torch.tensor([[2, 0, 1]]).expand(n, -1))
    for factor, k in enumerate((2, 0, 1)):
        for d in range(2):
            law = student(model, factor, k)
            column = z[:, 2 * factor + d].numpy()
            one = stats.t(law.args[0], law.args[1][d], law.args[2][d])
            assert stats.kstest(column, one.cdf).pvalue > 1e-4


@pytest.mark.parametrize("sizes", [(2,), (2, 3)])
def test_no_samples_at_all(sizes):
    model, none = small_model(sizes), torch.empty(0, len(sizes), dtype=torch.int64)
    for codes in (None, none):
        assert torch.equal(model.sample_codes(0, codes), none)
        assert model.sample_latent(0, codes).shape == model.pretraining().sample_latent(0).shape
    with pytest.raises(RuntimeError):
        model.sample_latent(-1)


def test_sample_codes_draws_what_is_not_given():
    model, n = small_model((3, 2, 4)), 4000
    codes = model.sample_codes(n, torch.tensor([[-1, 1, -1]]).expand(n, -1))
    assert codes.shape == (n, 3)
    assert (codes[:, 1] == 1).all()
    for factor in (0, 2):
        c = posterior_of(model, factor)[0]
        counts = torch.bincount(codes[:, factor], minlength=len(c))
        assert stats.chisquare(counts, n * (c / c.sum()).numpy()).pvalue > 1e-4
    assert model.sample_codes(5).shape == (5, 3)
    assert model.sample_latent(5).shape == (5, 6)


def test_used_components_are_those_above_a_twentieth_of_an_equal_share():
    model = small_model((2, 4, 2), num_data=80)  # thresholds 2 and 1
    counts = {2: [[2.0, 2.001], [2.5, 50.0]], 4: [[1.0, 0.9, 1.1, 70.0]]}
    for group in model.factor_groups():
        weights = torch.tensor(counts[group.num_components]).unsqueeze(-2) + group.hyperprior.c0
        group.set_natural(weights, group.loc_precision.natural_value())
    assert model.used_components() == [1, 2, 2]


def clusters_of(centres, size=40, dim=2):
    """Points [M, D] near their centres, and the index of each one's centre."""
    members = torch.arange(size) % len(centres)
    return centres[members].unsqueeze(-1) + 0.01 * torch.randn(size, dim), members


def test_seed_starts_from_labels_and_from_clusters():
    model = small_model((2, 3, 2), num_data=400, labelled=(2,))
    labelled, y = clusters_of(torch.tensor([-3.0, 3.0]))
    clustered, _ = clusters_of(torch.tensor([-9.0, 0.0, 9.0]))
    two, _ = clusters_of(torch.tensor([5.0, -5.0]))
    loc = torch.cat([two, clustered, labelled], -1)
    y = y.where(torch.arange(40) < 30, -1).unsqueeze(-1)
    model.seed(loc, torch.full_like(loc, 0.1), y, torch.Generator().manual_seed(0))
    c, m, s, a, _ = posterior_of(model, 2)  # component k is label k; m shrinks by s0 = 1 of 201
    assert m[:, 0].tolist() == pytest.approx([-3, 3], rel=0.02)
    assert c.tolist() == pytest.approx([201, 201])
    assert s.tolist() == pytest.approx([201, 201])
    assert a.tolist() == pytest.approx([100.01, 100.01])
    for factor, centres in ((0, [-5, 5]), (1, [-9, 0, 9])):
        c, m, *_ = posterior_of(model, factor)
        assert sorted(m[:, 0].tolist()) == pytest.approx(centres, rel=0.02, abs=0.02)
        assert (c - 1).sum().item() == pytest.approx(400)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(10, 2).long(), "expected int64 [20, 2], got torch.int64 [10, 2]"),
        (torch.zeros(20, 1).long(), "expected int64 [20, 2], got torch.int64 [20, 1]"),
        (torch.zeros(20, 3).long(), "expected int64 [20, 2], got torch.int64 [20, 3]"),
        (torch.zeros(20, 2), "expected int64 [20, 2], got torch.float32 [20, 2]"),
        (torch.tensor([[0, 0], [3, 1]]).repeat(10, 1), "expected -1 to 2 of column 0, got 3"),
        (torch.tensor([[0, 0], [2, -5]]).repeat(10, 1), "expected -1 to 1 of column 1, got -5"),
    ],
)
def test_seed_refuses_labels_that_do_not_fit(labels, message):
    model, encoded = small_model((2, 4, 3), labelled=(2, 0)), torch.ones(20, 6)
    before = copy_of(model)
    with pytest.raises(ValueError, match=f"^{re.escape('labels: ' + message)}$"):
        model.seed(encoded, encoded, labels, torch.Generator())
    assert changed(model, before) == set()


def test_a_scale_of_another_shape_is_refused():
    model, loc, generator = small_model((2, 3)), torch.ones(20, 4), torch.Generator()
    for scale in (torch.ones(1, 4), torch.ones(4), torch.ones(19, 4)):
        message = re.escape(f"scale: expected the shape [20, 4] of loc, got {list(scale.shape)}")
        with pytest.raises(ValueError, match=f"^{message}$"):
            model.seed(loc, scale, None, generator)
        with pytest.raises(ValueError, match=f"^{message}$"):
            model.restart(loc, scale, generator)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32])
def test_labels_and_codes_are_integers_of_any_size(kind):
    x, y = binary_data(20), torch.arange(20).unsqueeze(-1) % 2
    asked = (
        lambda model, y: losses(model, x, y),
        lambda model, y: TraceConjugate_ELBO().loss(model.prior_model, model.prior_guide, x, y),
        lambda model, y: model.seed(*model.encoder(x), y, torch.Generator().manual_seed(0)),
        lambda model, y: model.sample_latent(20, y.expand(-1, 2)).tolist(),
    )
    model = small_model((2, 3), labelled=(0,))
    other = copy.deepcopy(model)
    for ask in asked:
        assert seeded(ask, model, y.to(kind)) == seeded(ask, other, y)
    assert changed(model, other.state_dict()) == set()


def test_seed_without_any_label_clusters_and_equal_generators_give_equal_starts():
    model, (loc, _) = small_model((3,), labelled=(0,)), clusters_of(torch.tensor([-9.0, 0.0, 9.0]))
    states = []
    for labels in (None, torch.full((40, 1), -1)):
        model.seed(loc, torch.full_like(loc, 0.1), labels, torch.Generator().manual_seed(1))
        assert sorted(posterior_of(model, 0)[1][:, 0].tolist()) == pytest.approx([-9, 0, 9], rel=0.2, abs=0.2)
        states.append(copy_of(model))
    assert changed(model, states[0]) == set()


def test_seed_with_fewer_points_than_components():
    model, x = small_model((8,), num_data=2), binary_data(2)
    model.seed(*(t.detach() for t in model.encoder(x)), None, torch.Generator().manual_seed(0))
    assert math.isfinite(step(model, x))


@pytest.mark.parametrize("sizes", [(4,), (3, 3), (2, 4)])
def test_restarts_find_the_bound_that_the_elbo_reports(sizes, monkeypatch):
    model, x = small_model(sizes, num_data=90), binary_data(30)
    found = []

    def watched(*args, **options):
        found.append(kmeans_mixture(*args, **options))
        return found[-1]

    monkeypatch.setattr("pyro_fmvae.models.factor_group.kmeans_mixture", watched)
    encoded = [t.detach() for t in model.encoder(x)]
    model.seed(*encoded, None, torch.Generator().manual_seed(0), restarts=3)
    with torch.no_grad():
        parts = TraceConjugate_ELBO().loss_per_role(model.prior_model, model.prior_guide, x)
    loss = sum(parts[role] for role in (Role.KL_Z, Role.KL_R, Role.KL_GLOBAL)).item()
    entropy = 3 * torch.distributions.Normal(*encoded).entropy().sum().item()
    assert sum(mixture.bound for mixture in found) + entropy == pytest.approx(-loss, rel=1e-6)


class Encoded(torch.nn.Module):
    """An encoder whose output is known."""

    def __init__(self, loc, scale):
        super().__init__()
        self.loc, self.scale = loc, scale

    def forward(self, x):
        return self.loc, self.scale


def crowded_model(sizes=(3, 2, 3), labelled=()):
    """Far clusters in every factor; of three, two are in one component and none is in another."""
    blocks, members = zip(*(clusters_of(20 * torch.arange(size)) for size in sizes), strict=True)
    labels = torch.stack(members, -1).clamp(max=1)
    loc = torch.cat(blocks, -1)
    encoded = loc, torch.full_like(loc, 0.1)
    model, seeded = (small_model(sizes, num_data=400, labelled=own) for own in (labelled, range(len(sizes))))
    seeded.seed(*encoded, labels, torch.Generator())
    model.load_state_dict(seeded.state_dict())
    model.encoder = Encoded(*encoded)
    return model, encoded


def prior_loss(model, x):
    """In nats, for all N points: what λ can change of the loss."""
    with torch.no_grad():
        parts = TraceConjugate_ELBO().loss_per_role(model.prior_model, model.prior_guide, x)
    return sum(parts[role] for role in (Role.KL_Z, Role.KL_R, Role.KL_GLOBAL)).item()


def test_factors_start_anew_where_the_elbo_gains_by_it():
    model, encoded = crowded_model()
    x, before, loss = binary_data(40), copy_of(model), prior_loss(model, binary_data(40))
    places = {name: value.data_ptr() for name, value in model.named_parameters()}
    gains = model.restart(*encoded, torch.Generator().manual_seed(0), restarts=8)
    assert set(gains) == {0, 2}
    assert min(gains.values()) > 1
    assert 400 * sum(gains.values()) == pytest.approx(loss - prior_loss(model, x), rel=1e-4)
    assert {name: value.data_ptr() for name, value in model.named_parameters()} == places
    assert changed(model, before) == {"groups.0.weights.natural", "groups.0.loc_precision.natural"}
    for factor in (0, 2):
        c, m, *_ = posterior_of(model, factor)
        assert sorted(m[:, 0].tolist()) == pytest.approx([0, 20, 40], rel=0.02, abs=0.02)
        assert sorted(c.tolist()) == pytest.approx([131, 131, 141])
    assert model.restart(*encoded, torch.Generator().manual_seed(0), restarts=8) == {}


def test_a_factor_that_is_well_off_is_left_alone_among_others_that_are_not():
    model, encoded = crowded_model((3, 3))
    (group,) = model.factor_groups()
    values = group.weights.natural_value(), group.loc_precision.natural_value()
    crowded = [value.clone() for value in values]
    assert set(model.restart(*encoded, torch.Generator().manual_seed(0), restarts=8)) == {0, 1}
    good = [value.clone() for value in values]
    for value, poor in zip(values, crowded, strict=True):
        value[1] = poor[1]
    assert set(model.restart(*encoded, torch.Generator().manual_seed(0), restarts=8)) == {1}
    assert all(torch.equal(value[0], kept[0]) for value, kept in zip(values, good, strict=True))


def test_labelled_factors_never_start_anew():
    model, encoded = crowded_model((3,), labelled=(0,))
    before = copy_of(model)
    assert model.restart(*encoded, torch.Generator().manual_seed(0), restarts=8) == {}
    assert changed(model, before) == set()
    assert set(crowded_model((3,))[0].restart(*encoded, torch.Generator().manual_seed(0), restarts=8)) == {0}


@pytest.mark.parametrize("name", ["weights", "loc_precision"])
def test_only_natural_parameters_start_anew(name):
    model, encoded = crowded_model((3,))
    (group,) = model.factor_groups()
    setattr(group, name, to_standard(getattr(group, name)))
    with pytest.raises(
        TypeError, match=r"^λ: expected natural parameters, as of use_natural\(\), got a Standard"
    ):
        model.restart(*encoded, torch.Generator(), restarts=8)


class Inverted(torch.nn.Module):
    def forward(self, x):
        return 1 - x


def test_encoder_sees_distorted_data_in_training_alone():
    """And the decoder explains x as it is: a model whose encoder has the distortion inside is the same."""
    model, x = small_model((3, 2)), binary_data()
    plain, inside = copy.deepcopy(model), copy.deepcopy(model)
    inside.encoder = torch.nn.Sequential(Inverted(), inside.encoder)
    model.distortion = Inverted()

    def all_losses(model):
        vae = model.pretraining()
        programs = (model.model, model.guide), (model.prior_model, model.prior_guide), (vae.model, vae.guide)
        with torch.no_grad():
            return [seeded(TraceConjugate_ELBO().loss_per_role, *program, x) for program in programs]

    assert all_losses(model.train()) == all_losses(inside)
    assert all_losses(model.eval()) == all_losses(plain)
    assert all_losses(inside) != all_losses(plain)


def test_either_parameterisation_is_loaded():
    source, target = small_model((2, 3), labelled=(0,)), small_model((2, 3), labelled=(0,))
    source.factor_groups()[0].use_standard()
    for state in (copy_of(source), copy_of(small_model((2, 3), labelled=(0,)))):
        target.match(state)
        target.load_state_dict(state)
        assert changed(target, state) == set()


def test_standard_and_natural_parameters_give_the_same_bound():
    model, x = small_model((2, 3)), binary_data(5)
    natural = losses(model, x)
    for group in model.factor_groups():
        group.use_standard()
    standard = losses(model, x)
    for role in (
        Role.KL_Z,
        Role.KL_R,
        Role.KL_GLOBAL,
    ):  # z is another draw: conjugate sites are drawn before it
        assert standard[role].item() == pytest.approx(natural[role].item(), rel=1e-9), role


VAGUE_NO_MORE = Hyperprior(a0=3.0, b0=2.0)


def test_predictive_draws_every_site():
    model, x = small_model((2, 3), hyperprior=VAGUE_NO_MORE), binary_data(4)
    draws = Predictive(model.model, num_samples=3)(x)
    assert draws["z_0"].shape == (3, 1, 4, 2)
    assert draws["assignment_1"].shape == (3, 1, 4)
    posterior = Predictive(model.model, guide=model.guide, num_samples=3)(x)
    assert posterior["loc_precision_1"].shape[-4:] == (1, 3, 2, 2)


def test_relations_show_the_structure():
    model = small_model((3,), labelled=(0,), hyperprior=VAGUE_NO_MORE)
    relations = get_model_relations(model.model, (binary_data(4), torch.zeros(4, 1, dtype=torch.int64)))
    assert relations["plate_sample"]["components"] == ["loc_precision"]
    assert set(relations["plate_sample"]["factors"]) == {
        "weights",
        "loc_precision",
        "assignment",
        "label",
        "z",
    }
    assert relations["observed"] == ["label", "x"]
    assert relations["sample_sample"]["assignment"] == ["weights"]
    assert set(relations["sample_sample"]["z"]) == {"assignment", "loc_precision"}
    assert relations["sample_sample"]["label"] == ["assignment"]
    assert relations["sample_sample"]["x"] == ["z"]


def test_conditioned_model_has_the_density_of_its_formula():
    model, x = small_model((2,), hyperprior=VAGUE_NO_MORE), binary_data(4)
    values = {
        "weights": torch.tensor([[[0.3, 0.7]]]),
        "loc_precision": torch.rand(1, 2, 2, 2) + 0.5,
        "assignment": torch.tensor([[0, 1, 1, 0]]),
        "z": torch.randn(1, 4, 2),
    }
    trace = poutine.trace(poutine.condition(model.model, data=values)).get_trace(x)
    trace.compute_log_prob()
    loc, precision = values["loc_precision"][0, values["assignment"][0]].unbind(-2)
    density = torch.distributions.Normal(loc, precision.rsqrt()).log_prob(values["z"][0]).sum(-1)
    assert torch.allclose(trace.nodes["z"]["unscaled_log_prob"][0], density)
    prior = NormalGamma(torch.zeros(2), 1.0, 3.0, 2.0).log_prob(values["loc_precision"])
    assert torch.allclose(trace.nodes["loc_precision"]["log_prob"], prior)
    assert trace.nodes["z"]["log_prob_sum"].item() == pytest.approx(5 * density.sum().item())  # N / B = 5


def test_module_stays_in_double_precision_where_it_must():
    model = small_model((2,)).float()
    assert model.factor_groups()[0].loc_precision.natural_value().dtype == torch.float64
    assert next(model.encoder.parameters()).dtype == torch.float32


def test_draws_of_the_guide_are_those_of_the_encoder():
    model, x = small_model((2, 3)), binary_data(2000)[:1].expand(2000, *SHAPE)
    z, (loc, scale) = drawn_z(model, x), model.encoder(x[:1])
    assert ((z.mean(0) - loc[0]).abs() < 5 * scale[0] / math.sqrt(2000)).all()
    assert torch.allclose(z.std(0), scale[0], rtol=0.1)


@pytest.mark.parametrize("count", [1e4, 1e5])
def test_log_prior_keeps_its_digits_in_float32(count, single_precision):
    """With thousands of degrees of freedom, a difference of log Γ in float32 loses the third decimal."""
    model = small_model((2, 2), dim=8)
    (group,) = model.factor_groups()
    loc, rate = torch.randn(2, 2, 8).double(), count / 2 * (torch.rand(2, 2, 8).double() + 0.5)
    shared = torch.full((2, 2), count).double()
    group.set_natural(torch.full((2, 1, 2), count), NORMAL_GAMMA.natural(loc, shared, shared / 2, rate))
    z = 3 * torch.randn(50, 16)
    scale = ((count + 1) / count * rate / (count / 2)).sqrt()
    by_hand = stats.t.logpdf(z.double().view(50, 2, 1, 8), count, loc, scale).sum(-1)
    expected = (torch.as_tensor(by_hand).logsumexp(-1) - math.log(2)).sum(-1)
    with torch.no_grad():
        actual = model.log_prior(z)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=0.0)


def test_a_density_for_many_calls_has_no_gradients():
    model = small_model((3, 2, 3))
    density = model.log_density()
    for z in torch.randn(2, 4, 6, requires_grad=True):
        torch.testing.assert_close(density(z), model.log_prior(z).detach())
        assert not density(z).requires_grad and model.log_prior(z).requires_grad


def test_start_at_the_mean_and_spread_of_data():
    shape = (64, 64, 3)
    networks = ConvEncoder(shape, 2, 0.02), ConvDecoder(2, shape, 2, 0.02)
    model = FactorialMixtureVAE(*networks, GaussianObservation(3), (2,), 2, 20)
    colours = torch.tensor([-0.8, 0.1, 0.5])
    x = colours + 0.2 * torch.randn(6, *shape)
    model.start_at(x)
    features = model.decoder(torch.zeros(3, 2))
    torch.testing.assert_close(model.observation.mean(features).mean((0, 1, 2)), colours, atol=0.05, rtol=0)
    torch.testing.assert_close(
        model.observation.std(features).mean((0, 1, 2)), torch.full((3,), 0.2), atol=0.02, rtol=0
    )


def test_decoders_that_cannot_start_anywhere_are_left_alone():
    model = small_model()
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.start_at(binary_data())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize(("labelled", "share"), [((0, 2), 0.0), ((0, 2), 1.0), ((), 0.0), ((0, 1, 2), 0.0)])
def test_gate_hides_unlabelled_blocks_from_the_decoder(labelled, share):
    model, x = small_model((3, 2, 2), labelled=labelled), binary_data()
    seen = []
    model.decoder.register_forward_hook(lambda module, arguments, output: seen.append(arguments[0]))
    model.gate_free(share)
    z = drawn_z(model, x).unflatten(-1, (3, model.dim))
    hidden = labelled == (0, 2) and share == 0
    if hidden:
        z = z * torch.tensor([1.0, 0.0, 1.0])[:, None]
    torch.testing.assert_close(seen[-1].reshape(len(x), -1), z.flatten(-2))
    assert "gate" not in model.state_dict()


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(3,), (2, 3, 2)])
def test_a_given_posterior_takes_the_place_of_the_encoders(sizes):
    model, x = small_model(sizes), binary_data(7)
    dims = 2 * len(sizes)
    given = torch.randn(7, dims), 0.2 + torch.rand(7, dims)
    at_given = losses(model, x, None, given)
    model.encoder.forward = lambda _: given
    expected = brute_force(model, x)
    for role, value in at_given.items():
        assert value.item() == pytest.approx(expected[role].item(), rel=1e-9), role
    q = model.posterior(x)
    assert (q.batch_shape, q.event_shape) == ((7,), (dims,))
    assert torch.equal(q.mean, given[0])
    torch.testing.assert_close(q.stddev, given[1])


def test_no_encoder_is_learnt_at_a_given_posterior():
    model, x = small_model((2, 3)), binary_data(7)
    given = torch.randn(7, 4), 0.2 + torch.rand(7, 4)
    named = poutine.trace(model.guide, param_only=True).get_trace(x, None, given).nodes
    assert named and not any(name.startswith("encoder") for name in named)
    assert any(name.startswith("prior") for name in named)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(4, 2).long(), r"codes: expected int64 \[3, 2\], got torch.int64 \[4, 2\]"),
        (torch.zeros(3, 1).long(), r"codes: expected int64 \[3, 2\], got torch.int64 \[3, 1\]"),
        (torch.zeros(3, 2), r"codes: expected int64 \[3, 2\], got torch.float32 \[3, 2\]"),
        (torch.tensor([[0, 0], [0, 4], [0, 0]]), "codes: expected -1 to 3 of factor 1, got 4"),
        (torch.tensor([[0, 0], [2, 3], [0, 0]]), "codes: expected -1 to 1 of factor 0, got 2"),
        (torch.tensor([[0, 0], [-2, 3], [0, 0]]), "codes: expected -1 to 1 of factor 0, got -2"),
    ],
)
def test_codes_out_of_range_are_refused(codes, message):
    model = small_model((2, 4))
    for draw in (model.sample_codes, model.sample_latent):
        with pytest.raises(ValueError, match=f"^{message}$"):
            draw(3, codes)


@pytest.mark.parametrize("labelled", [(), (0,), (0, 1)])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2), (6, 3), (1, 2), (1, 1)])
def test_labels_of_another_shape_are_refused(labelled, shape):
    model, x, y = small_model((2, 2), labelled=labelled), binary_data(6), torch.zeros(shape).long()
    elbo = TraceConjugate_ELBO()
    for program in ((model.model, model.guide), (model.prior_model, model.prior_guide)):
        if shape == (6, len(labelled)):
            assert math.isfinite(elbo.loss(*program, x, y))
            with pytest.raises(ValueError, match=r"labels: expected int64 .*, got torch.float64"):
                elbo.loss(*program, x, y.double())
        else:
            message = f"labels: expected int64 {[6, len(labelled)]}, got torch.int64 {list(shape)}"
            with pytest.raises(ValueError, match=re.escape(message)):
                elbo.loss(*program, x, y)


def test_a_copy_of_a_trained_model_is_trained_by_itself():
    model, x = small_model((2, 3)), binary_data(6)
    step(model, x)
    before, other = copy_of(model), copy.deepcopy(model)
    step(other, x)
    assert changed(other, before) == set(before)
    assert changed(model, before) == set()


def test_what_makes_a_parameter_known_to_pyro_keeps_no_model_from_being_saved():
    model = small_model((2, 3))
    step(model, binary_data(6))
    for parameter in model.parameters():
        assert parameter.unconstrained() is parameter
        rebuild, arguments = parameter.unconstrained.__reduce__()
        assert rebuild(*arguments) is None
    torch.save(model, io.BytesIO())


def test_inference_mode():
    model, x = small_model((2, 3, 2)), binary_data(6)
    asked = (
        lambda: model.sample_latent(5),
        lambda: model.log_prior(torch.ones(2, 6)),
        lambda: model.log_weights(x, 3),
        lambda: torch.cat(model.responsibilities(x), -1),
        lambda: torch.tensor(TraceConjugate_ELBO().loss(model.model, model.guide, x)),
    )
    for ask in asked:
        with torch.no_grad():
            expected = seeded(ask)
        with torch.inference_mode():
            assert torch.equal(seeded(ask), expected)
    with torch.inference_mode():
        encoded = model.encoder(x)
        model.seed(*encoded, None, torch.Generator())
        assert math.isfinite(TraceConjugate_ELBO().loss(model.model, model.guide, x))


def test_what_was_seeded_in_inference_mode_is_trained():
    model, x = small_model((2, 3), labelled=(0,)), binary_data(6)
    with torch.inference_mode():
        model.seed(*model.encoder(x), None, torch.Generator())
    before = copy_of(model)
    step(model, x)
    assert changed(model, before) == set(before)


def test_a_conditioned_global_in_eager_and_captured_steps():
    runs = []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        model, x = small_model((3,)), binary_data(6)
        conditioned = poutine.condition(model.model, {"weights": torch.tensor([[[0.2, 0.3, 0.5]]])})
        guide = poutine.block(model.guide, hide=["weights"])
        optim = NaturalGradient(0.5, lambda p: torch.optim.Adam(p, lr=1e-2))
        svi = kind(conditioned, guide, optim, TraceConjugate_ELBO())
        runs.append([svi.step(x) for _ in range(4)])
    assert runs[1] == pytest.approx(runs[0], rel=1e-9)
