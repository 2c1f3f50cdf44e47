import numpy as np
import pytest
import torch

from pyro_fmvae.figures import spike_toggles, value_sweeps
from pyro_fmvae.figures.page import MARGIN
from tests.figures.generator import corners, drawn, grid, overlaps, texts
from tests.figures.sparse import LARGEST, Codes, codes, latents_of

WEIGHTS = torch.tensor([0.1, 3.0, 1.0, 2.0, 0.5, 1.0])


def with_rows(figure):
    """Images of each row of the page, from left to right."""
    places = corners(figure)
    order = np.lexsort((places[:, 0], places[:, 1]))
    rows = {}
    for n in order:
        rows.setdefault(places[n, 1], []).append(np.asarray(drawn(figure)[n].get_array()))
    return [np.stack(images) for images in rows.values()]


class TestValueSweeps:
    def test_one_value_goes_through_quantiles_of_the_data(self):
        data = codes(300)
        z = torch.tensor([[1.5, 0, 0, -2.0, 0, 0], [0, 0, 2.5, 0, 0, 0]])
        figure = value_sweeps(Codes().decode, z, data, steps=5, share=0.8)
        found = latents_of(grid(figure))
        names = [text for text in texts(figure) if text.startswith("latent ")]
        rows = [(0, int(names[0].split()[1])), (0, int(names[1].split()[1])), (1, 2)]
        assert {latent for _, latent in rows[:2]} == {0, 3} and names[2] == "latent 2"
        assert found.shape == (3, 1 + 5, 6)
        for shown, (example, latent) in zip(found, rows, strict=True):
            np.testing.assert_allclose(shown[0], z[example], atol=1e-12)
            values = data[:, latent][data[:, latent] != 0].numpy()
            low, high = np.quantile(values, [0.1, 0.9])
            np.testing.assert_allclose(shown[1:, latent], np.linspace(low, high, 5), atol=1e-12)
            held = np.arange(6) != latent
            expected = np.tile(z[example].numpy()[held], (6, 1))
            np.testing.assert_allclose(shown[:, held], expected, atol=1e-12)

    def test_those_that_change_the_image_most(self):
        data = codes(300)
        z = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
        figure = value_sweeps(Codes(WEIGHTS).decode, z, data, most=3)
        assert [text for text in texts(figure) if text.startswith("latent ")] == [
            "latent 1",
            "latent 3",
            "latent 2",
        ]

    def test_captions_are_values(self):
        z = torch.tensor([[0.004, 0.0]])
        data = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
        found = texts(value_sweeps(Codes().decode, z, data, steps=4, share=1.0))
        assert [text for text in found if "." in text and " " not in text] == [
            "0.00",
            "−1.00",
            "0.00",
            "1.00",
            "2.00",
        ]

    @pytest.mark.parametrize("colour", [False, True])
    @pytest.mark.parametrize(("rows", "most", "latents"), [(1, 1, 3), (3, 2, 30), (2, 5, 300)])
    def test_no_text_overlaps(self, rows, most, latents, colour):
        data = codes(60, latents) * 100
        figure = value_sweeps(Codes(colour=colour).decode, data[:rows] + data[0] * 0, data, most)
        assert overlaps(figure) == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"most": 0}, "most, steps, share: expected at least 1 and 2, .* got 0, 7 and 0.9"),
            ({"steps": 1}, "most, steps, share: .* got 5, 1 and 0.9"),
            ({"share": 0.0}, "most, steps, share: .* got 5, 7 and 0.0"),
            ({"share": 1.1}, "most, steps, share: .* got 5, 7 and 1.1"),
            ({"z": torch.zeros(2, 6)}, "z: expected at least one non-zero latent, got none"),
            ({"z": torch.ones(1, 6)}, "latents: expected latent 5 to be active somewhere"),
            ({"z": torch.ones(1, 5)}, r"z, latents: expected \[n, J\] and \[N, J\]"),
        ],
    )
    def test_errors(self, changes, message):
        data = codes(50)
        with pytest.raises(ValueError, match=message):
            value_sweeps(**{"decode": Codes().decode, "z": data[:2], "latents": data} | changes)


class TestSpikeToggles:
    def test_off_and_on(self):
        data = codes(300)
        z = torch.tensor([[1.5, 0, 0, -2.0, 0, 0], [0, 0, 0, 0, 0, 0], [1.0, 2.0, 3.0, 4.0, 5.0, 0]])
        figure = spike_toggles(Codes().decode, z, data, most=6)
        rows = [latents_of(row) for row in with_rows(figure)]
        assert [len(row) for row in rows] == [1 + 5] * 3  # the sixth is never active
        means = [float(column[column != 0].mean()) for column in data.T[:5]]
        for example, row in zip(z, rows, strict=True):
            np.testing.assert_allclose(row[0], example, atol=1e-12)
            changed = [
                (int(j), shown) for shown in row[1:] for j in np.flatnonzero(~np.isclose(shown, example))
            ]
            assert sorted(j for j, _ in changed) == [0, 1, 2, 3, 4]
            for j, shown in changed:
                assert shown[j] == pytest.approx(0 if example[j] else means[j], abs=1e-12)

    def test_those_that_change_the_image_most_are_first(self):
        data = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
        z = torch.tensor([[0.0, 2.0, 2.0, 2.0, 0.0, 0.0]])
        found = texts(spike_toggles(Codes(WEIGHTS).decode, z, data, most=2))
        assert [text for text in found if text.startswith("latent ")] == [f"latent {j}" for j in (1, 3, 4, 0)]

    def test_columns_are_groups(self):
        """Images that are switched on stand right of all that are switched off."""
        data = codes(300)
        z = torch.tensor([[1.5, 0, 0, 0, 0, 0], [1.0, 2.0, 3.0, 4.0, 0, 0]])
        figure = spike_toggles(Codes().decode, z, data)
        places = corners(figure)
        shown = [np.asarray(image.get_array())[0] for image in drawn(figure)]
        sums = [np.count_nonzero(abs(pixels - 0.5) * LARGEST > 1e-6) for pixels in shown]
        for row, active in zip(sorted(set(places[:, 1])), (1, 4), strict=True):
            here = [(left, count) for (left, top), count in zip(places, sums, strict=True) if top == row]
            counts = [count for _, count in sorted(here)]
            assert counts == sorted(counts[:1]) + sorted(counts[1:]) and counts[0] == active
        lefts = [sorted(left for left, top in places if top == row) for row in sorted(set(places[:, 1]))]
        assert lefts[0][2] == lefts[1][5]  # the first that is switched on

    def test_nothing_to_switch_on(self):
        data = torch.rand(5, 3) + 1
        figure = spike_toggles(Codes().decode, data[:2], data)
        assert "switched off" in texts(figure) and "switched on" not in texts(figure)
        assert not any("Switched on" in text for text in texts(figure))
        assert len(drawn(figure)) == 2 * 4
        last = max(image.get_window_extent().x1 for image in drawn(figure))
        assert figure.canvas.get_width_height()[0] - last == pytest.approx(MARGIN)

    @pytest.mark.parametrize("colour", [False, True])
    @pytest.mark.parametrize(("rows", "most", "latents"), [(1, 1, 3), (3, 4, 30), (2, 2, 300)])
    def test_no_text_overlaps(self, rows, most, latents, colour):
        data = codes(60, latents)
        assert overlaps(spike_toggles(Codes(colour=colour).decode, data[:rows], data, most)) == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"most": 0}, "most: expected a number >= 1, got 0"),
            ({"z": torch.ones(1, 5)}, r"z, latents: expected \[n, J\] and \[N, J\]"),
            ({"latents": torch.ones(5)}, r"z, latents: expected \[n, J\] and \[N, J\]"),
        ],
    )
    def test_errors(self, changes, message):
        data = codes(50)
        with pytest.raises(ValueError, match=message):
            spike_toggles(**{"decode": Codes().decode, "z": data[:2], "latents": data} | changes)
