from dataclasses import fields, replace
from itertools import product

import pytest
import torch

from pyro_fmvae.app.recipes import configure, fmvae
from pyro_fmvae.app.recipes.registry import read_config, resolved
from pyro_fmvae.app.recipes.settings import budgets_of, patience_of
from pyro_fmvae.data import Kind
from pyro_fmvae.data.labels import choose_labels
from pyro_fmvae.learn.options import AUTO
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.nn import SideBySide
from tests.app.recipes.choices import build, resolve
from tests.datasets import dataset


@pytest.mark.parametrize(
    "data",
    [
        dataset(),
        dataset((28, 28)),
        dataset((6,), Kind.TABLE),
        dataset((4, 4, 3), Kind.IMAGE, (2, 3)),
        dataset((64, 64, 3), Kind.IMAGE),
    ],
)
def test_resolved_options_are_complete_and_stay(data):
    config = resolve(configure(data="mine.npz"), data)
    for option in fields(config):
        assert getattr(config, option.name) is not None or not option.metadata["by_data"], option.name
    assert resolve(config, data) == config
    assert read_config(config.to_dict()) == config


def test_given_options_are_kept():
    given = configure(
        data="mine.npz", factors=(2, 2), factor_dim=3, hidden=(7,), batch_size=9, joint_iterations=0
    )
    config = resolve(given, dataset())
    for name in ("factors", "factor_dim", "hidden", "batch_size", "joint_iterations"):
        assert getattr(config, name) == getattr(given, name)


def test_smiley_is_the_name_of_the_data_not_of_a_file():
    faces = dataset((32, 32), label_sizes=(2, 2, 2, 2), name="smiley", size=30)
    assert resolve(configure(), faces).factors == (2, 2, 2, 2)
    assert resolve(configure(data="/home/me/smiley.npz"), faces).labels == 0


@pytest.mark.parametrize(
    ("shape", "network"),
    [((32, 32, 3), "mlp"), ((48, 48, 3), "conv"), ((20, 33), "conv"), ((96, 128, 3), "conv")],
)
def test_images_of_more_than_32_pixels_get_convolutions(shape, network):
    for model in ("fmvae", "vae", "vsc"):
        assert resolve(configure(model, "mine.npz"), dataset(shape, Kind.IMAGE)).network == network


@pytest.mark.parametrize(("size", "hidden", "decay"), [(999, 50, 0.5), (1999, 200, 0.5), (2000, 200, 0)])
def test_few_points_get_small_networks_whose_weights_decay(size, hidden, decay):
    table, images = dataset((6,), Kind.TABLE, size=size), dataset((8, 8), Kind.IMAGE, size=size)
    for model in ("fmvae", "vae", "vsc"):
        for data, units in ((table, hidden), (images, 200)):
            config = resolve(configure(model, "mine.npz"), data)
            assert (config.hidden, config.weight_decay) == ((units,), decay)
    given = resolve(configure(data="mine.npz", hidden=(7,), weight_decay=0.0), table)
    assert (given.hidden, given.weight_decay) == ((7,), 0)


def test_published_data_and_models_without_networks_are_trained_without_decay():
    published = resolve(configure(data="omniglot"), dataset((28, 28), size=30))
    assert (published.hidden, published.weight_decay) == ((400,), 0)
    assert resolve(configure("bsc", "mine.npz"), dataset((3, 5), Kind.REAL, size=30)).weight_decay == 0


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("model", ["fmvae", "vae", "vsc"])
def test_own_convolutions_are_in_bfloat16_where_the_processor_is(monkeypatch, native, model):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
    large, small = dataset((40, 40), Kind.IMAGE), dataset((8, 8), Kind.IMAGE)

    def autocast(images, **given):
        return resolve(configure(model, **{"data": "mine.npz"} | given), images).autocast

    assert autocast(large) is autocast(small, network="conv") is autocast(large, device="cpu") is native
    assert not autocast(small) and not autocast(large, network="mlp") and not autocast(large, data="mnist")
    assert autocast(large, autocast=False) is False and autocast(large, autocast=True) is True
    assert not autocast(large, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert autocast(large) is False
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert autocast(large, device="cpu") is False  # torch does not tell


@pytest.mark.parametrize(("data", "expected"), [("mine.csv", 500), ("smiley", 0), ("mnist", 0)])
def test_patience_is_for_data_of_your_own(data, expected):
    assert patience_of(configure(data=data)) == expected
    assert patience_of(configure(data=data, patience=30)) == 30
    assert patience_of(configure(data=data, patience=0)) == 0


def test_refining_is_for_labels():
    data = dataset(label_sizes=(2,))
    assert resolve(configure(labels=0.5), data).refine_iterations > 0
    for config in (configure(labels=0.0), configure(labels=0.5, label_weight=0.0)):
        assert resolve(config, data).refine_iterations == 0


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"factors": (2, 2)}, True),
        ({"factors": (2, 2), "labels": 0.5}, True),
        ({"factors": (2, 2), "pretrain_iterations": 0, "pretrained": "run"}, True),
        ({"factors": (2,)}, False),
        ({"factors": (2,), "labels": 0.5}, False),
        ({"factors": (2, 2), "pretrain_iterations": 0}, False),
    ],
)
def test_free_factors_start_from_independent_components_of_pretrained_codes(options, starts):
    data, options = dataset(label_sizes=(2,)), {"labels": 0.0} | options
    assert resolve(configure(**options), data).independent_start == starts
    assert not resolve(configure(**options, independent_start=False), data).independent_start
    if not starts:
        with pytest.raises(ValueError, match=r"^independent_start: expected (pretrained|two factors)"):
            resolve(configure(**options | {"independent_start": True}), data)


def test_no_phase_of_own_labelled_data_goes_without_the_classification_term():
    """In a phase with Δ = 0 a few clamped points meet all the free ones, and lose their components."""
    data = dataset(label_sizes=(2,), size=40)
    config = resolve(configure(data="mine.npz", labels=0.5), data)
    assert config.refine_iterations == 0 and config.label_weight > 0
    assert resolve(replace(config, refine_iterations=7), data).refine_iterations == 7


@pytest.mark.parametrize("labels", [0.0, 0.5])
@pytest.mark.parametrize(
    ("data", "shape", "kind"),
    [
        ("mine.npz", (8, 8), Kind.IMAGE),
        ("mine.npz", (40, 40), Kind.IMAGE),
        ("mine.npz", (28, 28), Kind.BINARY),
        ("mine.npz", (6,), Kind.TABLE),
        ("mnist", (8, 8), Kind.IMAGE),
    ],
)
def test_own_images_without_labels_have_full_starts_and_once_more_in_refine(data, shape, kind, labels):
    mine = dataset(shape, kind, (2,), size=200)
    config = resolve(configure(data=data, labels=labels), mine)
    full = data == "mine.npz" and kind is not Kind.TABLE and not labels
    assert (bool(config.full_starts), config.s0) == ((True, 0.05) if full else (False, 1.0))
    if not labels:
        assert config.refine_iterations == (config.joint_iterations // 3 if full else 0)
        assert config.factors == (8 if kind is Kind.TABLE else 16,)
        shorter = resolve(configure(data=data, labels=0.0, joint_iterations=7), mine)
        assert shorter.refine_iterations == (2 if full else 0)
    recipe = resolved(replace(config, refine_iterations=3), mine)
    again = [phase.seed for phase in recipe.phases(recipe.build())[1:]]
    assert again == [0, None, 0 if full else None]


@pytest.mark.parametrize(
    ("given", "distance"),
    [
        ({}, 10.0),
        ({"pretrain_iterations": 5}, 0.0),
        ({"factors": (4, 2), "per_value": 2}, 0.0),
        ({"pretrained": "/runs/a"}, 0.0),
        ({"pretrained": "/runs/a", "label_distance": 4.0}, 4.0),
    ],
)
def test_components_of_labels_are_separated_unless_networks_are_trained_before(given, distance):
    sprites = dataset((64, 64, 3), Kind.IMAGE, (2,), "sprites", size=40)
    assert resolve(configure(data="sprites", **given), sprites).label_distance == distance


@pytest.mark.parametrize(("labels", "share"), [(0.5, 0.5), (1.0, 1.0), (4, 0.1)])
def test_classification_of_own_data_weighs_as_much_as_that_of_sprites_however_few_labels(labels, share):
    sprites = dataset((64, 64, 3), Kind.IMAGE, (2,), "sprites", size=40)
    published = resolve(configure(data="sprites"), sprites)
    config = resolve(configure(data="mine.npz", labels=labels), dataset(label_sizes=(2,), size=40))
    assert config.label_weight * share == pytest.approx(published.label_weight * published.labels)


def test_labels_that_are_missing_count_as_hidden_ones_do_each_for_itself():
    """Labels of different points do not add up: a weight by their union would be too small for each."""
    data = dataset(label_sizes=(2, 2, 2), size=40)
    data.train.labels[:] = -1
    data.train.labels[:10, 0] = 0
    data.train.labels[10:14, 1] = 1
    data.train.labels[5:, 2] = 1
    for names, share in ((("label0",), 10 / 40), (("label0", "label1"), 7 / 40), (None, 49 / 120)):
        config = resolve(configure(data="mine.npz", labels=1.0, label_names=names), data)
        assert config.label_weight * share == pytest.approx(50)


@pytest.mark.parametrize(
    ("shape", "kind", "warped"),
    [
        ((8, 8), Kind.IMAGE, 0.5),
        ((8, 8, 3), Kind.IMAGE, 0.5),
        ((8, 12), Kind.IMAGE, 0.5),
        ((6,), Kind.TABLE, None),
    ],
)
def test_own_labelled_images_are_warped_to_the_end(shape, kind, warped):
    data = dataset(shape, kind, (2,), size=40)
    config = resolve(configure(data="mine.npz", labels=1.0), data)
    assert config.augmentation == warped
    assert config.augment_until == 1
    assert resolve(config, data) == config
    unlabelled = resolve(configure(data="mine.npz"), data)
    assert unlabelled.augmentation is None and unlabelled.augment_until == 0.5


@pytest.mark.parametrize("shape", [(8, 8), (32, 32), (20, 20, 3), (64, 64, 3)])
@pytest.mark.parametrize("options", [{}, {"labels": 1.0}, {"labels": 1.0, "factors": (2, 4)}])
def test_pretrained_codes_are_neither_squeezed_nor_hidden(shape, options):
    data = dataset(shape, Kind.IMAGE, (2,), size=40)
    for given in ({}, {"pretrain_iterations": 0, "pretrained": "/runs/a"}):
        config = resolve(configure(data="mine.npz", **options, **given), data)
        assert (config.kl_weight, config.free_from) == (1, 0)
    faces = resolve(configure(data="celeba", **options), dataset(shape, Kind.IMAGE, (2,), "celeba"))
    assert (faces.kl_weight, faces.free_from) == (1, 0)


@pytest.mark.parametrize(("shape", "weight"), [((8, 8), 1), ((31, 31), 1), ((32, 32), 20), ((20, 20, 3), 20)])
def test_labels_of_own_images_come_first_where_neither_factors_nor_pretraining_are_given(shape, weight):
    data = dataset(shape, Kind.IMAGE, (2,), size=40)
    config = resolve(configure(data="mine.npz", labels=1.0, pretrain_iterations=0), data)
    assert (config.kl_weight, config.free_from) == (weight, 0.5)
    assert config.min_scale == 0.1 and resolve(config, data) == config


def test_labels_of_own_images_are_spread_and_count_in_the_weight():
    """Two kinds of images, a quarter of each labelled, which tells the others."""
    data = dataset((3, 3), Kind.IMAGE, (2,), size=80)
    data.train.x[40:] = True
    data.train.labels[40:] = 1
    data.train.labels[torch.arange(80) % 4 > 0] = -1
    for given, spread, known in ((None, 0.95, 1.0), (0.0, 0.0, 0.25)):
        config = resolve(configure(data="mine.npz", labels=1.0, spread=given), data)
        assert config.spread == spread and config.label_weight * known == pytest.approx(50)
    table = dataset((6,), Kind.TABLE, (2,), size=40)
    assert resolve(configure(data="mine.npz", labels=1.0), table).spread == 0
    assert resolve(configure(labels=0.5), dataset(label_sizes=(2,))).spread is None


@pytest.mark.parametrize("width", [0.0, 0.25])
def test_labelled_factors_may_have_an_encoder_of_their_own(width):
    data = dataset((32, 32), Kind.IMAGE, (2,), size=40)
    config = resolve(configure(data="mine.npz", labels=0.4, label_width=width, factor_dim=3), data)
    assert isinstance(build(config, data).encoder, SideBySide) == (width > 0)


@pytest.mark.parametrize("options", [{"labels": 0.0}, {"labels": 0.4, "network": "conv"}])
def test_an_encoder_of_labelled_factors_that_there_is_not(options):
    data = dataset((32, 32), Kind.IMAGE, (2,), size=40)
    with pytest.raises(ValueError, match="label_width: expected 0"):
        resolve(configure(data="mine.npz", label_width=0.25, **options), data)


def test_published_names_keep_their_defaults():
    data = dataset((32, 32), label_sizes=(2, 2, 2, 2), name="smiley", size=40)
    config = resolve(configure(), data)
    assert (config.label_weight, config.refine_iterations, config.augmentation) == (100, 1500, None)
    mnist = resolve(configure(data="mnist", labels=0.5), dataset((28, 28), label_sizes=(10,), size=40))
    assert (mnist.label_weight, mnist.refine_iterations, mnist.augmentation) == (100, 2000, None)


def test_learning_rate_falls_from_that_of_the_joint_phase():
    digits = dataset((28, 28), Kind.BINARY)
    given = configure(data="mine", learning_rate=1e-2)
    assert resolve(given, digits).final_learning_rate == pytest.approx(1e-3)
    config = resolve(replace(given, joint_learning_rate=1e-3), digits)
    assert config.final_learning_rate == pytest.approx(1e-4)


@pytest.mark.parametrize("name", ["smiley", "sprites", "mine"])
def test_baseline_has_the_mixtures_networks_and_learning_phases(name):
    data = dataset((64, 64, 3), Kind.IMAGE, (2,), name)
    given = configure(data=name, pretrain_iterations=5, joint_iterations=7, prior_iterations=3)
    config = resolve(replace(given, labels=0.0), data)
    vae = resolve(configure("vae", name, pretrain_iterations=5, joint_iterations=7), data)
    same = ("factors", "factor_dim", "network", "width", "hidden", "batch_size", "min_scale", "hold_out")
    for option in (*same, "pretrain_iterations", "joint_iterations"):
        assert getattr(vae, option) == getattr(config, option), option
    if name != "smiley":  # a mixture of smileys without labels has a falling rate of its own
        assert vae.final_learning_rate == config.final_learning_rate
    assert vae.kl_weight == 1
    assert resolve(vae, data) == vae


def test_a_baseline_has_no_options_of_factors():
    assert resolve(configure("vae", "a.npz", kl_weight=5.0), dataset()).kl_weight == 5
    for name in ("label_weight", "free_from", "independence_weight", "refine_iterations", "prior_iterations"):
        assert configure("vae", "a.npz", **{name: 0}) == configure("vae", "a.npz")
        with pytest.raises(ValueError, match=f"^{name}: an option of fmvae.*, not of vae$"):
            configure("vae", "a.npz", **{name: 0.5})


def test_baseline_of_no_iterations():
    given = dict.fromkeys(("pretrain_iterations", "joint_iterations"), 0)
    with pytest.raises(ValueError, match=r"^iterations: expected at least one"):
        resolve(configure("vae", "a.npz", **given), dataset())


@pytest.mark.parametrize("model", ["fmvae", "vae"])
def test_pretrained_networks_are_not_pretrained_again_unless_told(model):
    given = configure(model, "mine.npz", pretrained="/runs/a")
    assert resolve(given, dataset()).pretrain_iterations == 0
    assert resolve(replace(given, pretrain_iterations=4), dataset()).pretrain_iterations == 4
    assert resolve(replace(given, pretrained=None), dataset()).pretrain_iterations > 0


@pytest.mark.parametrize("closing", [{"label_weight": 0.0}, {"refine_iterations": 0}])
def test_free_factors_are_opened_even_without_a_refine_phase(closing):
    data = dataset((64, 64, 3), Kind.IMAGE, (2,), "sprites", size=30)
    assert resolve(configure(data="sprites"), data).free_from == 1
    config = resolve(configure(data="sprites", **closing), data)
    assert config.free_from == 0
    assert resolve(config, data) == config
    with pytest.raises(ValueError, match=r"^free_from: expected a number below 1"):
        resolve(configure(data="sprites", free_from=1.0, **closing), data)
    unlabelled = resolve(configure(data="sprites", labels=0.0, free_from=1.0), data)
    assert resolve(unlabelled, data) == unlabelled


@pytest.mark.parametrize(
    ("options", "pretrained"),
    [
        ({}, False),
        ({"label_names": ("label0", "label1")}, False),
        ({"label_names": ("label1",)}, True),
        ({"labels": 0.0}, True),
        ({"label_names": ("label1",), "pretrain_iterations": 0}, False),
        ({"label_names": ("label1",), "pretrained": "/runs/a"}, False),
    ],
)
def test_sprites_are_pretrained_where_a_property_has_no_label(options, pretrained):
    data = dataset((64, 64, 3), Kind.IMAGE, (2, 2), "sprites", size=30)
    config = resolve(configure(data="sprites", **options), data)
    assert (config.pretrain_iterations > 0) == pretrained
    untrained = not (pretrained or config.pretrained)
    assert (config.free_from, config.kl_weight) == ((1, 20) if untrained else (0, 1))
    assert resolve(config, data) == config


@pytest.mark.parametrize(("size", "components"), [(3, 2), (23, 2), (64, 8), (511, 63), (512, 64), (2000, 64)])
def test_few_points_of_your_own_get_few_components(size, components):
    pictures = dataset((64, 64, 3), Kind.IMAGE, (5,), size=size)
    config = resolve(configure(data="photos"), pictures)
    assert config.factors == (min(components, 16),) and resolve(config, pictures) == config
    assert resolve(configure(data="photos", labels=1.0), pictures).factors == (5, components)
    assert resolve(configure(data="photos", factors=(64,)), pictures).factors == (64,)
    assert resolve(configure(data="celeba"), pictures).factors == (64, 64)


def test_factors_of_labels_come_first():
    data = dataset(label_sizes=(2, 3, 5), size=128)
    assert resolve(configure(data="mine.npz"), data).factors == (16,)
    assert resolve(configure(data="mine.npz", labels=0.5), data).factors == (2, 3, 5, 16)
    chosen = configure(data="mine.npz", labels=0.5, label_names=("label0", "label1"))
    assert resolve(chosen, data).factors == (2, 3, 16)


def test_labels_that_are_not_chosen_need_no_factor():
    config = configure(data="mine.npz", labels=0.5, label_names=("label0",), factors=(2,))
    assert resolve(config, dataset(label_sizes=(2, 9))).factors == (2,)


@pytest.mark.parametrize(
    "left_out", [(), ("refine",), ("pretrain", "prior"), ("pretrain", "prior", "refine")]
)
def test_minutes_are_shared_out_among_the_phases_that_there_are(left_out):
    given = configure(data="mine.npz", labels=1.0, max_minutes=7.0, refine_iterations=9)
    config = resolve(given, dataset(label_sizes=(2,)))
    config = replace(config, **{f"{name}_iterations": 0 for name in left_out})
    budgets = budgets_of(config)
    assert sum(budget.minutes for budget in budgets.values()) == pytest.approx(7)
    assert {name for name, budget in budgets.items() if budget.empty} == set(left_out)
    assert all(isinstance(budget, Budget) and budget.iterations is None for budget in budgets.values())


def test_own_data_are_learnt_for_five_minutes_at_most():
    config = resolve(configure(data="mine.npz", labels=1.0), dataset(label_sizes=(2,)))
    assert config.timed
    budgets = budgets_of(config)
    assert {name: budget.iterations for name, budget in budgets.items()} == config.iterations
    assert sum(budget.minutes for budget in budgets.values()) == pytest.approx(5)
    assert budgets["joint"].minutes == pytest.approx(2 * budgets["pretrain"].minutes)  # as 3000 to 1500


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"data": "mnist"}, None),
        ({"data": "mine.npz", "prior_iterations": 7}, None),
        ({"data": "mine.npz", "max_minutes": 3.0}, None),
        ({"data": "mine.npz", "time_limit": 0.0}, 0.0),
        ({"data": "mine.npz", "joint_iterations": 9, "time_limit": 30.0}, 30.0),
    ],
)
def test_a_length_that_is_given_has_no_limit_but_a_given_one(options, limit):
    config = resolve(configure(**options), dataset())
    assert config.time_limit == limit
    assert config.timed == bool(limit or config.max_minutes)


CODERS = ("bsc", "max-sparse", "linear-sparse")


def coder(model, data="mine.npz", size=3, **options):
    """Resolved options of a model that EM learns."""
    return resolve(configure(model, data, **options), dataset((3, 5), Kind.REAL, size=size))


@pytest.mark.parametrize("model", CODERS)
def test_few_points_are_learnt_in_whole_batches_from_several_starts(model):
    binary = model == "bsc"
    for size in (7, 2000):
        config = coder(model, size=size)
        assert (config.batch_size, config.latent_dim) == (size, 100)
        assert config.iterations == ({"joint": 80} if binary else {"joint": 50, "refine": 5})
        assert (config.starts, config.sweeps, config.temperature) == ((5, 3, 1) if binary else (2, 4, 3))
        own = (config.nonnegative, config.reseed_every) if binary else config.preselect
        assert own == ((False, 5) if binary else 5)


@pytest.mark.parametrize("model", CODERS)
def test_many_points_are_learnt_in_batches_from_one_start(model):
    config = coder(model, size=2001)
    refine = {} if model == "bsc" else {"refine": 0}
    assert (config.batch_size, config.starts) == (1000, 1)
    assert config.iterations == {"joint": 20 * 3} | refine
    if model == "bsc":
        assert config.reseed_every == 0
    assert config.temperature == (1 if model == "bsc" else 3)
    config = coder(model, size=30, batch_size=8)
    assert (config.starts, config.iterations) == (1, {"joint": 20 * 4} | refine)
    assert coder(model, size=30, batch_size=30).starts > 1
    assert coder(model, size=30, batch_size=8, joint_iterations=2, starts=3).starts == 3


@pytest.mark.parametrize("model", CODERS)
def test_bars_have_twice_as_many_units_as_a_side_has_pixels(model):
    for kind in ("binary", "max", "linear"):
        config = coder(model, f"bars-{kind}", 500)
        assert config.latent_dim == 6
        assert model != "bsc" or config.nonnegative
    assert coder(model, "bars-max", latent_dim=9).latent_dim == 9


@pytest.mark.parametrize("size", [500, 5000])
def test_gradients_learn_from_one_start_that_is_never_moved(size):
    config = coder("bsc", size=size, m_step="gradient", learning_rate=0.01)
    assert (config.starts, config.reseed_every, config.temperature) == (1, 0, 1)
    assert config.iterations == {"joint": 3000}
    assert config.final_learning_rate == pytest.approx(1e-3)
    assert config.batch_size == min(size, 1000)


@pytest.mark.parametrize(
    ("model", "size", "batch_size"), [*product(CODERS, [30], [None, 7]), ("bsc", 2001, None)]
)
def test_resolved_options_of_a_coder_stay(model, size, batch_size):
    """So that a run's config.json can be trained again."""
    for options in ({}, {"m_step": "gradient"}) if model == "bsc" else ({}, {"preselect": 0}):
        config = coder(model, size=size, batch_size=batch_size, **options)
        data = dataset((3, 5), Kind.REAL, size=size)
        assert resolve(config, data) == config
        assert read_config(config.to_dict()) == config


def numbered(*columns):
    """A data set with these columns of labels, of the same values in each split."""
    labels = torch.tensor(columns).T
    data = dataset(label_sizes=(labels.amax(0) + 1).tolist(), size=len(labels))
    splits = {name: replace(data.split(name), labels=labels) for name in ("train", "valid", "test")}
    return replace(data, **splits)


def test_labels_are_numbered_where_factors_go_by_them():
    plain, years, dense = [0, 1, 1, 0, 1] * 30, [-1, 20190002, 2019, 7, 7] * 30, list(range(150))
    data = numbered(plain, years, dense)
    chosen = {"data": "mine.npz", "label_names": ("label0", "label2")}
    with pytest.raises(ValueError) as error:
        resolve(configure(data="mine.npz", labels=0.5), data)
    assert str(error.value) == "labels: 'label1' has 3 values, the largest 20190002; number them from 0"
    assert resolve(configure(data="mine.npz"), data).labels == 0  # nothing is trained on them
    config = resolve(configure(labels=0.5, **chosen), choose_labels(data, chosen["label_names"]))
    assert config.factors[:2] == (2, 150)
    few = numbered([0, 120])
    with pytest.raises(ValueError, match=r"^labels: 'label0' has 2 values, the largest 120"):
        resolve(configure(data="mine.npz", labels=0.5), few)
    assert resolve(configure(data="mine.npz", labels=0.5, factors=(121,)), few).factors == (121,)


@pytest.mark.parametrize(("given", "dim"), [(None, 10), (3, 3)])
def test_factors_that_are_found_share_the_latents(monkeypatch, given, dim):
    monkeypatch.setattr(fmvae, "found_factors", lambda *_: (2, 5, 3))
    config = resolve(configure(data="mine.npz", factors=AUTO, factor_dim=given), dataset())
    assert (config.factors, config.factor_dim) == ((2, 5, 3), dim)
