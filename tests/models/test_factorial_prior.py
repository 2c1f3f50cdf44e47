"""Views of points, and several components for each value of a label, in the factorial mixture VAE."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae import Role
from tests.models.small import binary_data, drawn_z, factor_losses, factor_tables, losses, small_model

V, B = 3, 7


def views(size=B):
    return binary_data(size * V).unflatten(0, (size, V))


@pytest.mark.parametrize(
    ("sizes", "per_view", "labelled"),
    [((3,), (), ()), ((3,), (0,), ()), ((3, 2, 3), (2,), (0,)), ((2, 2, 1, 2), (1, 2), (0, 3))],
)
def test_bound_of_views_is_brute_force_evaluation(sizes, per_view, labelled):
    """A shared assignment is chosen by the sum over views, another one in each view by itself."""
    model, x = small_model(sizes, labelled=labelled, per_view=per_view), views()
    labels = torch.randint(-1, 2, (B, len(labelled))) if labelled else None
    found = losses(model, x, labels)
    kl_z = kl_r = 0.0
    for factor in range(len(sizes)):
        if factor in per_view:
            for one in x.unbind(1):
                z, r = factor_losses(model, factor, one)
                kl_z, kl_r = kl_z + z.sum(), kl_r + r.sum()
            continue
        tables = [factor_tables(model, factor, one) for one in x.unbind(1)]
        log_weights = tables[0][2]
        gamma = (sum(expected for expected, *_ in tables) + log_weights).softmax(-1)
        if factor in labelled:
            y = labels[:, labelled.index(factor)]
            known = torch.nn.functional.one_hot(y.clamp(min=0), sizes[factor]).to(gamma)
            gamma = torch.where((y >= 0).unsqueeze(-1), known, gamma)
        kl_z = kl_z + sum((gamma * divergence).sum() for _, divergence, _ in tables)
        kl_r = kl_r + (torch.special.xlogy(gamma, gamma) - gamma * log_weights).sum()
    scale = model.num_data / B
    assert_close(found[Role.KL_Z], scale * kl_z, rtol=1e-9, atol=0)
    assert_close(found[Role.KL_R], scale * kl_r, rtol=1e-9, atol=1e-9)


def test_each_view_is_explained_by_its_own_z():
    model, x = small_model((3, 2), per_view=(1,)), views()
    z = drawn_z(model, x)  # [V, B, I·D]
    logits = model.decoder(z).squeeze(-3)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    expected = model.num_data / B * bce(logits, x.transpose(0, 1), reduction="sum")
    assert_close(losses(model, x)[Role.RECONSTRUCTION], expected)


def test_responsibilities_of_several_views_are_those_of_all_together():
    model, x = small_model((3, 2), per_view=(1,)).eval(), views()
    pooled, own = model.responsibilities(x)
    tables = [factor_tables(model, 0, one) for one in x.unbind(1)]
    assert_close(pooled, (sum(expected for expected, *_ in tables) + tables[0][2]).softmax(-1))
    for view, one in zip(own, x.unbind(1), strict=True):
        assert_close(view, model.responsibilities(one)[1])


def test_labels_belong_to_points_not_to_views():
    model = small_model((3,), labelled=(0,))
    with pytest.raises(ValueError, match=r"^labels: expected int64 \[7, 1\], got torch.int64 \[7, 3\]"):
        losses(model, views(), torch.zeros(B, V, dtype=torch.int64))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"per_view": (3,)}, r"^per_view: expected factors without labels, got \(3,\)$"),
        ({"per_view": (0,)}, r"^per_view: expected factors without labels, got \(0,\)$"),
        ({"per_value": 0}, "^per_value must be a positive integer, got 0$"),
        ({"per_value": 2}, "^per_value: expected a divisor of the numbers of components of labelled factors"),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        small_model((3, 2, 2), labelled=(0,), **given)


def test_a_label_clamps_to_all_components_of_its_value():
    model, x = small_model((6,), labelled=(0,), per_value=3), binary_data(B)
    labels = torch.randint(-1, 2, (B, 1))
    expected, divergence, log_weights = factor_tables(model, 0, x)
    gamma = (expected + log_weights).softmax(-1)
    gamma = gamma * ((labels < 0) | (labels == torch.arange(6) % 2))
    gamma = gamma / gamma.sum(-1, keepdim=True)
    found, scale = losses(model, x, labels), model.num_data / B
    assert_close(found[Role.KL_Z], scale * (gamma * divergence).sum(), rtol=1e-9, atol=0)
    assert_close(
        found[Role.KL_R],
        scale * (torch.special.xlogy(gamma, gamma) - gamma * log_weights).sum(),
        rtol=1e-9,
        atol=0,
    )
    assert model.label_sizes == [2]


def test_components_of_a_value_start_where_its_points_cluster():
    """Two clusters of points with label 0, two with label 1: each component starts at one of its own."""
    model = small_model((4,), labelled=(0,), per_value=2, num_data=80)
    centres = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    labels = torch.tensor([0, 1, 0, 1]).repeat_interleave(20)
    loc = centres.repeat_interleave(20, 0) + 0.1 * torch.randn(80, 2)
    model.seed(loc, torch.full_like(loc, 0.1), labels.unsqueeze(-1), torch.Generator().manual_seed(0))
    (group,) = model.factor_groups()
    nearest = torch.cdist(group.locations()[0].to(centres), centres).argmin(-1)
    assert sorted(nearest.tolist()) == [0, 1, 2, 3]
    assert (labels[nearest * 20] == torch.arange(4) % 2).all()


def test_labels_beyond_the_values():
    model = small_model((6,), labelled=(0,), per_value=3)
    with pytest.raises(ValueError, match=r"^labels: expected -1 to 1 of column 0, got 2$"):
        model.seed(
            torch.randn(3, 2),
            torch.ones(3, 2),
            torch.tensor([[0], [1], [2]]),
            torch.Generator().manual_seed(0),
        )


@pytest.mark.parametrize("values", [1, 2, 3, 4])
def test_labelled_components_are_separated_and_others_stay(values):
    """In two dimensions: the first two at right angles, the next two opposite them."""
    model = small_model((values, 6, values), labelled=(0, 2))
    labelled, free = model.factor_groups()
    weights, others = (q.natural_value().clone() for q in (labelled.weights, free.loc_precision))
    family = labelled.loc_precision.kind.family
    _, *counts, _ = family.unpack(labelled.loc_precision.natural_value().clone())
    model.separate_labelled(10.0, torch.Generator().manual_seed(0))
    loc, *kept, rate = family.unpack(labelled.loc_precision.natural_value())
    for means in loc:
        distances = torch.pdist(means).sort().values
        expected = {1: [], 2: [1], 3: [1, 1, 2**0.5], 4: [1, 1, 1, 1, 2**0.5, 2**0.5]}[values]
        assert_close(distances, 10 * torch.tensor(expected).to(distances))
    assert not torch.allclose(loc[0], loc[1])
    assert_close(kept, counts)
    assert_close(rate, kept[1].unsqueeze(-1).expand_as(rate))
    assert torch.equal(labelled.weights.natural_value(), weights)
    assert torch.equal(free.loc_precision.natural_value(), others)


def test_more_components_than_there_is_room_for_stay():
    model = small_model((5,), labelled=(0,))
    before = model.factor_groups()[0].loc_precision.natural_value().clone()
    model.separate_labelled(10.0, torch.Generator().manual_seed(0))
    assert torch.equal(model.factor_groups()[0].loc_precision.natural_value(), before)
