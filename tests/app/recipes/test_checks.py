from dataclasses import replace

import pytest
import torch

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.data import Kind, Split
from pyro_fmvae.learn.options import PHASES
from tests.app.recipes.choices import build, resolve
from tests.datasets import dataset


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        (
            {"labels": 0.5},
            dataset(),
            "^labels: the data set 'mine' has no labels to train on; images have some by",
        ),
        (
            {"labels": 0.5},
            dataset((4,), Kind.TABLE),
            "has no labels to train on; in a .csv file, name a column label:NAME to make it one$",
        ),
        (
            {"labels": 0.5, "factors": (2,)},
            dataset(label_sizes=(2, 2)),
            "^factors: expected at least one for each",
        ),
        (
            {"labels": 0.5, "factors": (2, 9)},
            dataset(label_sizes=(3, 2)),
            "^factors: label 'label0' has values up to 2",
        ),
        (
            {"labels": 0.5, "restart_every": 10, "factors": (3, 2)},
            dataset(label_sizes=(3, 2)),
            "^restart_every: expected a factor without labels",
        ),
        (
            {"restart_every": 10, "joint_iterations": 0, "refine_iterations": 0},
            dataset(),
            "^restart_every: expected joint or refine iterations",
        ),
        (
            {"restart_every": 30, "joint_iterations": 30, "refine_iterations": 20},
            dataset(),
            "^restart_every: expected less than the 30 iterations of the joint or refine phase, .*, got 30$",
        ),
        ({"network": "conv28"}, dataset(), "^network: conv28 takes 28x28 images"),
        ({"network": "conv"}, dataset((5,)), r"^network: conv takes images of .* of shape \(5,\)$"),
        ({"distortion": 1.0}, dataset((5,)), "^distortion: expected images, the data"),
        ({"augmentation": 1.0}, dataset((5,)), "^augmentation: expected images, the data"),
        ({"views": 2, "view_strength": 1.0}, dataset((5,)), r"^views: expected images, .* of shape \(5,\)$"),
        (
            {"views": 2},
            dataset(),
            "^views: expected a --view-strength or --distortion above 0, by which they differ$",
        ),
        ({"view_strength": 0.5}, dataset(), "^view_strength: an option of --views, without effect here$"),
        ({"per_view": (0,)}, dataset(), "^per_view: an option of --views, without effect here$"),
        (
            {"views": 2, "distortion": 1.0, "factors": (2, 2), "per_view": (2,)},
            dataset(),
            r"^per_view: expected factors without labels, of 0\.\.1, got 2$",
        ),
        (
            {"views": 2, "distortion": 1.0, "labels": 0.5, "per_view": (0,)},
            dataset(label_sizes=(2,)),
            "^per_view: expected factors without labels",
        ),
        ({"per_value": 2}, dataset(), "^per_value: an option of --labels, without effect here$"),
        (
            {"per_value": 2, "labels": 0.5, "factors": (5,)},
            dataset(label_sizes=(2,)),
            "^factors: expected 2 components for each value of a label, got 5$",
        ),
        (
            {"per_value": 2, "labels": 0.5, "factors": (4,)},
            dataset(label_sizes=(3,)),
            "^factors: label 'label0' has values up to 2, so its factor needs 6 components, not 4$",
        ),
        (
            dict.fromkeys((f"{name}_iterations" for name in PHASES), 0),
            dataset(),
            "^iterations: expected at least one",
        ),
    ],
)
def test_options_that_do_not_fit_the_data(changes, data, message):
    with pytest.raises(ValueError, match=message):
        resolve(configure(data="mine.npz", **changes), data)


def partly_known(*columns):
    """Data of 80 training points with these columns of labels, the first of them known."""
    data = dataset(label_sizes=(2,) * len(columns), size=80)
    labels = torch.full((80, len(columns)), -1)
    for number, column in enumerate(columns):
        labels[: len(column), number] = torch.tensor(column)
    return replace(data, train=replace(data.train, labels=labels))


@pytest.mark.parametrize(
    ("share", "columns", "message"),
    [
        (0.005, ([0, 1] * 40,), "expected at least one of the 80 training points, got a share of 0.005"),
        (1.0, ([0, 1], []), "none of the 80 training points whose labels are used has a known 'label1'"),
        (
            0.02,
            ([0, 1] * 40, [1]),
            "none of the 2 training points whose labels are used has a known 'label1'",
        ),
    ],
)
def test_every_label_is_known_of_a_training_point(share, columns, message):
    data = partly_known(*columns)
    config = configure(data="mine.npz", labels=share)
    with pytest.raises(ValueError) as error:
        resolve(config, data)
    assert str(error.value) == f"labels: {message}"
    assert resolve(replace(config, labels=0.0), data).labels == 0
    if len(columns) > 1:  # only labels that are trained on matter
        assert resolve(replace(config, label_names=("label0",)), data).factors[0] == 2
    least = partly_known(*([0, 1] * 40 for _ in columns))
    assert resolve(replace(config, labels=0.0125), least).labels == 0.0125


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretrained": "/runs/a"}, "pretrained: an option of fmvae, vae and vsc, not of bsc"),
        ({"hidden": (4,)}, "hidden: an option of fmvae, vae and vsc, not of bsc"),
        ({"m_step": "gradient", "reseed_every": 5}, "reseed_every: an option of closed M-steps"),
        ({"m_step": "gradient", "temperature": 2.0}, "temperature: an option of closed M-steps"),
        (
            {"m_step": "gradient", "em_forgetting": 0.9, "batch_size": 2},
            "em_forgetting: an option of batches",
        ),
        ({"em_forgetting": 0.9}, "em_forgetting: an option of batches in closed form, without effect here"),
        ({"patches": 30}, "patches: an option of --patch-size, without effect here"),
        ({"whiten": False}, "whiten: an option of --patch-size, without effect here"),
        ({"learning_rate": 0.01}, "learning_rate: an option of training by gradients, without effect here"),
    ],
)
def test_options_that_have_no_effect_on_a_coder(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build(configure("bsc", "mine.npz", **options), dataset((3, 5), Kind.REAL))


@pytest.mark.parametrize(
    ("model", "others", "without"),
    [
        ("vae", {"posterior": "encoder"}, {"free_steps": 4, "free_learning_rate": 0.2}),
        (
            "vae",
            {"posterior": "point"},
            {
                **{"free_steps": 4, "free_learning_rate": 0.2, "beta": 4.0, "total_correlation": 3.0},
                **{"kl_weight": 2.0, "pretrain_kl_weight": 0.5, "kl_annealing": 0.5},
            },
        ),
        ("vsc", {"sparse_prior": "fixed"}, {"pseudo_inputs": 7, "sharpness": 10.0}),
        ("vsc", {"spikes": "concrete"}, {"slope": (100.0, 100.0)}),
        ("vsc", {"spikes": "straight-through"}, {"slope": (100.0, 100.0)}),
    ],
)
def test_options_that_others_leave_without_effect(model, others, without):
    config = configure(model, "mine.npz", **others)
    resolved = resolve(config, dataset())
    assert resolve(resolved, dataset()) == resolved
    for name, value in without.items():
        with pytest.raises(ValueError, match=rf"^{name}: an option of .*, without effect here$"):
            resolve(replace(config, **{name: value}), dataset())


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("vae", {"posterior": "free", "free_steps": 4, "beta": 4.0}),
        ("vae", {"posterior": "hybrid", "free_learning_rate": 0.2, "kl_annealing": 0.5}),
        ("vsc", {"sparse_prior": "select", "pseudo_inputs": 7, "sharpness": 10.0, "slope": (1.0, 2.0)}),
    ],
)
def test_options_that_have_an_effect(model, options):
    resolved = resolve(configure(model, "mine.npz", **options), dataset())
    assert {name: getattr(resolved, name) for name in options} == options


@pytest.mark.parametrize("model", ["bsc", "max-sparse", "linear-sparse"])
def test_all_data_of_a_coder_are_looked_at_before_it_is_learnt(model):
    """Not only the first batch."""
    data = dataset((3, 5), Kind.REAL, size=9)
    x = data.train.observations
    x[-1, 0, 0] = 1e20
    with pytest.raises(ValueError, match=r"^data: expected squares .* got numbers up to 1e\+20$"):
        resolve(configure(model, "mine.npz", batch_size=2), replace(data, train=Split(x)))


def test_by_the_clock_a_joint_phase_may_have_more_iterations_than_its_share():
    config = configure(data="mine.npz", restart_every=30, joint_iterations=20, max_minutes=5.0)
    assert resolve(config, dataset()).restart_every == 30
    with pytest.raises(ValueError, match=r"^restart_every: expected joint or refine"):
        resolve(replace(config, joint_iterations=0, refine_iterations=0), dataset())
