"""Pictures of arrays and of a made-up generator, whose images show which component each block came from."""

import io
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage, BboxImage, imread

from pyro_fmvae.figures import (
    Factors,
    attribute_rows,
    column_means,
    compared_curves,
    component_grid,
    reconstructions,
    sample_grid,
    save,
    training_curves,
)

SIZES, DIM = (2, 3, 5), 2


class Generator:
    """Block i of z is (k, noise): pixel i of the image shows k / K_i. Records what it was asked."""

    def __init__(self, sizes=SIZES, colour=False, columns=None):
        self.sizes, self.colour, self.columns = sizes, colour, columns
        self.decoded, self.codes = [], []

    def decode(self, z):
        self.decoded.append(z.clone())
        shades = z[:, ::DIM] / torch.tensor(self.sizes)
        if self.columns is not None:
            return shades.sum(1, keepdim=True) * torch.linspace(-1, 1, self.columns)
        image = shades[:, None, :].expand(-1, 2, -1)
        return image[..., None].expand(-1, -1, -1, 3) if self.colour else image

    def sample_latent(self, num, codes):
        assert codes.shape == (num, len(self.sizes)) and codes.dtype == torch.int64
        self.codes.append(codes)
        return torch.stack([codes.to(torch.get_default_dtype()), torch.randn(codes.shape)], -1).flatten(1)

    def factors(self, **changes):
        means = [torch.stack([torch.arange(float(k)), torch.full((k,), 0.5)], -1) for k in self.sizes]
        shares = [torch.arange(1.0, k + 1) for k in self.sizes]
        return Factors(
            **{
                "decode": self.decode,
                "sample_latent": self.sample_latent,
                "means": means,
                "shares": shares,
                **changes,
            }
        )


def png(figure, path):
    save(figure, path)
    return path.read_bytes()


def drawn(figure):
    return figure.findobj(AxesImage) or figure.findobj(BboxImage)


def pictures(figure):
    """The arrays of all images drawn, in order."""
    return [np.asarray(image.get_array()) for image in drawn(figure)]


def texts(figure):
    return [text.get_text() for text in figure.texts]


def overlaps(figure):
    """Pairs of texts that overlap each other, and texts that leave the page."""
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts if text.get_text()]
    width, height = figure.canvas.get_width_height()
    outside = [t for t, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > width or b.y1 > height]
    pairs = [
        (s, t)
        for i, (s, a) in enumerate(boxes)
        for t, b in boxes[:i]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]
    return outside + pairs


def record(step, phase="joint", **values):
    parts = {"elbo": -30.0 + step / 100, "reconstruction": -15.0, "kl_z": 12.0, "kl_r": 3.0}
    return {"step": step, "phase": phase, **parts, "used_components": [2, 2, 1], "seconds": 0.1, **values}


class TestAttributeRows:
    @pytest.mark.parametrize("sizes", [(2,), SIZES, (6, 6, 6, 6, 3, 3, 16)])
    def test_each_column_changes_exactly_one_block(self, sizes):
        generator = Generator(sizes)
        figure = attribute_rows(generator.factors(), rows=4)
        z = torch.cat(generator.decoded).unflatten(0, (1 + len(sizes), 4)).unflatten(-1, (len(sizes), DIM))
        for column in range(len(sizes)):
            changed = (z[1 + column] != z[0]).any(-1)
            expected = torch.arange(len(sizes)) == column
            assert (changed == expected).all()
        # The first number of a block is its component: another one.
        codes, others = generator.codes
        assert (z[0, ..., 0] == codes).all() and (codes != others).all()
        for column in range(len(sizes)):
            assert (z[1 + column, :, column, 0] == others[:, column]).all()
        assert len(drawn(figure)) == 4 * (1 + len(sizes))

    def test_pictures_stand_in_rows_beside_their_base(self):
        generator = Generator()
        figure = attribute_rows(generator.factors(), rows=3)
        shown = np.stack(pictures(figure)).reshape(3, 4, 2, 3)
        codes, others = (c.numpy() / np.array(SIZES) for c in generator.codes)
        np.testing.assert_allclose(shown[:, 0, 0], codes)
        np.testing.assert_allclose(shown[:, 1:, 0].diagonal(axis1=1, axis2=2), others)

    def test_only_components_in_use_are_drawn(self):
        generator = Generator((3, 4))
        shares = [torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.0, 1000.0, 0.0, 1.0])]
        attribute_rows(generator.factors(shares=shares), rows=50)
        codes, others = generator.codes
        assert set(codes[:, 0].tolist()) == {0, 2} and (others[:, 0] == 2 - codes[:, 0]).all()
        assert (codes[:, 1] == 1).all() and (others[:, 1] == 1).all()  # the only one in use

    def test_titles_and_captions(self):
        figure = attribute_rows(Generator((2, 2)).factors(names=("eyes", "mouth")), rows=1)
        assert {"base", "eyes", "mouth"} <= set(texts(figure))
        assert all(text in ("0 → 1", "1 → 0") for text in texts(figure) if text[0].isdigit())
        named = Generator((2, 2)).factors(labelled=1, value_names=[("open", "closed")])
        captions = {text for text in texts(attribute_rows(named, rows=8)) if " → " in text}
        assert captions == {"open → closed", "closed → open", "0 → 1", "1 → 0"}

    def test_leaves_the_random_stream_alone(self):
        before = torch.get_rng_state()
        attribute_rows(Generator().factors(), rows=2)
        assert torch.equal(torch.get_rng_state(), before)

    def test_seed(self, tmp_path):
        factors = Generator().factors()
        first, again, other = (
            png(attribute_rows(factors, rows=2, seed=seed), tmp_path / "a.png") for seed in (0, 0, 1)
        )
        assert first == again != other

    def test_gradients_are_off(self):
        modes = []

        def decode(z):
            modes.append(torch.is_grad_enabled())
            return z.reshape(-1, 2, 3)

        attribute_rows(Generator().factors(decode=decode), rows=1)
        assert modes == [False]


class TestComponentGrid:
    def test_sorted_by_share_and_all_else_at_the_most_used(self):
        generator, base = Generator(), torch.tensor([1, 0.5, 2, 0.5, 4, 0.5])
        figure = component_grid(generator.factors())
        z = torch.cat(generator.decoded)
        assert len(z) == len(drawn(figure)) == sum(SIZES)
        start = 0
        for factor, size in enumerate(SIZES):
            block = z[start : start + size].unflatten(-1, (3, DIM))
            others = [i for i in range(3) if i != factor]
            assert (block[:, others] == base.view(3, DIM)[others]).all()
            assert block[:, factor, 0].tolist() == list(range(size))[::-1]  # shares rise with the index
            start += size

    def test_unused_ones_are_marked(self):
        figure = component_grid(Generator((3,)).factors(shares=[torch.tensor([3.0, 0.0, 1.0])]))
        assert [text for text in texts(figure) if ": " in text] == ["0: 75 %", "2: 25 %", "1: unused"]
        assert "2 of 3 in use" in texts(figure)
        assert [image.get_alpha() is None for image in drawn(figure)] == [True, True, False]

    def test_at_most_64_are_shown(self):
        figure = component_grid(Generator((70,)).factors(shares=[torch.ones(70)]))
        assert len(drawn(figure)) == 64
        assert "70 of 70 in use; 64 shown, 6 left out (8.6 % of the data)" in texts(figure)

    def test_lines_of_long_names_are_no_wider_than_others(self):
        names = [f"with sunglasses {number}" for number in range(16)]
        for named in ((), [names]):
            figure = component_grid(Generator((16,)).factors(value_names=named))
            assert figure.get_figwidth() * figure.dpi < 1200

    def test_small_shares(self):
        shares = [torch.tensor([1e5, *[60.0] * 99])]
        figure = component_grid(Generator((100,)).factors(shares=shares))
        assert "1: <0.1 %" in texts(figure)

    def test_colour(self):
        assert pictures(component_grid(Generator(colour=True).factors()))[0].shape == (2, 3, 3)


class TestSampleGrid:
    @pytest.mark.parametrize("shape", [(5, 28, 28), (6, 4, 7, 3), (1, 300, 200)])
    @pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray])
    def test_every_image_is_drawn(self, shape, kind):
        images = np.random.default_rng(0).random(shape)
        figure = sample_grid(kind(images), 2, 3)
        np.testing.assert_array_equal(np.stack(pictures(figure)), images)

    def test_small_images_are_enlarged_without_blur(self):
        image = torch.zeros(1, 8, 8)
        image[0, ::2, ::2] = 1
        buffer = io.BytesIO()
        sample_grid(image, 1, 1).canvas.print_png(buffer)
        buffer.seek(0)
        shown = imread(buffer)[16:-16, 16:-16, 0]
        assert shown.shape == (96, 96)
        np.testing.assert_array_equal(shown[6::12, 6::12], image[0])  # pixel centres
        inner = shown[2:-2, 2:-2]  # inside of the frame
        assert set(np.unique(inner)) == {0.0, 1.0}

    def test_a_notebook_shows_it(self):
        tools = pytest.importorskip("IPython.core.pylabtools", reason="IPython comes with Jupyter")
        images = torch.rand(4, 8, 8)
        shown = imread(io.BytesIO(tools.print_figure(sample_grid(images, 2, 2), dpi=128)))
        assert len(np.unique(shown[..., 0])) > 50  # greys, not an empty page

    def test_bools_and_values_beyond_the_range(self):
        shown = pictures(sample_grid(torch.tensor([[[True, False]]]), 1, 1))[0]
        assert shown.tolist() == [[1.0, 0.0]]
        assert pictures(sample_grid(torch.tensor([[[1.5, -0.5]]]), 1, 1))[0].tolist() == [[1.0, 0.0]]

    def test_titles(self):
        figure = sample_grid(
            torch.zeros(2, 8, 8), 1, 2, titles=["0, 1", "a title that is far too long for it"]
        )
        assert texts(figure)[0] == "0, 1" and texts(figure)[1].endswith("…")


class TestReconstructions:
    def test_pairs(self):
        x = torch.rand(5, 3, 3)
        figure = reconstructions(x, x / 2, cols=3)
        shown = np.stack(pictures(figure))
        expected = torch.cat([x[:3], x[:3] / 2, x[3:], x[3:] / 2])
        np.testing.assert_allclose(shown, expected)
        assert texts(figure) == ["original", "reconstruction"] * 2


class TestTrainingCurves:
    def test_curves(self):
        records = [record(step, "pretrain" if step < 50 else "joint") for step in range(0, 100, 10)]
        figure = training_curves(records, names=("eyes", "mouth", "hat"))
        bound, kl, used = figure.axes
        steps, elbo = bound.lines[0].get_data()
        assert list(steps) == list(range(0, 100, 10))
        np.testing.assert_allclose(elbo, [-30 + step / 100 for step in steps])
        assert [len(axes.lines) for axes in (bound, kl, used)] == [2, 2, 3]
        assert [line.get_ydata()[0] for line in used.lines] == [2, 2, 1]
        expected = {"pretrain", "joint", "ELBO  −29.10", "KL[z]  12.00", "eyes  2", "hat  1", "step"}
        assert expected <= set(texts(figure))

    def test_phases_are_shaded(self):
        records = [record(0, "a"), record(10, "a"), record(20, "b"), record(30, "a")]
        axes = training_curves(records).axes[0]
        spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]
        assert spans == [(0, 10), (10, 20), (20, 30)]
        assert axes.patches[0].get_facecolor() == axes.patches[2].get_facecolor()

    @pytest.mark.parametrize(
        ("records", "panels"),
        [
            ([record(0)], 3),
            ([record(7, "pretrain", used_components=None, kl_r=None)], 2),
            ([{"step": 0, "elbo": -1.0}, {"step": 1}], 1),
            ([{"step": 0}], 0),
            ([{"elbo": 1.0}, record(3), record(3)], 3),
            (
                [
                    record(0, elbo=math.nan),
                    record(1, elbo=-math.inf, kl_z="?"),
                    record(2, used_components=[]),
                ],
                3,
            ),
            ([record(0, used_components=[None, None]), record(1, used_components=[1])], 3),
            ([record(step, used_components=[9] * 12) for step in range(3)], 3),
            ([record(step) for step in (2, 1, 0)], 3),
        ],
    )
    def test_gaps(self, records, panels, tmp_path):
        figure = training_curves(records)
        assert len(figure.axes) == panels
        assert png(figure, tmp_path / "a.png")

    @pytest.mark.parametrize("count", [5, 12, 50])
    def test_the_first_steps_do_not_flatten_the_rest(self, count):
        records = [record(step, elbo=-1000.0 if step == 0 else -30.0 - step % 2) for step in range(count)]
        low, high = training_curves(records).axes[0].get_ylim()
        assert -100 < low < -31 and -15 < high < 0

    def test_runs_are_compared_where_each_has_records(self, tmp_path):
        runs = {
            "short": [record(step, elbo=-30.0 + step) for step in (0, 10)],
            "long": [record(step, elbo=-20.0 - step) for step in (0, 5, 10, 25)],
            "none": [],
        }
        figure = compared_curves(runs)
        short, long = figure.axes[0].get_lines()
        assert short.get_xydata().tolist() == [[0, -30], [10, -20]]
        assert long.get_xydata().tolist() == [[0, -20], [5, -25], [10, -30], [25, -45]]
        assert {"short  −20.00", "long  −45.00"} < {text.get_text() for text in figure.texts}
        assert png(figure, tmp_path / "a.png")

    def test_a_moderate_start_is_not_cut_off(self):
        start = [24.0, 23.4, 23.5, 24.0]
        later = [25.0 + 0.4 * (-1) ** step for step in range(60)]
        values = [*start, *later]
        records = [record(step, kl_z=value, kl_r=None) for step, value in enumerate(values)]
        limits = [axis.get_ylim() for axis in training_curves(records).axes]
        assert any(low < 23.4 < 25.4 < high < 27 for low, high in limits)


class TestColumnMeans:
    def test_values(self):
        generator = Generator((2, 3), columns=4)
        figure = column_means(generator.factors(), ["a", "b", "c", "d"])
        first, second, _ = pictures(figure)
        shades = (np.array([1, 0]) / 2 + 2 / 3)[:, None] * np.linspace(-1, 1, 4)
        np.testing.assert_allclose(first, shades)
        assert second.shape == (3, 4)
        assert {"a", "d", "factor 0", "1: 67 %", "−1.17"} <= set(texts(figure))

    def test_counts_have_no_colours_below_0(self):
        signed = Generator((2, 3), columns=4).factors()
        counts = replace(signed, decode=lambda z: signed.decode(z).abs())
        most = 1 / 2 + 2 / 3
        for factors, least, ends in (
            (counts, 0, {"1.2", "0.58", "0"}),
            (signed, -most, {"1.2", "0", "−1.2"}),
        ):
            figure = column_means(factors, list("abcd"))
            bar = pictures(figure)[-1]
            assert (bar.min(), bar.max()) == pytest.approx((least, most))
            assert ends <= set(texts(figure))

    def test_at_most_16_components(self):
        figure = column_means(Generator((20,), columns=1).factors(), ["a"])
        assert pictures(figure)[0].shape == (16, 1)
        assert "factor 0  (4 more left out)" in texts(figure)


LONG = ("a property with a name that goes on and on, far beyond what anybody would read",)
MATHS = ("cost ($) or (€_$", "_{", "$\\frac$")  # what matplotlib must not take for a formula


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((2,), ()),
        ((2,), LONG),
        ((1, 2, 2), MATHS),
        ((64, 2), LONG),
        ((6, 6, 6, 6, 3, 3, 16), ()),
        ((3, 3, 3, 3, 3, 3, 3), LONG),
        ((128,), ()),
    ],
)
def test_no_text_overlaps(sizes, names):
    names = [names[i % len(names)] for i in range(len(sizes))] if names else []
    images = Generator(sizes).factors(names=names)
    table = Generator(sizes, columns=9).factors(names=names)
    columns = names * 9 if names else list("abcdefghi")
    records = [record(step, used_components=list(sizes)) for step in (0, 1000, 300_000)]
    assert overlaps(attribute_rows(images, rows=2)) == []
    assert overlaps(component_grid(images)) == []
    assert overlaps(column_means(table, columns[:9])) == []
    assert overlaps(training_curves(records, names)) == []


class TestSave:
    def test_equal_figures_give_equal_bytes(self, tmp_path):
        images = torch.rand(4, 8, 8)
        first, second = (png(sample_grid(images, 2, 2), tmp_path / f"{name}.png") for name in "ab")
        assert first == second
        assert b"matplotlib" not in first.lower()

    def test_makes_folders_and_leaves_nothing_else(self, tmp_path):
        path = tmp_path / "run" / "figures" / "a.png"
        save(sample_grid(torch.zeros(1, 8, 8), 1, 1), str(path))
        assert imread(path).shape == (128, 128, 4)
        assert list(path.parent.iterdir()) == [path]

    def test_a_failure_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "a.png"
        path.write_bytes(b"old")

        def fail(self, file, **_):
            file.write(b"half")
            raise OSError("disk full")

        monkeypatch.setattr("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", fail)
        with pytest.raises(OSError, match="disk full"):
            save(sample_grid(torch.zeros(1, 8, 8), 1, 1), path)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_the_file_appears_whole(self, tmp_path, monkeypatch):
        moves = []
        replace = os.replace

        def record_move(source, target):
            moves.append(
                (source.parent, target, target.exists(), imread(io.BytesIO(source.read_bytes())).shape)
            )
            replace(source, target)

        monkeypatch.setattr("os.replace", record_move)
        save(sample_grid(torch.zeros(1, 8, 8), 1, 1), tmp_path / "a.png")
        assert moves == [(tmp_path, tmp_path / "a.png", False, (128, 128, 4))]

    def test_other_formats_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"path: expected a name that ends in \.png"):
            save(sample_grid(torch.zeros(1, 8, 8), 1, 1), tmp_path / "a.pdf")


def image(*shape):
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: sample_grid(image(3, 8), 1, 3), r"images: expected images \[n, H, W\]"),
        (lambda: sample_grid(image(3, 8, 8, 4), 1, 3), "images: .*got shape"),
        (lambda: sample_grid(image(0, 8, 8), 1, 3), "images: .*got shape"),
        (lambda: sample_grid(image(3, 8, 8), 1, 2), "images: expected at most 1·2, got 3"),
        (lambda: sample_grid(image(3, 8, 8), 0, 2), "rows, cols: "),
        (lambda: sample_grid(image(3, 8, 8).byte(), 1, 3), "images: expected floats or bools"),
        (lambda: sample_grid(image(3, 8, 8) / 0, 1, 3), "images: expected finite values"),
        (lambda: sample_grid(image(3, 8, 8), 1, 3, titles=["a"]), "titles: expected one for each of 3"),
        (lambda: reconstructions(image(3, 8), image(3, 8)), "x: expected images"),
        (lambda: reconstructions(image(3, 8, 8), image(2, 8, 8)), "mean: expected the shape"),
        (lambda: reconstructions(image(3, 8, 8), image(3, 8, 8), cols=0), "cols: "),
        (lambda: attribute_rows(Generator().factors(), rows=0), "rows: "),
        (lambda: attribute_rows(Generator(columns=3).factors()), "decode: expected images"),
        (
            lambda: attribute_rows(Generator().factors(decode=lambda z: image(1, 2, 2))),
            "decode: expected 24 ",
        ),
        (
            lambda: attribute_rows(Generator().factors(sample_latent=lambda n, c: image(n, 5))),
            r"sample_latent: expected z of shape \[6, 6\], got \[6, 5\]",
        ),
        (lambda: component_grid(Generator(columns=3).factors()), "decode: expected images"),
        (lambda: column_means(Generator().factors(), ["a"]), r"decode: expected shape \[2, 1\]"),
        (lambda: column_means(Generator(columns=65).factors(), ["a"] * 65), "columns: expected 1 to 64"),
        (lambda: training_curves([]), "records: "),
        (lambda: compared_curves({"a": []}), "runs: "),
        (lambda: training_curves([{"elbo": 1.0}]), "records: "),
        (lambda: training_curves([record(0)], names=["a"]), "names: expected 3, got 1"),
        (lambda: Generator().factors(means=[]), "means: "),
        (lambda: Generator().factors(means=[image(2)]), "means: "),
        (lambda: Generator((2, 2)).factors(means=[image(2, 3), image(2, 4)]), "means: expected one D"),
        (lambda: Generator().factors(shares=[image(2)]), "shares: expected sizes"),
        (lambda: Generator((2,)).factors(shares=[image(2)]), "shares: expected numbers >= 0 with a sum > 0"),
        (lambda: Generator((2,)).factors(shares=[torch.tensor([-1.0, 2.0])]), "shares: "),
        (lambda: Generator().factors(names=["a"]), "names: expected 3, got 1"),
    ],
)
def test_errors(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
