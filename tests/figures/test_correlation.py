import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage

from pyro_fmvae.evaluate.sources import active_latents, block_concentration, per_block
from pyro_fmvae.figures import correlation_matrices
from tests.figures.generator import overlaps, texts

SOURCES = ("separation", "radius", "width", "height", "curvature")
BLOCKS = {"eyes": 2, "mouth": 3}


def table(latents=8, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.random((5, latents)) * (rng.random((5, latents)) < 0.3)
    values[:, latents // 2] = 0
    return values


def test_each_model_has_its_matrix():
    tables = {"VSC": table(8), "a VAE": torch.from_numpy(table(30, seed=1)), "other": table(12, seed=2)}
    figure = correlation_matrices(tables, SOURCES, BLOCKS)
    images = figure.findobj(AxesImage)
    assert len(images) == 3
    for image, values in zip(images, map(np.asarray, tables.values()), strict=True):
        shown = np.asarray(image.get_array())
        assert image.get_clim() == (0, 1)
        # The same columns: those with the same best source together, in their order, empty ones last.
        assert sorted(map(tuple, shown.T)) == sorted(map(tuple, values.T))
        best = [column.argmax() if column.any() else 5 for column in shown.T]
        assert best == sorted(best) and best[-1] == 5
    assert {*tables, *SOURCES, *BLOCKS} <= set(texts(figure))


def test_panels_say_how_many_are_active():
    values = table(20)
    figure = correlation_matrices({"VSC": values, "empty": np.zeros((5, 3))}, SOURCES, BLOCKS)
    counts = per_block(values, [2, 3])
    assert f"{active_latents(values).sum()} of 20 active: {counts[0]} + {counts[1]}" in texts(figure)
    assert f"block concentration {block_concentration(values, [2, 3]):.2f}" in texts(figure)
    assert "0 of 3 active" in texts(figure)
    assert sum("concentration" in text for text in texts(figure)) == 1


def test_lines_between_blocks():
    values = table(20)
    counts = np.cumsum(per_block(values, [2, 3]))
    (axes,) = correlation_matrices({"VSC": values}, SOURCES, BLOCKS).axes
    lines = [np.asarray(line.get_xydata()) for line in axes.lines]
    assert [line[0, 1] for line in lines if line[0, 1] == line[1, 1]] == [1.5]
    assert [line[0, 0] for line in lines if line[0, 0] == line[1, 0]] == (counts - 0.5).tolist()
    full = np.repeat(np.eye(2), [2, 3], axis=0)  # all are active: no line behind the last
    (axes,) = correlation_matrices({"VSC": full}, SOURCES, BLOCKS).axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_xdata()[0] == line.get_xdata()[1]] == [0.5]


def test_rows_stand_beside_their_names():
    values = table()
    figure = correlation_matrices({"VSC": values}, SOURCES, BLOCKS)
    figure.canvas.draw()
    (axes,) = figure.axes
    for row, name in enumerate(SOURCES):
        (text,) = (t for t in figure.texts if t.get_text() == name)
        box = text.get_window_extent()
        _, place = axes.transData.inverted().transform((0, (box.y0 + box.y1) / 2))
        assert round(place) == row
        assert box.x1 < axes.get_window_extent().x0


def test_panels_go_on_another_line_where_the_page_is_full():
    figure = correlation_matrices({name: table(18) for name in "abcde"}, SOURCES, BLOCKS)
    assert figure.canvas.get_width_height()[0] <= 1500
    tops = [round(axes.get_window_extent().y1) for axes in figure.axes]
    assert len(set(tops)) == 2 and tops == sorted(tops, reverse=True)


@pytest.mark.parametrize("latents", [1, 5, 18, 40, 80, 300])
@pytest.mark.parametrize("models", [1, 3, 5])
def test_no_text_overlaps(latents, models):
    names = ["VSC", "β-TCVAE", "a model with a name that goes on and on and on and on", "x", "y"]
    sources = ("a source with a name that goes on and on and on", *SOURCES[1:])
    blocks = {"an attribute with a name that goes on and on and on": 2, "mouth": 3}
    tables = {name: table(latents, seed) for seed, name in enumerate(names[:models])}
    figure = correlation_matrices(tables, sources, blocks)
    assert overlaps(figure) == []
    frames = [axes.get_window_extent() for axes in figure.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(frames) for b in frames[:i])
    assert max(frame.x1 for frame in frames) <= figure.canvas.get_width_height()[0]


@pytest.mark.parametrize(
    ("correlations", "blocks", "message"),
    [
        ({}, BLOCKS, "correlations, blocks: expected at least one model, and blocks of 5 sources"),
        ({"a": table()}, {"eyes": 5, "mouth": 1}, r"blocks of 5 sources in all, got 1 and \[5, 1\]"),
        ({"a": table()}, {"eyes": 5, "mouth": 0}, r"blocks of 5 sources in all"),
        ({"a": table()}, {}, r"blocks of 5 sources in all"),
        ({"a": table()[:4]}, BLOCKS, r"correlations: .* of shape \[5, J\] for a, got \[4, 8\]"),
        ({"a": table()[:, :0]}, BLOCKS, r"correlations: .* of shape \[5, J\] for a, got \[5, 0\]"),
        ({"a": table() + 1}, BLOCKS, r"correlations: expected numbers in \[0, 1\]"),
        ({"a": table() - 1}, BLOCKS, r"correlations: expected numbers in \[0, 1\]"),
        ({"a": table() * np.nan}, BLOCKS, "correlations of a: expected finite values"),
    ],
)
def test_errors(correlations, blocks, message):
    with pytest.raises(ValueError, match=message):
        correlation_matrices(correlations, SOURCES, blocks)
