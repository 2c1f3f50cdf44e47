import pytest
import torch

from pyro_fmvae.evaluate import Judge, judged_edits, judged_generation, to_location, transport
from pyro_fmvae.evaluate.judged import _other_values, decoded
from tests.evaluate.exact import PROPERTIES, exact_judge, exact_model, images, random_codes
from tests.models.small import binary_data, small_model


def test_an_exact_model_generates_what_is_intended():
    generation = judged_generation(exact_model(), exact_judge(), 300)
    assert generation.images.shape == (300, 16, 16)
    assert generation.accuracy.tolist() == [1.0, 1.0]
    for column, size in enumerate((2, 3)):  # uniform: within four deviations
        counts = generation.intended[:, column].bincount(minlength=size)
        assert (counts - 300 / size).abs().max() < 4 * (300 / size) ** 0.5
    together = (3 * generation.intended[:, 0] + generation.intended[:, 1]).bincount(minlength=6)
    assert (together - 50).abs().max() < 4 * 50**0.5  # and independent
    # What nothing was intended for is drawn from the model: both components of factor 2 are as likely.
    free = generation.images[:, 12:].mean((1, 2)).round()
    assert 0.3 < free.mean() < 0.7


def test_generation_that_fails_is_told():
    judge = exact_judge()
    judge.mistaken = True
    generation = judged_generation(exact_model(), judge, 300)
    expected = (generation.intended[:, [1, 0]] == generation.intended).double().mean(0)
    assert torch.equal(generation.accuracy, expected)
    assert generation.accuracy.max() < 0.6
    shifted = judged_generation(exact_model(offset=1.0), exact_judge(), 50)
    assert shifted.accuracy.tolist() == [0.0, 0.0]


def test_draws_depend_on_the_seed_alone():
    model, judge = exact_model(), exact_judge()
    state = torch.get_rng_state()
    first = judged_generation(model, judge, 20, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert torch.equal(judged_generation(model, judge, 20, seed=1).images, first.images)
    assert not torch.equal(judged_generation(model, judge, 20, seed=2).images, first.images)


@pytest.mark.parametrize("placement", [to_location, transport])
@pytest.mark.parametrize("known", [True, False])
def test_an_exact_model_is_edited_as_asked(placement, known):
    codes = random_codes(60)
    x, _ = images(codes)
    labels = codes[:, list(PROPERTIES)]
    edits = judged_edits(
        exact_model(), exact_judge(), x, labels if known else -torch.ones_like(labels), placement=placement
    )
    assert edits.flipped.tolist() == [1.0, 1.0]
    assert edits.kept.tolist() == edits.kept_of_original.tolist() == [1.0, 1.0]
    assert edits.reconstructed.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("known", [True, False])
def test_edits_that_do_nothing_flip_nothing(known):
    """The new value is never the present one: the label, or the code if there is no label."""
    codes = random_codes(60)
    x, _ = images(codes)
    labels = codes[:, list(PROPERTIES)]
    stay = lambda block, old, new: block  # noqa: E731
    edits = judged_edits(
        exact_model(), exact_judge(), x, labels if known else -torch.ones_like(labels), placement=stay
    )
    assert edits.flipped.tolist() == [0.0, 0.0]
    assert edits.kept.tolist() == [1.0, 1.0]


def test_what_edits_break_is_told():
    """A decoder that shows the sum of two factors in the place of one changes what it should keep."""
    model, codes = exact_model(), random_codes(40)
    codes[:, 0] = codes[:, 0].clamp(max=1)  # the sum stays below 3
    x, _ = images(codes)
    plain = model.decoder

    class Mixing(torch.nn.Module):
        def forward(self, z):
            first = z[..., :1] + z[..., 1:2]
            return plain(torch.cat([first, z[..., 1:]], -1))

    model.decoder = Mixing()
    edits = judged_edits(model, exact_judge(), x, codes[:, list(PROPERTIES)])
    # Factor 1 (property 0) changes property 1, never 2: half of the others are kept. Factor 0 breaks nothing.
    assert edits.kept.tolist() == [0.5, 1.0]
    assert edits.kept_least.tolist() == [0.0, 1.0]
    wrong = (codes[:, 1] == 1).double().mean().item()
    assert edits.reconstructed.tolist() == pytest.approx([1, 1 - wrong, 1])
    # Against the original: after the edit property 1 is right where factor 1 has become 0.
    assert edits.kept_of_original.tolist() == pytest.approx([(wrong + 1) / 2, 1.0])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_other_values_are_uniform_over_the_others(size):
    generator = torch.Generator().manual_seed(0)
    for current in range(size + 1):  # the last stands for no value
        asked = _other_values(torch.full((3000,), current), size, generator)
        counts = asked.bincount(minlength=size)
        others = [value for value in range(size) if value != current]
        assert counts[others].sum() == 3000
        share = 3000 / len(others)
        assert (counts[others] - share).abs().max() < 4 * share**0.5


def test_a_property_with_one_value_cannot_be_edited():
    x, _ = images(random_codes(10))
    judge = exact_judge()
    judge.label_sizes = (1, 3, 2)
    edits = judged_edits(exact_model(), judge, x, torch.zeros(10, 3, dtype=torch.int64))
    assert edits.flipped.isnan().tolist() == [True, False]


def test_binary_images_are_the_more_probable_pixels():
    model = small_model((3,))
    z = torch.randn(8, 2) * 5
    means = model.observation.mean(model.decoder(z))
    shown = decoded(model, z)
    assert torch.equal(shown, (means >= 0.5).to(means.dtype))
    assert 0 < shown.mean() < 1


@pytest.mark.parametrize(
    ("changes", "sizes", "message"),
    [
        ({"labelled": ()}, (2, 3, 2), r"^model: expected labelled factors, got none"),
        ({}, (2,), r"^judge: expected 2 properties or more, got 1"),
        ({}, (3, 3), r"^judge: expected no more values than components of each labelled factor"),
    ],
)
def test_models_and_judges_that_do_not_fit(changes, sizes, message):
    model, judge = exact_model(**changes), Judge((16, 16), sizes)
    x, labels = torch.zeros(2, 16, 16), torch.zeros(2, 3, dtype=torch.int64)
    for measure in (
        lambda: judged_generation(model, judge, 5),
        lambda: judged_edits(model, judge, x, labels),
    ):
        with pytest.raises(ValueError, match=message):
            measure()


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match=r"^num_samples: expected a number >= 1, got 0"):
        judged_generation(exact_model(), exact_judge(), 0)
    empty = torch.zeros(0, 16, 16), torch.zeros(0, 3, dtype=torch.int64)
    narrow = torch.zeros(2, 16, 16), torch.zeros(2, 1, dtype=torch.int64)
    for x, labels in (empty, narrow):
        with pytest.raises(ValueError, match=r"^x, labels: expected n >= 1 images and \[n, 2\] labels"):
            judged_edits(exact_model(), exact_judge(), x, labels)


def test_models_in_single_precision_are_judged_by_a_judge_in_another():
    torch.set_default_dtype(torch.float32)
    model = small_model((2,), labelled=(0,))
    x = binary_data(3)
    assert decoded(model, model.encoder(x)[0]).dtype == torch.float32
