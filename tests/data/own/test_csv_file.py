import numpy as np
import pytest

from pyro_fmvae.data.own.csv_file import read_csv


def read(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    return read_csv(path)


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n-3e1,4\n",
        "1,2.5\r\n-3e1,4",
        "height,width\n1,2.5\n-3e1,4\n",
        "\n,width\n\n1, 2.5\n\n-3e1,4\n\n",
        '"height, cm","label"\n"1","2.5"\n-3e1,4\n',
        "\ufeff1,2.5\n-3e1,4\n",
    ],
)
def test_features(tmp_path, text):
    raw = read(tmp_path, text)
    np.testing.assert_array_equal(raw.x, [[1, 2.5], [-30, 4]])
    assert raw.labels is None and raw.label_names == ()


def test_labels(tmp_path):
    raw = read(tmp_path, "label:kind,a,label: day ,b\n0,1,-1,2\n,3, 6,4\n2,5, ,6\n")
    np.testing.assert_array_equal(raw.x, [[1, 2], [3, 4], [5, 6]])
    assert raw.labels.dtype == np.int64
    assert raw.labels.tolist() == [[0, -1], [-1, 6], [2, -1]]
    assert raw.label_names == ("kind", "day")
    assert raw.column_names == ("a", "b")


def test_column_names(tmp_path):
    assert read(tmp_path, " height ,\n1,2\n").column_names == ("height", "")
    assert read(tmp_path, "1,2\n").column_names == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty"),
        ("\n\n", ": the file is empty"),
        ("a,b\n", ": a header at line 1, but no rows of numbers"),
        ("1,2\n3\n", ", line 2: expected 2 fields, got 1"),
        ("a,b\n\n1,2\n3,4,5\n", ", line 4: expected 2 fields, got 3"),
        ("1;2\n3;4\n", ", line 2: expected a number, got '3;4'; fields are separated by commas$"),
        ("a\tb\n1\t2\n", r", line 2: expected a number, got '1\\t2'; fields are separated by commas$"),
        ("1,5;2,5\n", ", line 1: .*, got '5;2' among numbers; fields are separated by commas$"),
        ("a,label:b;c\n1,0;2\n", ", line 2: .* label, got '0;2'; fields are separated by commas$"),
        ("label:b;a\n0;2\n", ", line 1: all columns are labels; .*; fields are separated by commas$"),
        ("1,2\n3,x\n", ", line 2: expected a number, got 'x'$"),
        ("a,b\n3,\n", ", line 2: expected a number, got ''"),
        ("1,2\n3,nan\n", ", line 2: expected a finite number, got 'nan'"),
        ("inf,2\n", ", line 1: expected a finite number, got 'inf'"),
        ("1,x\n3,4\n", ", line 1: expected a row of numbers or a header of names, got 'x' among numbers"),
        ("1,\n3,4\n", ", line 1: expected a row of numbers or a header of names, got '' among numbers"),
        ("a,label:b\n1,1.5\n", ", line 2: expected an integer label, got '1.5'; to learn from decimal"),
        ("a,label:b\n1,0\n1,-2\n", ", line 3: expected a label >= -1, where -1 is unknown, got -2"),
        ("a,label:b,label:b\n1,0,0\n", ", line 1: label columns need different, non-empty names"),
        ("a,label:\n1,0\n", ", line 1: label columns need different, non-empty names"),
        ("label:a\n1\n", ", line 1: all columns are labels; expected at least one feature"),
    ],
)
def test_bad_contents(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"a\.csv{message}"):
        read(tmp_path, text)


def test_another_encoding(tmp_path):
    with pytest.raises(ValueError, match=r"a\.csv, line 1: not comma separated text"):
        read(tmp_path, "höhe\n1\n", encoding="latin-1")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.csv: no such file"):
        read_csv(tmp_path / "a.csv")


# Missing numbers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,\nnan,4\n", ("a", "b")),
        ("1,\nNaN,4\n", ()),
        ("1, \n ,4\n", ()),
        (",b\n1,\n,4\n", ("", "b")),
    ],
)
def test_empty_fields_and_nan_are_missing(tmp_path, text, names):
    path = tmp_path / "a.csv"
    path.write_text(text)
    raw = read_csv(path, missing=True)
    np.testing.assert_array_equal(raw.x, [[1, np.nan], [np.nan, 4]])
    assert raw.column_names == names
    with pytest.raises(ValueError, match="expected a"):
        read_csv(path)


def test_a_first_row_without_anything_is_one_of_missing_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",\n1,2\n")
    np.testing.assert_array_equal(read_csv(path, missing=True).x, [[np.nan, np.nan], [1, 2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,inf\n", ", line 1: expected a finite number, got 'inf'"),
        ("1,2\n3,-inf\n", ", line 2: expected a finite number, got '-inf'"),
        ("1,2\n3,NA\n", ", line 2: expected a number, got 'NA'"),
        (",x,1\n", ", line 1: expected a row of numbers or a header of names, got 'x' among numbers"),
    ],
)
def test_what_is_no_missing_number(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"a\.csv{message}"):
        read_csv(path, missing=True)


def test_labels_whose_number_is_beyond_int64(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,label:kind\n1,9223372036854775806\n2,9223372036854775807\n")
    with pytest.raises(ValueError, match="line 3: expected a label of 9223372036854775806 at most, got"):
        read_csv(path)
