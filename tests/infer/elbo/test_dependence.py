"""The penalty on blocks that tell of other factors' labels."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, Label
from pyro_fmvae.infer import AutoConjugate, Role, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import explained, within
from tests.capture.captured import adam, assert_twins, batches_of
from tests.infer.programs import globals_of
from tests.models.small import binary_data, small_model


def hard(assignments, components):
    return torch.nn.functional.one_hot(assignments, components).double()


def test_explained_is_the_r_squared_of_a_regression_on_the_assignment():
    assignments = torch.randint(3, (2, 40))
    mean = torch.randn(4, 40, 5) + assignments[0][:, None]
    counts = torch.rand(2, 40)
    found = explained(hard(assignments, 3), counts, mean, torch.zeros(4, 40, 5))
    for j in range(2):
        inputs, weights = hard(assignments[j], 3).numpy(), counts[j].numpy()
        for i in range(4):
            scores = [
                LinearRegression().fit(inputs, target, weights).score(inputs, target, weights)
                for target in mean[i].numpy().T
            ]
            assert found[j, i].item() == pytest.approx(np.mean(scores), abs=1e-10)


def test_explained_is_a_share_of_the_variance_of_draws():
    """η² of draws of z from q, with soft assignments drawn too, within the Monte-Carlo error."""
    gamma, mean, std = torch.rand(1, 6, 3).softmax(-1), torch.randn(1, 6, 1), torch.rand(1, 6, 1)
    draws = 200_000
    r = torch.distributions.Categorical(gamma[0]).sample((draws,))
    z = (mean + std * torch.randn(draws, 6, 1))[..., 0]
    # The expectation of z given r, over points drawn uniformly: with many draws, the means of groups.
    offsets = [(z[r == k].mean() - z.mean()) ** 2 * (r == k).double().mean() for k in range(3)]
    expected = sum(offsets) / z.var()
    found = explained(gamma, torch.ones(1, 6), mean, std.square())
    assert found.item() == pytest.approx(expected.item(), rel=0.05)


def test_within_are_the_residuals_of_a_regression_on_the_assignment():
    assignments, mean, counts = torch.randint(3, (2, 40)), torch.randn(2, 40, 5), torch.rand(2, 40)
    gamma = hard(assignments, 4)  # the last component has no points
    for block, found in enumerate(within(gamma, counts, mean)):
        inputs, target = gamma[block].numpy(), mean[block].numpy()
        fit = LinearRegression().fit(inputs, target, counts[block].numpy())
        assert_close(found, torch.as_tensor(target - fit.predict(inputs)))
    single = gamma.float(), counts.float(), mean.float()
    assert_close(within(single[0], 1e-8 * single[1], single[2]), within(*single))


def test_bounds_of_explained():
    assignments = torch.tensor([[0, 0, 1, 1, 2, 2]])
    told = assignments[0].double()[None, :, None] * torch.tensor([1.0, -3.0])
    ones, nothing = torch.ones(1, 6), torch.zeros(1, 6, 2)
    assert_close(explained(hard(assignments, 3), ones, told, nothing), torch.ones(1, 1))
    assert_close(explained(torch.full((1, 6, 3), 1 / 3), ones, told, nothing), torch.zeros(1, 1))
    assert_close(explained(hard(assignments, 3), ones, nothing, nothing), torch.zeros(1, 1))
    shifted = explained(hard(assignments, 3), ones, told + 1e4, told.square() + 1)
    assert_close(shifted, explained(hard(assignments, 3), ones, told, told.square() + 1), rtol=1e-6, atol=0)


def test_rows_that_count_twice_are_rows_given_twice():
    gamma, mean, variance = torch.rand(2, 5, 3).softmax(-1), torch.randn(3, 5, 2), torch.rand(3, 5, 2)
    counts = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0]).expand(2, -1)
    rows = torch.tensor([0, 1, 1, 2, 3, 4])
    again = explained(gamma[:, rows], torch.ones(2, 6), mean[:, rows], variance[:, rows])
    assert_close(explained(gamma, counts, mean, variance), again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.0, 1e-45, 1e-38, 1e-30, 1e-10])
def test_gradients_are_finite_where_a_component_has_no_points(dtype, gamma):
    responsibilities = torch.tensor([1.0 - gamma, gamma], dtype=dtype).expand(1, 6, 2)
    mean = torch.randn(2, 6, 3, dtype=dtype)
    mean[1] = 0.5  # a block that does not depend on x
    mean.requires_grad_()
    variance = torch.full((2, 6, 3), 1e-12, dtype=dtype, requires_grad=True)
    counts = torch.ones(1, 6, dtype=dtype)
    inner = within(responsibilities.flip(-1).expand(2, 6, 2), counts, mean)
    share = explained(responsibilities, counts, inner, variance)
    (1e6 * share.sum()).backward()
    assert share.isfinite().all() and (share < 1e-6).all()
    assert mean.grad.isfinite().all() and variance.grad.isfinite().all()


def labelled_model(sizes=(3, 2, 2, 4), labelled=(0, 2)):
    model = small_model(sizes, labelled=labelled)
    for group in model.factor_groups():
        if group.columns:
            group.use_standard()
    return model


def labels_for(x):
    return torch.stack([torch.arange(len(x)) % 4 - 1, torch.arange(len(x)) % 3 - 1], -1)


def test_term_is_the_sum_over_foreign_blocks():
    model, x = labelled_model(), binary_data(12)
    y = labels_for(x)
    elbo = TraceConjugate_ELBO(independence_weight=2.5)
    found = elbo.loss_per_role(model.model, model.guide, x, y)[Role.DEPENDENCE]
    loc, scale = (part.unflatten(-1, (4, model.dim)).movedim(1, 0) for part in model.encoder(x))
    gamma, rest = {}, loc.clone()
    for column, factor in enumerate((0, 2)):
        gamma[factor] = model.responsibilities(x)[factor].clone()
        for row, label in enumerate(y[:, column].tolist()):
            if label >= 0:
                gamma[factor][row] = torch.eye(gamma[factor].shape[-1])[label]
        means = gamma[factor].T @ loc[factor] / gamma[factor].sum(0).unsqueeze(-1)
        rest[factor] -= gamma[factor] @ means  # what a labelled block says beside its own label
    expected = 0.0
    for factor, own in gamma.items():
        for block in range(4):
            if block != factor:
                parts = own[None], torch.ones(1, 12), rest[[block]], scale[[block]].square()
                expected += explained(*parts).item()
    assert found.item() == pytest.approx(2.5 * model.num_data * expected)


def test_mixtures_without_a_plate_of_factors():
    labels, loc = torch.tensor([0, 1, 1, 0, 2]), torch.randn(2, 5, 2)

    def model():
        data = pyro.plate("data", 5, dim=-1)
        for name in "ab":
            weights, loc_precision = globals_of(f"_{name}")
            with data:
                assignment = pyro.sample(f"assignment_{name}", Assignment(weights))
                if name == "a":
                    pyro.sample("label", Label(assignment), obs=labels)
                pyro.sample(f"z_{name}", Component(loc_precision, assignment))

    conjugate = AutoConjugate(model)

    def guide():
        conjugate()
        with pyro.plate("data", 5, dim=-1):
            for name, place in zip("ab", loc, strict=True):
                pyro.sample(f"z_{name}", dist.Normal(place, 0.5).to_event(1))

    found = TraceConjugate_ELBO(independence_weight=2.5).loss_per_role(model, guide)[Role.DEPENDENCE]
    other = explained(hard(labels, 3)[None], torch.ones(1, 5), loc[[1]], torch.full((1, 5, 2), 0.25))
    assert found.item() == pytest.approx(2.5 * 5 * other.item())


@pytest.mark.parametrize("outer", ["views", "factors"])
def test_views_may_be_on_any_side_of_the_factors(outer):
    labels, loc = torch.tensor([[0, 1, 1, 0, 2], [2, 0, 1, 1, 0]]), torch.randn(2, 3, 5, 4)  # [I, V, B, D]
    views, factors = pyro.plate("views", 3, dim=-3), pyro.plate("factors", 2, dim=-2)
    if outer == "factors":
        views, factors = pyro.plate("views", 3, dim=-2), pyro.plate("factors", 2, dim=-3)
    data = pyro.plate("data", 5, dim=-1)

    def model():
        with factors:
            weights, loc_precision = globals_of(dim=4)
        with data, factors:
            assignment = pyro.sample("assignment", Assignment(weights))
            pyro.sample("label", Label(assignment), obs=labels if outer == "views" else labels.unsqueeze(1))
            with views:
                pyro.sample("z", Component(loc_precision, assignment))

    conjugate = AutoConjugate(model)

    def guide():
        conjugate()
        with data, factors, views:
            place = loc.transpose(0, 1) if outer == "views" else loc
            pyro.sample("z", dist.Normal(place, 0.5).to_event(1))

    found = TraceConjugate_ELBO(independence_weight=2.5).loss_per_role(model, guide)[Role.DEPENDENCE]
    gamma, counts, noise = hard(labels, 3), torch.ones(2, 5), torch.full((2, 5, 4), 0.25)
    expected = 0.0
    for view in loc.unbind(1):
        share = explained(gamma, counts, within(gamma, counts, view), noise)
        expected += 5 * (share[0, 1] + share[1, 0]).item()
    assert found.item() == pytest.approx(2.5 * expected)


def test_only_labelled_data_have_it():
    model, x = labelled_model(), binary_data(12)
    with_penalty, without = TraceConjugate_ELBO(independence_weight=1e3), TraceConjugate_ELBO()
    torch.manual_seed(0)
    loss = with_penalty.loss(model.model, model.guide, x)
    torch.manual_seed(0)
    assert loss == without.loss(model.model, model.guide, x)


def test_gradient_steps_make_blocks_independent():
    model, x = labelled_model(), binary_data(40)
    elbo, y = TraceConjugate_ELBO(independence_weight=1.0), labels_for(x)
    optimizer = torch.optim.Adam(model.encoder.parameters(), lr=1e-2)
    values = []
    for _ in range(60):
        value = elbo.loss_per_role(model.model, model.guide, x, y)[Role.DEPENDENCE]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.3 * values[0]


def change_weight(step, svi, program):
    svi.elbo.independence_weight = (0.0, 1.0, 2.0 + step, torch.tensor(3.0))[step // 4 % 4]


@pytest.mark.slow
def test_captured_steps():
    x = binary_data(12)
    svi = assert_twins(
        labelled_model, batches_of([x, labels_for(x)], 12, 16), between=change_weight, optimizer=adam
    )
    assert len(svi._steps) == 2  # without the penalty and with it


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weight_out_of_range(weight):
    with pytest.raises(ValueError, match=r"^independence_weight: expected a number >= 0"):
        TraceConjugate_ELBO(independence_weight=weight)


def test_vectorised_particles():
    with pytest.raises(ValueError, match=r"^independence_weight: expected 0 with vectorize_particles"):
        TraceConjugate_ELBO(independence_weight=1.0, num_particles=2, vectorize_particles=True)
    model, x = labelled_model(), binary_data(12)
    elbo = TraceConjugate_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=2)
    elbo.independence_weight = 1.0
    with pytest.raises(ValueError, match=r"^independence_weight: expected 0 with vectorize_particles"):
        elbo.loss(model.model, model.guide, x, labels_for(x))
