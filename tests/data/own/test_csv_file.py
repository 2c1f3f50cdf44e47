import time
import tracemalloc

import numpy as np
import pytest

from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.files.memory import at_most


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
        '"\r\n1",2.5\r\n-3e1,4\r\n',
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


@pytest.mark.parametrize("mark", ["", " ", "NA", "n/a", "nan", "?"])
@pytest.mark.parametrize(("values", "words"), [(("x", "y"), ("x", "y")), (("0", "1"), ())])
def test_marks_of_what_is_missing_are_unknown_labels(tmp_path, mark, values, words):
    raw = read(tmp_path, f"a,label:kind\n1,{values[0]}\n2,{mark}\n3,{values[1]}\n")
    assert raw.labels.tolist() == [[0], [-1], [1]]
    assert raw.value_names == ((words,) if words else ())


def test_column_names(tmp_path):
    assert read(tmp_path, " height ,\n1,2\n").column_names == ("height", "")
    assert read(tmp_path, "1,2\n").column_names == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty"),
        ("\n\n", ": the file is empty"),
        ("a,b\n", ": a header at line 1, but no rows of numbers"),
        ("a,b,a\n1,2,3\n", ", line 1: expected different names of columns, got 'a' twice"),
        ("1,2\n3\n", ", line 2: expected 2 fields, got 1"),
        ("1,18446744073709551615\n\n3\n", ", line 3: expected 2 fields, got 1"),
        ('a,b\n1,2\n3,"4\n', ": not comma separated text: .*EOF inside string"),
        ("a,b\n1,x\0y\n", ": not comma separated text: it has a NUL"),
        ("a,b\n\n1,2\n3,4,5\n", ", line 4: expected 2 fields, got 3"),
        ("1;2\n3;4\n", ", line 2: expected a number, got '3;4'; fields are separated by commas$"),
        ("a\tb\n1\t2\n", r", line 2: expected a number, got '1\\t2'; fields are separated by commas$"),
        ("1,5;2,5\n", ", line 1: .*, got '5;2' among numbers; fields are separated by commas$"),
        ("a,label:b;c\n1,0;2\n", ", line 2: .* label, got '0;2'; fields are separated by commas$"),
        ("label:b;a\n0;2\n", ", line 1: all columns are labels; .*; fields are separated by commas$"),
        (
            "1,2\n3,x\n",
            ", line 2: expected a number, got 'x'; --model mixture takes missing entries and words$",
        ),
        ("a,b\n3,\n", ", line 2: expected a number, got ''; --model mixture takes missing entries"),
        ("1,2\n3,nan\n", ", line 2: expected a finite number, got 'nan'; --model mixture takes missing"),
        ("inf,2\n", ", line 1: expected a finite number, got 'inf'$"),
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
        ("a,b\n1,NA\n?,4\n", ("a", "b")),
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
        ("1,2\n3,none\n", ", line 2: expected a number, got 'none'"),
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


# Words


def mixed(tmp_path, text, **options):
    path = tmp_path / "a.csv"
    path.write_text(text)
    return read_csv(path, missing=True, levels=options.pop("levels", ()), **options)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("a,b\n1,2\n", ""),
        ("0,1\n1,2\n", "mine.csv has no header, as there are numbers in its first row"),
        (",b,label:c,\n1,2,3,4\n", "mine.csv has columns without a name, which are features: 1, 3"),
    ],
)
def test_odd_headers_are_noted(tmp_path, text, note):
    (tmp_path / "mine.csv").write_text(text)
    assert read_csv(tmp_path / "mine.csv").note == note


@pytest.mark.parametrize("header", ["size,colour,count\n", ""])
def test_columns_of_words_are_categories(tmp_path, header):
    raw = mixed(tmp_path, f"{header}1.5,red,2\n?,blue,3\n2.5,NA,4\n3,red,\n")
    expected = [[1.5, 1, 2], [np.nan, 0, 3], [2.5, np.nan, 4], [3, 1, np.nan]]
    np.testing.assert_array_equal(raw.x, expected)
    assert raw.levels == ((), ("blue", "red"), ())


def test_fields_stay_as_they_are_written(tmp_path):
    """Truth values and numbers among words are words; numbers are those of Python's float."""
    numbers = ["007", "12345678901234567890", "0.30000000000000004", "1_000", " +5 ", 24 * "1"]
    rows = [f"{'TRUE,007' if row % 2 else 'true,x'},{number}" for row, number in enumerate(numbers)]
    raw = mixed(tmp_path, "\n".join(["a,b,c", *rows, "NA,x,", ""]))
    assert raw.levels == (("TRUE", "true"), ("007", "x"), ())
    assert raw.x[:-1, 2].tolist() == [*map(float, numbers)] and np.isnan(raw.x[-1, [0, 2]]).all()


def test_known_categories_keep_their_numbers(tmp_path):
    raw = mixed(tmp_path, "1,red\n2,red\n", levels=((), ("blue", "red")))
    assert raw.x[:, 1].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"a\.csv, line 2: expected one of blue, red in column 2, got 'tan'"):
        mixed(tmp_path, "1,red\n2,tan\n", levels=((), ("blue", "red")))
    with pytest.raises(ValueError, match=r"a\.csv, line 2: expected a number, got 'x'$"):
        mixed(tmp_path, "1,red\nx,blue\n", levels=((), ("blue", "red")))
    with pytest.raises(ValueError, match="expected 2 columns besides labels, got 1"):
        mixed(tmp_path, "1\n2\n", levels=((), ("blue", "red")))
    assert mixed(tmp_path, "1,01\n2,1\n", levels=((), ("01", "1"))).x[:, 1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [f"{i},word{i % 51}" for i in range(200)],
            "column 2 has 51 different words, at most 50 can be categories; leave it out with --ignore 2$",
        ),
        (
            ["size,full name", *(f"{i},word{i}" for i in range(20))],
            "column 'full name' has another word in every row; leave it out with --ignore 'full name'$",
        ),
        (
            ["a,b", *(f"{i},{'oops' if i == 20 else i}" for i in range(40))],
            "line 22: expected a number in column 'b', got 'oops'; leave the field empty if it is unknown$",
        ),
        (["1,2", "2,3,4", "3,x"], "line 2: expected 2 fields, got 3$"),
        (
            ["a;b", "1;2", "3;4"],
            "line 2: expected several fields, got '1;2'; fields are separated by commas$",
        ),
        (["a;b", "1,5;2,5"], "line 2: expected 1 fields, got 3; fields are separated by commas$"),
    ],
)
def test_what_is_no_category(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        mixed(tmp_path, "\n".join(rows))


@pytest.mark.parametrize(
    ("header", "ignore"), [("id,size,day\n", ("id", "day")), ("id,size,day\n", ("1", "3")), ("", ("1", "3"))]
)
def test_ignored_columns_may_hold_anything(tmp_path, header, ignore):
    text = header + "".join(f"person {row},{row},2024-01-{row:02d}\n" for row in range(1, 20))
    with pytest.raises(ValueError, match="has another word in every row"):
        mixed(tmp_path, text)
    raw = mixed(tmp_path, text, ignore=ignore)
    assert raw.ignored == (0, 2) and np.isnan(raw.x[:, [0, 2]]).all()
    assert raw.x[:, 1].tolist() == list(range(1, 20))
    again = read_csv(tmp_path / "a.csv", missing=True, levels=None, ignore=("1", "3"))
    np.testing.assert_array_equal(again.x, raw.x)


def test_ignored_columns_that_can_be_read_are_read(tmp_path):
    raw = mixed(tmp_path, "1,red\n2,red\n", ignore=("1", "2"))
    assert raw.x.tolist() == [[1, 0], [2, 0]] and raw.levels == ((), ("red",))


def test_other_words_in_ignored_columns_are_not_counted_as_missing(tmp_path):
    levels, unseen = ((), ("red",), ()), {}
    raw = mixed(tmp_path, "a,b,c\n1,tan,3\n2,red,low\n", levels=levels, ignore=("2", "3"), unseen=unseen)
    assert raw.x[:, 0].tolist() == [1, 2] and unseen == {}


def test_a_name_among_numbers_is_no_category(tmp_path):
    with pytest.raises(ValueError, match="line 1: expected a row of numbers or a header of names, got 'a'"):
        mixed(tmp_path, "a,3\n1,2\n3,4\n")


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("site,1990,2000\nblue,18.05,44.5\nred,20,54.3\nblue,19,50\n", ("site", "1990", "2000")),
        ("site,1,2,3\nblue,0.3,0.5,1.1\nred,2.2,2.5,7.5\nred,1.5,1.2,3\n", ("site", "1", "2", "3")),
        ("id,1990\n4,100\n5,250\n", ("id", "1990")),
        ("0,1,2\n0.5,blue,3\n1,red,2\n2,blue,4\n", ("0", "1", "2")),  # of a frame without names
        ("0,1,2\n0.5,7,3\n1,3,2\n2,9,4\n", ()),
        (
            "0,1,2\n0.5,red,3\n1,1,2\n2,blue,4\n3,red,4\n4,blue,4\n",
            (),
        ),  # its number is one of the column's words
        ("blue,18,44\nblue,18.05,44.5\nred,20,54.3\n", ()),  # its word is one of the column's
        ("green,19,50\nblue,18,44\nred,20,54\nblue,20,50\n", ()),  # its numbers fit
        ("green,1990,1990\nblue,18,44\nred,20,54\nblue,20,50\n", ()),  # two columns of one name
        ("1990,green,2000\n18,blue,44\n20,red,54\n20,blue,50\n", ()),  # no word before the numbers
    ],
)
def test_numbers_that_do_not_fit_their_columns_are_names(tmp_path, text, header):
    raw = mixed(tmp_path, text)
    assert raw.column_names == header and len(raw.x) == text.count("\n") - bool(header)
    said = "the first row of a.csv is its header, as its numbers do not fit" if header else "has no header"
    assert said in raw.note


def test_a_first_row_of_values_is_no_header(tmp_path):
    raw = mixed(tmp_path, "blue,x\nred,y\nblue,y\nred,x\n")
    assert len(raw.x) == 4 and raw.levels == (("blue", "red"), ("x", "y"))
    assert raw.note == "a.csv has no header, as its first row has values of its columns"
    assert len(mixed(tmp_path, "blue,x\n", levels=raw.levels).x) == 1
    assert mixed(tmp_path, "blue,kind\nred,y\nblue,y\nred,x\n").column_names == ("blue", "kind")


def test_files_with_headers_that_were_joined_have_one_on_a_later_line(tmp_path):
    with pytest.raises(ValueError, match="line 4: expected a number in column 'a', got 'a'"):
        mixed(tmp_path, "a,b\n1,2\n3,4\na,b\n5,6\n")
    with pytest.raises(ValueError, match="line 4: expected a number in column 'a', got 'a'"):
        mixed(tmp_path, "a,kind\n1,x\n3,y\na,kind\n5,x\n")


def test_words_that_are_unseen_are_missing_and_counted(tmp_path):
    levels, unseen = ((), ("blue", "red"), ()), {}
    text = "a,b,c\n1,tan,3\n2,red,low\n?,tan,4\n4,green,high\n5,NA,7\n"
    raw = mixed(tmp_path, text, levels=levels, unseen=unseen)
    expected = [[1, np.nan, 3], [2, 1, np.nan], [np.nan, np.nan, 4], [4, np.nan, np.nan], [5, np.nan, 7]]
    np.testing.assert_array_equal(raw.x, expected)
    assert unseen == {"column 'b'": {"tan": 2, "green": 1}, "column 'c'": {"low": 1, "high": 1}}
    with pytest.raises(ValueError, match="expected one of blue, red in column 'b', got 'tan'"):
        mixed(tmp_path, text, levels=levels)
    with pytest.raises(ValueError, match="line 2: expected a number, got 'low'"):
        mixed(tmp_path, "a,b\n1,low\n2,high\n3,4\n", levels=((), ()), unseen={})


def test_time_and_memory_grow_with_the_size_of_a_file(tmp_path):
    """Wide and long tables of as many fields: neither costs the square of columns, rows or words."""
    wide = ",".join(f"c{i}" for i in range(30_000)) + "\n" + 5 * (",".join(15_000 * "12") + "\n")
    words = [f"w{i}" for i in range(30_000)]
    long = "a,label:k\n" + "".join(f"1,{word}\n" for word in words)
    path = tmp_path / "a.csv"
    for text, options in ((wide, {}), (long, {"values": {"k": ("x",)}, "left_out": {}})):
        path.write_text(text)
        start = time.process_time()
        raw = read_csv(path, **options)
        assert time.process_time() - start < 3
        assert raw.x.nbytes == 8 * raw.x.size
    assert options["left_out"]["k"] == dict.fromkeys(words, 1)
    path.write_text(wide)
    tracemalloc.start()
    read_csv(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(wide) + 30_000 * 3000
    with at_most(50_000_000), pytest.raises(ValueError, match=r"a\.csv: it would take .* of memory"):
        read_csv(path)


def test_labels_may_be_words(tmp_path):
    text = "a,label:kind,label:day\n1,cat,3\n2,,0\n3,ant,-1\n4,cat,\n"
    raw = read(tmp_path, text)
    assert raw.labels.tolist() == [[1, 3], [-1, 0], [0, -1], [1, -1]]
    assert raw.value_names == (("ant", "cat"), ())
    known = {"kind": ("cat", "ant", "dog")}
    path = tmp_path / "a.csv"
    assert read_csv(path, values=known).labels[:, 0].tolist() == [0, -1, 1, 0]
    left_out = {}
    other = read_csv(path, values={"kind": ("cat", "dog")}, left_out=left_out)
    assert other.labels[:, 0].tolist() == [0, -1, -1, 0] and left_out["kind"] == {"ant": 1}
    with pytest.raises(ValueError, match="'kind': expected one of cat, dog, got 'ant'"):
        read_csv(path, values={"kind": ("cat", "dog")})


@pytest.mark.parametrize("blank", ["\u00a0", "\x0c", "\u3000"])
def test_a_line_of_what_is_no_space_is_a_row(blank, tmp_path):
    """Both readers skip the same lines: those of spaces and tabs."""
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n1,2\n \t\n{blank}\n3,4\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 4: expected 2 fields, got 1"):
        read_csv(path, missing=True)


def test_a_blank_in_quotes_is_a_field(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a\n1\n" "\n2\nxx\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 5: expected a number, got 'xx'"):
        read_csv(path, missing=True)
