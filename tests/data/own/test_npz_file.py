import numpy as np
import pytest

from pyro_fmvae.data.own.npz_file import read_npz

X = np.arange(24.0).reshape(4, 6)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3), (4, 2, 2, 3)])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32, np.float64])
def test_observations(tmp_path, shape, dtype):
    x = np.ones(shape, dtype=dtype)
    raw = read_npz(write(tmp_path / "a.npz", x=x))
    assert raw.x.dtype == dtype and (raw.x == x).all()
    assert raw.labels is None and raw.label_names == ()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, -1, 3], [[0], [1], [-1], [3]]),
        ([[0, 5], [-1, 1], [2, 2], [1, 0]], [[0, 5], [-1, 1], [2, 2], [1, 0]]),
    ],
)
@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_labels(tmp_path, labels, expected, dtype):
    raw = read_npz(write(tmp_path / "a.npz", x=X, labels=np.array(labels, dtype=dtype)))
    assert raw.labels.dtype == np.int64 and raw.labels.tolist() == expected
    assert raw.label_names == ("label0", "label1")[: len(expected[0])]


def test_label_names(tmp_path):
    path = write(tmp_path / "a.npz", x=X, labels=np.zeros((4, 2), int), label_names=["body", "hair"])
    assert read_npz(path).label_names == ("body", "hair")


def test_names_of_values_and_columns(tmp_path):
    names = [["dark", "fair"], ["", ""]]
    raw = read_npz(
        write(
            tmp_path / "a.npz", x=X, labels=np.ones((4, 2), int), value_names=names, column_names=[*"uvwxyz"]
        )
    )
    assert raw.value_names == (("dark", "fair"), ()) and raw.column_names == tuple("uvwxyz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "column_names": ["a"]}, "'column_names' must be strings, one per column of a table 'x'"),
        ({"x": np.zeros((2, 3, 4)), "column_names": [*"abc"]}, "'column_names' must be strings, one per col"),
        ({"x": X, "value_names": [["a"]]}, "there are 'value_names' but no 'labels'"),
        ({"x": X, "labels": [0] * 4, "value_names": ["a"]}, r"'value_names' must be strings \[1, V\], a row"),
        (
            {"x": X, "labels": [0] * 4, "value_names": [["", "a"]]},
            "'value_names' must differ, with '' behind",
        ),
        (
            {"x": X, "labels": [0] * 4, "value_names": [["a", "a"]]},
            "'value_names' must differ, with '' behind",
        ),
        (
            {"x": X, "labels": [0, 1, 2, 0], "value_names": [["a", "b"]]},
            "'value_names' names 2 values, but a label is 2",
        ),
        ({"y": X}, "expected an array 'x', found y"),
        ({}, "expected an array 'x', found none"),
        ({"x": np.array([["a", "b"]])}, "'x' must hold numbers, got dtype <U1"),
        ({"x": X * 1j}, "'x' must hold numbers, got dtype complex128"),
        ({"x": np.float64(3)}, r"'x' must have shape .*, got \[\]"),
        ({"x": np.zeros(4)}, r"'x' must have shape \[n, H, W\], \[n, H, W, C\] .* or \[n, D\], got \[4\]"),
        ({"x": np.zeros((4, 2, 2, 5))}, r"'x' must have shape .*, got \[4, 2, 2, 5\]"),
        ({"x": np.zeros((0, 6))}, r"'x' is empty, its shape is \[0, 6\]"),
        ({"x": np.zeros((4, 0))}, r"'x' is empty, its shape is \[4, 0\]"),
        ({"x": np.zeros((4, 2, 2), int)}, "images in 'x' must be bool, uint8 or float, got dtype int64"),
        ({"x": np.array([[1.0, np.nan]])}, "'x' must be finite, but holds NaN or infinity"),
        ({"x": np.array([[1.0, -np.inf]])}, "'x' must be finite, but holds NaN or infinity"),
        ({"x": X.astype(object)}, "'x' is a pickled array of objects; pickles are refused"),
        ({"x": X, "labels": np.zeros(4, object)}, "'labels' is a pickled array of objects; pickles are"),
        ({"x": X, "labels": np.zeros(4)}, "'labels' must hold integers, .* float64; to learn from decimal"),
        (
            {"x": X, "labels": np.zeros(3, int)},
            r"'labels' must have shape \[4, L\] or \[4\], as 'x', got \[3\]",
        ),
        ({"x": X, "labels": np.zeros((4, 0), int)}, r"'labels' must have shape .*, got \[4, 0\]"),
        ({"x": X, "labels": np.zeros((4, 1, 1), int)}, r"'labels' must have shape .*, got \[4, 1, 1\]"),
        ({"x": X, "labels": np.int64(1)}, r"'labels' must have shape .*, got \[\]"),
        ({"x": X, "labels": [0, 1, -2, 0]}, "'labels' must be >= -1, where -1 is unknown, got -2"),
        ({"x": X, "label_names": ["a"]}, "there are 'label_names' but no 'labels'"),
        ({"x": X, "labels": [0] * 4, "label_names": ["a", "b"]}, r"'label_names' must be 1 strings.*\[2\]"),
        ({"x": X, "labels": [0] * 4, "label_names": [3]}, "'label_names' must be 1 strings.* dtype int64"),
        ({"x": X, "labels": [[0, 0]] * 4, "label_names": ["a", "a"]}, "'label_names' must differ"),
    ],
)
def test_bad_contents(tmp_path, arrays, message):
    path = write(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"a\.npz: {message}"):
        read_npz(path)


def test_a_single_channel_is_grey(tmp_path):
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(read_npz(write(tmp_path / "a.npz", x=x[..., None])).x, x)


def test_missing_numbers_are_let_through_if_asked_and_infinities_are_not(tmp_path):
    x = X.copy()
    x[1, 2] = np.nan
    path = write(tmp_path / "a.npz", x=x)
    np.testing.assert_array_equal(read_npz(path, missing=True).x, x)
    x[0, 0] = -np.inf
    with pytest.raises(
        ValueError, match=r"a\.npz: 'x' must be finite, or NaN where it is missing, but holds inf"
    ):
        read_npz(write(path, x=x), missing=True)


@pytest.mark.parametrize("largest", [np.uint64(2**64 - 5), np.uint64(2**63), np.int64(2**63 - 1)])
def test_labels_whose_number_is_beyond_int64(tmp_path, largest):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)), labels=np.array([0, 1, largest], dtype=largest.dtype))
    with pytest.raises(ValueError, match=f"'labels' must be 9223372036854775806 at most, got {largest}$"):
        read_npz(path)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_])
def test_opacity_puts_pictures_on_white(tmp_path, channels, dtype):
    white = {np.uint8: 255, np.float32: 1.0, np.bool_: True}[dtype]
    x = np.zeros((2, 3, 4, channels + 1), dtype)
    x[0, ..., -1] = white  # black and opaque; the other one is black and transparent
    if dtype != np.bool_:
        x[0, 0, 0] = white / 5 * np.array([1] * channels + [2])  # in parts of five: 1 * 2 / 5 + 3
    raw = read_npz(write(tmp_path / "a.npz", x=x))
    expected = np.zeros((2, 3, 4, channels), dtype)
    expected[1] = white
    if dtype != np.bool_:
        expected[0, 0, 0] = np.rint(white * 3.4 / 5) if dtype == np.uint8 else 3.4 / 5
    assert raw.x.dtype == dtype and raw.x.shape == ((2, 3, 4) if channels == 1 else (2, 3, 4, 3))
    np.testing.assert_allclose(raw.x.reshape(expected.shape), expected, rtol=1e-6)
    assert raw.note == "2 pictures are put on white where they are transparent"
