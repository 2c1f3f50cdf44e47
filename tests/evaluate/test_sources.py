import numpy as np
import pytest

from pyro_fmvae.data.sets.smileys import FEATURES, smiley_sources
from pyro_fmvae.evaluate.sources import (
    active_latents,
    activity,
    best_correlation,
    block_concentration,
    contrast,
    correlation_matrix,
    per_block,
)

_rng = np.random.default_rng(0)
SOURCES = _rng.standard_normal((300, 4)) * (_rng.random((300, 4)) < 0.5)
LATENTS = SOURCES @ _rng.standard_normal((4, 6)) + _rng.standard_normal((300, 6)) + 0.3

# Three sources in blocks of 1 and 2; the third latent is not active.
TABLE = np.array([[0.8, 0.1, 0.0, 0.3], [0.0, 0.6, 0.0, 0.3], [0.2, 0.5, 0.0, 0.1]])
BLOCKS = (1, 2)


class TestCorrelationMatrix:
    def test_is_that_of_absolute_values(self):
        found = correlation_matrix(SOURCES, LATENTS, threshold=0.0)
        assert found.dtype == np.float64
        for f in range(4):
            for j in range(6):
                expected = abs(np.corrcoef(abs(SOURCES[:, f]), abs(LATENTS[:, j]))[0, 1])
                assert found[f, j] == pytest.approx(expected, abs=1e-12)

    def test_small_ones_are_none(self):
        every = correlation_matrix(SOURCES, LATENTS, threshold=0.0)
        limit = np.sort(every, axis=None)[12]  # an equal one is kept
        kept = correlation_matrix(SOURCES, LATENTS, threshold=limit)
        np.testing.assert_array_equal(kept, np.where(every >= limit, every, 0))
        default = correlation_matrix(SOURCES, LATENTS)
        np.testing.assert_array_equal(default, np.where(every >= 0.07, every, 0))
        assert (default == 0).any()

    def test_signs_and_scales_are_free(self):
        found = correlation_matrix(SOURCES, SOURCES * [1, -1, 1e-6, -1e6], threshold=0.2)
        np.testing.assert_allclose(found, np.eye(4), atol=1e-12)
        assert found.max() <= 1

    def test_constant_columns_have_no_correlation(self):
        latents = np.stack([np.full(300, 0.1), np.zeros(300), np.where(SOURCES[:, 0] > 0, 0.1, -0.1)], 1)
        assert (correlation_matrix(SOURCES, latents, 0.0) == 0).all()
        assert (correlation_matrix(latents, SOURCES, 0.0) == 0).all()

    def test_presence_of_smileys_attributes(self):
        sources = smiley_sources("test")
        first = np.cumsum([0, *FEATURES[:-1]])
        found = correlation_matrix(sources, sources[:, first] != 0)
        # corr(S|V|, S) = E|V| √(p (1 - p)) / √(p - p² E|V|²) at p = 1/2, V standard normal.
        mean = np.sqrt(2 / np.pi)
        expected = np.repeat(np.eye(4), FEATURES, axis=0) * mean / np.sqrt(2 - mean**2)
        np.testing.assert_allclose(found, expected, atol=4 / np.sqrt(len(sources)))
        assert block_concentration(found, FEATURES) == 1
        assert per_block(found, FEATURES).tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize(
        ("sources", "latents", "threshold", "message"),
        [
            (
                SOURCES[:-1],
                LATENTS,
                0.1,
                r"sources, latents: expected the same number of rows.* \[299, 4\] and \[300, 6\]",
            ),
            (SOURCES[:1], LATENTS[:1], 0.1, "sources, latents: expected the same number of rows, at least 2"),
            (
                SOURCES[:, 0],
                LATENTS,
                0.1,
                r"sources: expected at least one column \[n, columns\], got \[300\]",
            ),
            (SOURCES, LATENTS[:, :0], 0.1, r"latents: expected at least one column .* got \[300, 0\]"),
            (SOURCES, LATENTS * np.nan, 0.1, "latents: expected finite values"),
            (SOURCES, LATENTS, -0.1, r"threshold: expected a number in \[0, 1\], got -0.1"),
            (SOURCES, LATENTS, np.nan, r"threshold: expected a number in \[0, 1\], got nan"),
        ],
    )
    def test_errors(self, sources, latents, threshold, message):
        with pytest.raises(ValueError, match=message):
            correlation_matrix(sources, latents, threshold)


class TestBlocks:
    def test_by_hand(self):
        assert active_latents(TABLE).tolist() == [True, True, False, True]
        # Largest per block: (0.8, 0.2), (0.1, 0.6), none, (0.3, 0.3).
        assert block_concentration(TABLE, BLOCKS) == pytest.approx((0.8 + 0.6 / 0.7 + 0.5) / 3)
        assert per_block(TABLE, BLOCKS).tolist() == [2, 1]  # of equals the first

    def test_against_loops(self):
        blocks = (2, 1, 3)
        rng = np.random.default_rng(1)
        table = rng.random((6, 20)) * (rng.random((6, 20)) < 0.2)
        shares, counts, active = [], [0, 0, 0], 0
        for column in table.T:
            best = [max(column[0:2]), column[2], max(column[3:6])]
            if sum(best) > 0:
                active += 1
                shares.append(max(best) / sum(best))
                counts[best.index(max(best))] += 1
        assert 5 < active < 20
        assert active_latents(table).sum() == active
        assert block_concentration(table, blocks) == pytest.approx(np.mean(shares))
        assert per_block(table, blocks).tolist() == counts

    def test_from_evenly_spread_to_one_block_only(self):
        assert block_concentration(np.full((6, 3), 0.2), (1, 2, 3)) == pytest.approx(1 / 3)
        assert block_concentration(np.repeat(np.eye(3), 2, axis=0), (2, 2, 2)) == 1
        assert block_concentration(np.eye(3), (3,)) == 1

    def test_none_is_active(self):
        assert np.isnan(block_concentration(np.zeros((3, 2)), BLOCKS))
        assert per_block(np.zeros((3, 2)), BLOCKS).tolist() == [0, 0]

    @pytest.mark.parametrize("blocks", [(), (1, 1), (1, 2, 1), (0, 3), (4, -1)])
    @pytest.mark.parametrize("measure", [block_concentration, per_block])
    def test_blocks_that_do_not_fit(self, measure, blocks):
        with pytest.raises(ValueError, match="blocks: expected sizes >= 1 with the sum 3, got"):
            measure(TABLE, blocks)

    @pytest.mark.parametrize("table", [TABLE - 0.5, TABLE[:0]])
    @pytest.mark.parametrize("measure", [active_latents, contrast, best_correlation])
    def test_no_correlations(self, measure, table):
        with pytest.raises(ValueError, match="correlations: expected at least one row of numbers >= 0"):
            measure(table)


class TestContrast:
    def test_by_hand(self):
        assert best_correlation(TABLE) == pytest.approx((0.8 + 0.6 + 0.5) / 3)
        assert contrast(TABLE) == pytest.approx((0.5 + 0.3 + 0.3) / 3)

    def test_a_single_latent(self):
        assert contrast(TABLE[:, :1]) == pytest.approx(best_correlation(TABLE[:, :1])) == pytest.approx(1 / 3)

    def test_tells_sources_from_mixtures_of_them(self):
        """The sources of the toy: spike-and-slab (0.25, N(1.5, 0.5²)), six of them."""
        n, rng = 20_000, np.random.default_rng(2)
        sources = (rng.random((n, 6)) < 0.25) * rng.normal(1.5, 0.5, (n, 6))
        found = correlation_matrix(sources, sources[:, rng.permutation(6)] * [1, 2, -1, 1, -3, 1])
        assert best_correlation(found) == pytest.approx(1)
        assert contrast(found) == pytest.approx(1)  # chance correlations are below the threshold
        rotation = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        mixed = correlation_matrix(sources, sources @ rotation)
        assert contrast(mixed) < 0.4 and best_correlation(mixed) < 0.9


class TestActivity:
    def test_against_loops(self):
        rng = np.random.default_rng(3)
        labels = rng.integers(-1, 4, 300)
        labels[labels == 2] = 7  # classes need not be adjacent
        latents = LATENTS * (rng.random(LATENTS.shape) < 0.3)
        found = activity(latents, labels)
        assert found.classes.tolist() == [0, 1, 3, 7] and found.classes.dtype == np.int64
        for j in range(6):
            assert found.share[j] == pytest.approx(sum(z != 0 for z in latents[:, j]) / 300)
            for c, label in enumerate(found.classes):
                column = [latents[n, j] for n in range(300) if labels[n] == label]
                assert found.share_by_class[c, j] == pytest.approx(sum(z != 0 for z in column) / len(column))
                expected = sum(abs(z) for z in column) / len(column)
                assert found.magnitude_by_class[c, j] == pytest.approx(expected)

    def test_without_labels(self):
        found = activity(np.array([[1.0, 0.0], [0.0, 0.0]]))
        assert found.share.tolist() == [0.5, 0]
        assert found.classes.shape == (0,)
        assert found.share_by_class.shape == found.magnitude_by_class.shape == (0, 2)

    @pytest.mark.parametrize(
        ("latents", "labels", "message"),
        [
            (LATENTS[:0], None, "latents: expected at least one row, got none"),
            (LATENTS[0], None, r"latents: expected at least one column .* got \[6\]"),
            (LATENTS, np.zeros(299, int), r"labels: expected 300 integers, got int64 \[299\]"),
            (LATENTS, np.zeros((300, 1), int), r"labels: expected 300 integers, got int64 \[300, 1\]"),
            (LATENTS, np.zeros(300), r"labels: expected 300 integers, got float64 \[300\]"),
        ],
    )
    def test_errors(self, latents, labels, message):
        with pytest.raises(ValueError, match=message):
            activity(latents, labels)
