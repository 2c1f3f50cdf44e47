import gzip
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pyro_fmvae.data.column_plan import Entries, PlannedColumn, date_texts
from pyro_fmvae.data.loader import SparseOptions, TableOptions
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.data.own.files import split_file
from pyro_fmvae.files.memory import at_most


def read(tmp_path, text, encoding="utf-8", **options):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    return read_csv(path, **options)


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
    assert read(tmp_path, " height ,\n1,2\n").column_names == ("height", "column 2")
    assert read(tmp_path, "1,2\n").column_names == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty"),
        ("\n\n", ": the file is empty"),
        ("a,b\n", ": a header at line 1, but no rows of numbers"),
        ("1,2\n3\n", ", line 2: expected 2 fields, got 1"),
        ("a,b\nx,\nx,\n", ": expected a column to learn from, but all are names, texts or constants"),
        ("1,18446744073709551615\n\n3\n", ", line 3: expected 2 fields, got 1"),
        ('a,b\n1,2\n3,"4\n', ": not a table of text: .*EOF inside string"),
        ("a,b\n1,x\0y\n", ": not a table of text: it has a NUL"),
        ("a,b\n\n1,2\n3,4,5\n", ", line 4: expected 2 fields, got 3"),
        ("a,label:b\n1,1.5\n", ", line 2: expected an integer label, got '1.5'; to learn from decimal"),
        ("a,label:b\n1,0\n1,-2\n", ", line 3: expected a label >= -1, where -1 is unknown, got -2"),
        ("a,label:\n1,0\n", ", line 1: label columns need different, non-empty names"),
        ("label:a\n1\n", ", line 1: all columns are labels; expected at least one feature"),
    ],
)
def test_bad_contents(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"a\.csv{message}"):
        read(tmp_path, text)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.csv: no such file"):
        read_csv(tmp_path / "a.csv")


# Missing numbers


def test_labels_whose_number_is_beyond_int64(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,label:kind\n1,9223372036854775806\n2,9223372036854775807\n")
    with pytest.raises(ValueError, match="line 3: expected a label of 9223372036854775806 at most, got"):
        read_csv(path)


# Words


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
    with at_most(50_000_000), pytest.raises(ValueError, match=r"a\.csv: loading it would take .* of memory"):
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
        read_csv(path)


# Columns and their plan


def kinds(raw):
    return {column.name: column.kind for column in raw.plan}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,\nnan,4\n2,5\n", ("a", "b")),
        ("1,\nNaN,4\n2,5\n", ()),
        ("1, \n ,4\n2,5\n", ()),
        (",b\n1,\n,4\n2,5\n", ("index", "b")),
        ("a,b\n1,NA\n?,4\n2,5\n", ("a", "b")),
        ("a,b\n1,null\n#N/A,4\n2,5\n", ("a", "b")),
    ],
)
def test_empty_fields_and_marks_are_missing(tmp_path, text, names):
    raw = read(tmp_path, text)
    np.testing.assert_array_equal(raw.x, [[1, np.nan], [np.nan, 4], [2, 5]])
    assert raw.column_names == names


def test_fields_stay_as_they_are_written(tmp_path):
    """Truth values and numbers among words are words; numbers are those of Python's float."""
    numbers = ["007", "12345678901234567890", "0.30000000000000004", "1_000", " +5 ", 24 * "1"]
    rows = [f"{'TRUE,007' if row % 2 else 'true,x'},{number}" for row, number in enumerate(numbers)]
    raw = read(tmp_path, "\n".join(["a,b,c", *rows, "NA,x,", ""]))
    assert raw.levels == (("TRUE", "true"), ("007", "x"), ())
    assert raw.x[:-1, 2].tolist() == [*map(float, numbers)] and np.isnan(raw.x[-1, [0, 2]]).all()


def people(rows=240):
    """A table as people have them: every kind of column once."""
    rng = np.random.default_rng(0)
    columns = {
        "id": range(1, rows + 1),
        "code": (f"K-{row:05d}" for row in rng.permutation(rows)),
        "remark": (f"came on day {row} with {row % 7} bags and left" for row in rng.permutation(rows)),
        "size": (f"{value:.2f}" for value in rng.normal(170, 9, rows)),
        "visits": rng.poisson(30, rows),
        "grade": rng.integers(1, 6, rows),
        "town": (f"town {row}" for row in rng.zipf(1.3, rows) % 80),
        "born": (f"19{50 + row % 40}-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(rows)),
        "smokes": rng.choice(["yes", "no"], rows),
        "paid": (f'"${value:,.2f}"' for value in rng.gamma(2, 900, rows)),
        "share": (f"{value}%" for value in rng.integers(0, 100, rows)),
        "unit": ["cm"] * rows,
        "weight": (value if value % 9 else "unknown" for value in rng.integers(50, 110, rows)),
    }
    lines = (",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    return "\n".join([",".join(columns), *lines, ""])


def test_what_the_columns_of_a_table_hold(tmp_path):
    raw = read(tmp_path, people())
    assert kinds(raw) == {
        "id": "id",
        "code": "id",
        "remark": "text",
        "size": "number",
        "visits": "count",
        "grade": "integer",
        "smokes": "boolean",
        "town": "category",
        "born": "date",
        "paid": "number",
        "share": "number",
        "unit": "constant",
        "weight": "count",
    }
    assert raw.ignored == (0, 1, 2, 13) and raw.column_names[8:10] == ("born month", "born weekday")
    first = dict(zip(raw.column_names, raw.x[0], strict=True))
    assert first["born"] == -7305 and first["born month"] == 0  # 1 January 1950, a Sunday
    assert raw.levels[9][int(first["born weekday"])] == "Sun"
    plan = {column.name: column for column in raw.plan}
    assert np.isfinite(raw.x[:, 11:13]).all() and plan["unit"].values == "cm"
    assert "count as missing: 'unknown'" in plan["weight"].why
    assert all(column.why and column.treatment and column.values for column in raw.plan)


@pytest.mark.parametrize(
    "names",
    [
        "orderID,acid",
        "idno,paid",
        "case id,BID",
        "studentid,grid",
        "gene_code,price index",
        "row index,UV_index",
        "Index,subindex",
    ],
)
def test_different_whole_numbers_are_ids_by_the_name_of_their_column(tmp_path, names):
    rows = [f"{37 * i + i % 5},{41 * i + i % 7},{i % 9}.5" for i in range(60)]
    plan = read(tmp_path, "\n".join([f"{names},size", *rows])).plan
    assert [column.kind for column in plan] == ["id", "count", "number"]
    assert f"--kind {plan[0].name}=number takes them as such" in plan[0].why


def test_numbers_that_begin_with_a_zero_are_codes_and_the_plan_says_so(tmp_path):
    text = "\n".join(["code,zip,x", *(f"{i:03d},0{i % 4},{i}.5" for i in range(30))])
    raw = read(tmp_path, text)
    assert [column.kind for column in raw.plan] == ["id", "category", "number"]
    for column in raw.plan[:2]:
        assert f"digits that begin with a 0; --kind {column.name}=number takes them as" in column.why
    said = read_csv(tmp_path / "a.csv", TableOptions((("code", "number"), ("zip", "number"))))
    np.testing.assert_array_equal(said.x[:, :2], [(i, i % 4) for i in range(30)])


def test_whole_numbers_without_an_order_are_codes(tmp_path):
    """Districts are categories; ages, hours of a day and rooms are not, and the plan says how to differ."""
    rng = np.random.default_rng(0)
    district, hour, rooms = rng.integers(1, 21, 600), rng.integers(0, 24, 600), 1 + rng.poisson(5, 600)
    price = rng.normal(size=21)[district] * 2 + rng.normal(size=600) + 0.5 * rooms
    district[::9] = -999
    heat = 5 * np.sin(0.85 * hour) + rng.normal(size=600)  # neighbours are a third as far apart as any two
    ward = rng.integers(0, 24, 600)
    load = 5 * np.sin(1.3 * ward) + rng.normal(size=600)  # and here three quarters
    calls = np.where(rng.random(600) < 0.7, 0, rng.integers(1, 13, 600))
    cost = 3 * rng.normal(size=13)[calls] + rng.normal(size=600)
    age, numbers = rng.integers(18, 60, 600), np.stack([price, heat, cost, load]).round(3)
    rows = zip(district, hour, rooms, age, calls, ward, *numbers, strict=True)
    head = "district,hour,rooms,age,calls,ward,price,heat,cost,load"
    raw = read(tmp_path, "\n".join([head, *(",".join(map(str, row)) for row in rows)]))
    assert kinds(raw) == {
        **dict.fromkeys(("district", "ward"), "category"),
        **dict.fromkeys(("hour", "rooms", "age", "calls"), "count"),
        **dict.fromkeys(("price", "heat", "cost", "load"), "number"),
    }
    assert (
        len(raw.plan[0].words) == 20
        and raw.plan[0].gaps == ("-999",)
        and "--kind district=number" in raw.plan[0].why
    )
    assert "--kind age=category if they are codes" in raw.plan[3].why
    said = read_csv(tmp_path / "a.csv", TableOptions((("district", "number"),)))
    assert said.plan[0].kind == "number" and (said.x[:, 0] == district).all()


def test_what_stands_for_a_missing_value_in_a_column_alone(tmp_path):
    """Signs among numbers or words, and numbers of nines far below; a column of signs has words."""
    rows = [
        f"{i % 7 or '-'},{i % 5 or -999}.5,{'.' if i % 9 == 0 else 'ab'[i % 2]},{'+-'[i % 2]},0{i % 4}"
        for i in range(60)
    ]
    raw = read(tmp_path, "\n".join(["count,depth,word,sign,zip", *rows]))
    assert [column.gaps for column in raw.plan] == [("-",), (), (".",), (), ()]
    assert raw.plan[3].words == ("+", "-") and raw.plan[4].words == ("00", "01", "02", "03")
    (tmp_path / "b.csv").write_text("count,depth,word,sign,zip\n1,2.5,.,+,00\n2,3.5,b,?,01\n3,4.5,c,-,02\n")
    assert np.argwhere(read_csv(tmp_path / "b.csv", plan=raw.plan, unseen={}).unseen).tolist() == [[2, 2]]
    half = ["abc"[i % 3] if i % 2 else i % 5 or -999 for i in range(60)]
    rows = (f"{i % 5 or -999},{i % 5 * -200 or -999},{i or -999},{half[i]}" for i in range(60))
    depth, minus, once, mixed = read(tmp_path, "\n".join(["depth,minus,once,mixed", *rows])).plan
    text = (tmp_path / "a.csv").read_text()
    assert depth.gaps == ("-999",) and "'-999' counts as missing" in depth.why
    assert not minus.gaps and not once.gaps and not mixed.gaps
    assert np.isnan(read(tmp_path, text).x[::5, 0]).all()
    whole = np.arange(60) + 2**60  # of a Parquet file, which float64 does not hold
    assert depth.fill(whole, np.zeros(60)) is whole
    texts = np.array(["-999", "NA", "1.50", "x"], dtype=object)
    assert depth.fill(texts, np.arange(4.0) / 4).tolist() == ["0", "0.25", "1.50", "x"]
    assert depth.fill(texts, np.arange(4.0) / 4, comma=True).tolist() == ["0", "0,25", "1.50", "x"]
    small = np.array([1.5e-5, -2e-7, 1e16, 0.25])
    gaps = np.array(["", "", "", "0.5"], dtype=object)
    found = depth.fill(gaps, small, "0.5").tolist()
    assert found == ["0.000015", "-0.0000002", "10000000000000000", "0.5"]
    gaps[3] = "5e-1"
    assert depth.fill(gaps, small, "5e-1").tolist() == ["1.5e-05", "-2e-07", "1e+16", "5e-1"]
    codes, texts = replace(depth, words=("1", "2")), np.array(["1.0", "2", "3.0", "-999.0"], dtype=object)
    np.testing.assert_array_equal(codes.read(Entries("", texts))[0][:, 0], [0, 1, np.nan, np.nan])
    assert codes.fill(texts, np.ones(4)).tolist() == ["1.0", "2", "3.0", "2"]
    numbers = np.array([2.0, np.nan, 1.0, -999.0])  # of a Parquet file
    assert codes.fill(numbers, np.array([0.0, 1.0, 1.0, 0.0])).tolist() == [2, 2, 1, 1]
    truth = replace(depth, words=("False", "True"))
    assert truth.fill(numbers, np.array([0.0, 1.0, 1.0, 0.0])).tolist() == [2, 1, 1, 0]
    masked = np.ma.array([5, -999, 7], mask=[False, False, True])
    assert depth.is_gap(masked).tolist() == [False, True, True]
    sign = replace(depth, gaps=("-",))
    for comma in (False, True):
        broken = np.array(["1.5", "broken", " - ", "1,5", "NA"], dtype=object)
        assert sign.is_gap(broken, comma).tolist() == [False, False, True, False, True]
        nines = np.array(["-999,0", "-999.0", "-999", "-999,5", "-9,99"], dtype=object)
        assert depth.is_gap(nines, comma).tolist() == [comma, True, True, False, False]
    units = read(tmp_path, "\n".join(["a,b", "%,cm", *(f"{i}.5,{i}.25" for i in range(30))]))
    assert not units.plan[0].gaps and "none counts as missing: '%'" in units.plan[0].why


def test_units_times_and_formats_of_forms_are_read(tmp_path):
    rows = [
        f"2023/{i % 12 + 1}/{i % 28 + 1} {i % 12 + 1}:05:09 {'AP'[i % 2]}M GMT{'+-'[not i]}1,"
        f"{i % 23:02d}:{i % 60:02d},"
        f"{i + 0.5} USD,{i % 10} kg,{f'{i % 10} years' if i % 9 else '< 1 year'},N{i:04d}"
        for i in range(60)
    ]
    raw = read(tmp_path, "\n".join(["at,clock,price,mass,since,name", *rows]))
    assert [column.kind for column in raw.plan] == ["date", *["number"] * 3, "category", "id"]
    found = dict(zip(raw.column_names, raw.x[1], strict=True))
    assert raw.plan[1].read(Entries("", np.array(["1:30:36"], dtype=object)))[0] == pytest.approx(1.51)
    assert found["clock"] == 1 + 1 / 60 and found["price"] == 1.5 and found["mass"] == 1
    seconds = np.datetime64("2023-02-02T14:05:09").astype("M8[s]").astype(float)  # an hour before Greenwich
    assert found["at"] == pytest.approx((seconds - 3600) / 86_400, abs=1e-9)
    assert raw.x[0, 0] % 1 * 24 == pytest.approx(2 + 5 / 60 + 9 / 3600)  # from an hour behind it
    assert raw.plan[1].why == "times of day or durations: 1:30 is 1.5"
    assert raw.plan[1].write(np.array([13.75, np.nan])).tolist() == ["13:45", ""]


@pytest.mark.parametrize("comma", [False, True])
@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("87 kg", ["-2.5 kg", "10000000000000000 kg", "0.000003 kg"]),
        ("-$1200", ["-$2.5", "$10000000000000000", "$0.000003"]),
        ("(12 EUR)", ["-2.5 EUR", "10000000000000000 EUR", "0.000003 EUR"]),
        ("12%", ["-2.5%", "10000000000000000%", "0.000003%"]),
    ],
)
def test_filled_numbers_have_the_unit_of_those_beside_them(given, filled, comma):
    """Without an exponent, which a number with a unit never has; and they are read again."""
    column = PlannedColumn("x", "number", "", "", "", form="money")
    entries, values = np.array(["see note 3", "", given, "", "NA"], dtype=object), [-2.5, 1e16, 3e-6]
    found = column.fill(entries, np.insert(values, [0, 1], 1.0), column.example(entries, comma), comma)
    expected = [text.replace(".", ",") if comma else text for text in filled]
    assert found.tolist() == ["see note 3", expected[0], given, *expected[1:]]
    points = np.array([text.replace(",", ".") for text in found[[1, 3, 4]]], dtype=object)
    assert column.read(Entries("x", points))[0][:, 0].tolist() == values


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("2024-02-16 01:00:00", "2024-04-30 15:40:45"),
        ("2024-02-16T01:00:00", "2024-04-30T15:40:45"),
        ("2024-02-16T01:00", "2024-04-30T15:41"),
        ("2024-02-16 00:00:00.250000", "2024-04-30 15:40:45"),
        (" 2024-02-16T01:00 ", "2024-04-30T15:41"),
        ("2024-02-16", "2024-05-01"),
        ("2024-02", "2024-05-01"),
    ],
)
def test_filled_dates_are_written_as_those_beside_them(given, filled):
    column = PlannedColumn("day", "date", "", "", "", form="ISO8601")
    day = np.datetime64("2024-04-30T15:40:45").astype("M8[s]").astype(float) / 86_400
    entries = np.array([given, ""], dtype=object)
    like = column.example(entries)
    assert column.fill(entries, np.array([0.0, day]), like).tolist() == [given, filled]
    midnight = filled.replace("15:40:45", "00:00:00").replace("15:41", "00:00").replace("05-01", "04-30")
    assert column.fill(entries, np.floor([0.0, day]), like).tolist() == [given, midnight]


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("quarter", ["1998 Q1", "2001 Q4"]),
        ("quarter", ["1998Q1", "2001Q4"]),
        ("quarter", ["1998-Q1", "2001-Q4"]),
        ("%Y %b", ["1998 Jan", "2001 Oct"]),
        ("%B %Y", ["January 1998", "October 2001"]),
        ("ISO8601", ["1998-01", "2001-10"]),
    ],
)
def test_months_and_quarters_are_dates_without_a_weekday(tmp_path, form, texts):
    between = pd.period_range("1998-01", "2001-12", freq="Q" if form == "quarter" else "M")
    how = "%Y-%m" if form == "ISO8601" else form
    written = [
        f"{one.year}{texts[0][4:-2]}Q{one.quarter}" if form == "quarter" else one.strftime(how)
        for one in between
    ]
    rows = [f"{date},{i % 7}.5" for i, date in enumerate(written * 3)]
    raw = read(tmp_path, "\n".join(["when,x", *rows]))
    column = raw.plan[0]
    assert (column.kind, column.form, column.parts) == ("date", form, ("month",))
    place = [written.index(text) for text in texts]
    days = raw.x[place, 0]
    assert days.astype("M8[D]").astype(str).tolist() == ["1998-01-01", "2001-10-01"]
    if form != "ISO8601":  # whose gaps are filled with days
        for near in (-14, -0.001, 0, 14):  # days from the start that they are nearest to
            filled = column.fill(np.array([texts[0], ""], dtype=object), days + near, texts[0])
            assert filled.tolist() == texts


@pytest.mark.parametrize("form", ["{} {}", "3 {} {}", "{} 3, {}", "3-{}-{}"])
def test_months_have_short_or_full_names_whatever_the_plan_has_seen(tmp_path, form):
    """May is both, and a plan of dates in May reads the others."""
    rows = [f"{form.format('May', 1990 + i % 9)!r},{i % 7}.5".replace("'", '"') for i in range(30)]
    column = read(tmp_path, "\n".join(["when,x", *rows])).plan[0]
    assert column.kind == "date"
    texts = np.array([form.format(month, 2004) for month in ("June", "Jun", "May", "Juno")], dtype=object)
    found, lost = column.read(Entries("when", texts))
    months = found[:3, 0].astype("M8[D]").astype("M8[M]").astype(str)
    assert months.tolist() == ["2004-06", "2004-06", "2004-05"] and [*lost] == [texts[3]]


@pytest.mark.parametrize(
    ("form", "day", "texts"),
    [
        ("quarter", -3.0, ["1970 Q1"]),
        ("quarter", -60.0, ["1969 Q4"]),
        ("%b %Y", -31.0 - 16, ["Nov 1969"]),
        ("%b %Y", -31.0 - 14, ["Dec 1969"]),
        ("%d.%m.%Y", 0.6, ["02.01.1970"]),
        ("%d.%m.%Y", -0.4, ["01.01.1970"]),
        ("%d.%m.%Y %H:%M", 45 / 86_400, ["01.01.1970 00:01"]),
        ("%m/%d/%Y %H:%M:%S", 0.6 / 86_400, ["01/01/1970 00:00:01"]),
    ],
)
def test_a_date_is_written_as_the_nearest_one_of_its_format(form, day, texts):
    assert date_texts(np.array([day]), form).tolist() == texts


def test_dates_far_away_are_written_as_the_last_that_are_read():
    found = date_texts(np.array([-200_000.0, 200_000.0, 0.0, np.nan]), "%d.%m.%Y").tolist()
    assert found == ["22.09.1677", "11.04.2262", "01.01.1970", ""]
    assert (pd.to_datetime(pd.Series(found[:3]), format="%d.%m.%Y", errors="coerce")).notna().all()
    assert date_texts(np.array([0.5]), "%m/%d/%Y %I:%M:%S %p %z").tolist() == ["01/01/1970 12:00:00 PM +0000"]


def test_comments_and_a_header_without_the_last_separator(tmp_path):
    rows = [f"{i % 7}.5,{'ab'[i % 2]}" for i in range(20)]
    raw = read(tmp_path, "\n".join(["# a station, and", "# its place", "x,g", *rows]))
    assert raw.column_names == ("x", "g") and len(raw.x) == 20 and "2 lines of comments" in raw.note
    assert list(raw.written()["g"][:2]) == ["a", "b"]
    assert read(tmp_path, "\n".join(["#x,g", *rows])).column_names == ("#x", "g")
    ended = read(tmp_path, "\n".join(["x,g", *(f"{row}," for row in rows)]))
    assert ended.column_names == ("x", "g", "column 3") and ended.x[0, 0] == 0.5 and ended.ignored == (2,)
    with pytest.raises(ValueError, match=r"a\.csv, line 4: expected 2 fields, got 3"):
        read(tmp_path, "# note\nx,g\n1.5,a\n2.5,b,c\n3.5,a\n")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# in May, by Smith\nx,y\n0.5,1.2\n1.5,2.2\n", ("x", "y")),
        ("# in May; by Smith\nx;y\n0,5;1,2\n1,5;2,2\n", ("x", "y")),
        ("# station\nx\n0.5\n1.5\n", ("x",)),
        ("# station\n0.5\n1.5\n", ()),
        ("0,5;1\n1,5;2,2\n", ()),
        ("#x,y\n0.5,1.2\n1.5,2.2\n", ("#x", "y")),
        ("#x;y\n0,5;1\n1,5;2,2\n", ("#x", "y")),
    ],
)
def test_a_comment_is_the_header_if_it_names_several_columns_and_no_row_does(tmp_path, text, names):
    raw = read(tmp_path, text)
    assert raw.column_names == names and raw.x[:, 0].tolist() == [0.5, 1.5]
    assert ("begins with a line of comments" in raw.note) == text.startswith("# ")
    again = read_csv(tmp_path / "a.csv", plan=raw.plan)
    np.testing.assert_array_equal(again.x, raw.x)
    named = read_csv(tmp_path / "a.csv", TableOptions(header=True))
    assert len(named.x) == (2 if names else 1)
    unnamed = read_csv(tmp_path / "a.csv", TableOptions(header=False))
    assert len(unnamed.x) == text.count("\n") - text.startswith("#")


@pytest.mark.parametrize("text", ["# a\n# b\n", "# a, b\n", "#"])
def test_comments_without_a_table_are_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"a\.csv: expected a table below its comments, got none$"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("unit", "number"),
    [
        *((unit, True) for unit in (" kg", "kg", " EUR", "EUR", " SEK", "°C", " °C", " °F", " m²", "%")),
        *((unit, False) for unit in (" Main", " A", " St", " °N", "a")),
    ],
)
def test_what_is_a_unit(tmp_path, unit, number):
    text = "\n".join(["a,b", *(f"{i}{unit},{i}.5" for i in range(30))])
    column, _ = read(tmp_path, text).plan
    assert column.kind == ("number" if number else "id")
    if number and unit.strip().isalpha():
        assert column.why == f"numbers in {unit.strip()}, as texts"
    mixed = "\n".join(["a,b", *(f"{i}{(unit, '')[i % 2]},{i}.5" for i in range(30))])
    assert read(tmp_path, mixed).plan[0].kind == ("number" if unit == "%" else "id")
    others = "\n".join(["a,b", *(f"{i}{(unit, ' °R', ' mg')[i % 3]},{i}.5" for i in range(30))])
    assert read(tmp_path, others).plan[0].kind == "id"


def test_the_rarest_words_beyond_fifty_are_others(tmp_path):
    rows = [f"{i},word{i % 60 if i < 600 else 0}" for i in range(660)]
    raw = read(tmp_path, "\n".join(["v,w", *rows]))
    column = raw.plan[1]
    assert len(column.words) == 50 and column.words[-1] == "other" and column.other
    assert column.treatment == "50 categories: the rarest 11 words, in 110 rows, are 'other'"
    assert (raw.x[:, 1] == 49).sum() == 110


def test_a_plan_is_applied_to_other_files(tmp_path):
    plan = read(tmp_path, people()).plan
    path, unseen = tmp_path / "b.csv", {}
    path.write_text(
        "smokes,weight,town,share,size,born,visits,grade,paid,extra\n"
        "maybe,60,town 1,7%,low,1960-02-30,3,4,$3,x\n"
        'no,n/k,town 999,oops,150,1960-02-03,3,9,"$1,000",y\n'
    )
    raw = read_csv(path, plan=plan, unseen=unseen)
    assert unseen == {
        "column 'smokes'": {"maybe": 1},
        "column 'size'": {"low": 1},
        "column 'born'": {"1960-02-30": 1},
        "column 'share'": {"oops": 1},
        "column 'weight'": {"n/k": 1},
    }
    values = dict(zip(raw.column_names, raw.x.T, strict=True))
    np.testing.assert_array_equal(values["paid"], [3, 1000])
    np.testing.assert_array_equal(values["share"], [7, np.nan])
    np.testing.assert_array_equal(values["weight"], [60, np.nan])
    new = {(row, raw.column_names[place]) for row, place in np.argwhere(raw.unseen).tolist()}
    assert new == {(0, "smokes")}
    path.write_text("smokes,weight\nno,60\n")
    with pytest.raises(ValueError, match=r"expected the columns .*, got no 'size', 'visits'"):
        read_csv(path, plan=plan)
    unnamed = read(tmp_path, "1.5,a\n2.5,b\n3.5,a\n4.5,b\n5.5,a\n").plan
    path.write_text("2,b\n")
    assert read_csv(path, plan=unnamed).x.tolist() == [[2, 1]]
    path.write_text("2\n")
    with pytest.raises(ValueError, match="expected 2 columns besides labels, got 1"):
        read_csv(path, plan=unnamed)


def test_what_a_person_says_overrules_the_plan(tmp_path):
    text = "zip,grade,day,note\n" + "".join(f"{10 + i % 7}.0,{i % 5},{i % 3},{i % 4} x\n" for i in range(60))
    said = (("zip", "category"), ("grade", "number"), ("3", "ignored"), ("note", "id"))
    path = tmp_path / "a.csv"
    path.write_text(text)
    raw = read_csv(path, TableOptions(kinds=said))
    assert kinds(raw) == {"zip": "category", "grade": "number", "day": "ignored", "note": "id"}
    assert raw.levels[0] == tuple(map(str, range(10, 17))) and raw.ignored == (2, 3)
    assert {column.why for column in raw.plan} == {"asked for"}
    with pytest.raises(ValueError, match=r"kind: expected columns out of zip, grade, day, note, got 'x'"):
        read_csv(path, TableOptions(kinds=(("x", "id"),)))
    raw = read_csv(path, TableOptions(ignore=("zip",), labels=("note",)))
    assert raw.label_names == ("note",) and raw.value_names == (("0 x", "1 x", "2 x", "3 x"),)
    with pytest.raises(ValueError, match=r"label: expected columns out of zip, .*, got 'sort'"):
        split_file(path, 0, SparseOptions(mixed=True, table=TableOptions(labels=("sort",))))


# How a file is written


@pytest.mark.parametrize(
    ("text", "encoding", "note"),
    [
        ("höhe;art\n1,5;größer\n2,5;kleiner\n3,5;größer\n", "latin-1", "is read as Windows-1252"),
        ("höhe;art\n1,5;größer\n2,5;kleiner\n3,5;größer\n", "utf-8", "have decimal commas"),
        ("höhe\tart\n1.5\tgrößer\n2.5\tkleiner\n3.5\tgrößer\n", "utf-8", "separated by tabs"),
        ("höhe|art\n1.5|größer\n2.5|kleiner\n3.5|größer\n", "utf-8", "separated by bars"),
        ("höhe,art\n1.5,größer\n2.5,kleiner\n3.5,größer\n", "utf-16", "is read as UTF-16"),
    ],
)
def test_separators_commas_and_encodings_are_found(tmp_path, text, encoding, note):
    raw = read(tmp_path, text, encoding)
    assert raw.column_names == ("höhe", "art") and raw.levels == ((), ("größer", "kleiner"))
    assert raw.x.tolist() == [[1.5, 0], [2.5, 1], [3.5, 0]] and note in raw.note


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_decimal_commas_without_a_header_separate_no_fields(tmp_path, separator):
    """Every row has as many commas as any other, and more of them than of what separates its fields."""
    rows = [separator.join(f"{i},{(7 * i + j) % 90 + 10}" for j in range(3)) for i in range(30)]
    raw = read(tmp_path, "\n".join([*rows]) + "\n")
    assert raw.x.shape == (30, 3) and raw.x[1].tolist() == [1.17, 1.18, 1.19] and raw.comma
    lists = read(tmp_path, "\n".join(f"{i % 7},x{i % 3};y,{i % 5}" for i in range(30)) + "\n")
    assert lists.x.shape == (30, 3) and not lists.comma
    with pytest.raises(ValueError, match="line 31: expected 2 fields, got 3"):  # which are no decimal commas
        read(tmp_path, "\n".join(f"{i},{i % 10}" for i in range(30)) + "\n3,4,9\n")


@pytest.mark.parametrize("unit", ["", " €"])
def test_dots_between_thousands_belong_to_decimal_commas(tmp_path, unit):
    wages = ["3.200,50", "900,00", "-1.234.567,25", "2.900", "12"]
    dates = ["12.03.1980", "01.07.1975", "09.09.1981", "30.12.1999", "28.02.2000"]
    rows = [f"{wage}{unit};{date}" for wage, date in zip(wages, dates, strict=True)]
    raw = read(tmp_path, "\n".join(["wage;born", *rows]) + "\n")
    assert raw.x[:, 0].tolist() == [3200.5, 900.0, -1234567.25, 2900.0, 12.0]
    assert [column.kind for column in raw.plan] == ["number", "date"]


def test_a_compressed_file_and_a_sheet_are_unpacked_within_limits(tmp_path):
    text = "a,b\n" + "".join(f"{i % 9}.5,{'xy'[i % 2]}\n" for i in range(5000))
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    raw = read_csv(path)
    assert raw.x.shape == (5000, 2) and raw.levels == ((), ("x", "y"))
    with at_most(100_000), pytest.raises(ValueError, match=r"a\.csv\.gz: loading it would take .* of memory"):
        read_csv(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"a\.csv\.gz: cannot be unpacked"):
        read_csv(path)
    pytest.importorskip("openpyxl")
    import pandas as pd

    sheet = tmp_path / "a.xlsx"
    pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": ["x", "y", "x"]}).to_excel(sheet, index=False)
    assert read_csv(sheet).x.tolist() == [[1.5, 0], [2.5, 1], [3.5, 0]]
    with at_most(1000), pytest.raises(ValueError, match=r"a\.xlsx: loading it would take .* of memory"):
        read_csv(sheet)


def test_names_that_are_there_twice_and_a_header_that_is_one_short(tmp_path):
    raw = read(tmp_path, "a,b,a\n1,2,3\n2,3,5\n")
    assert raw.column_names == ("a", "b", "a.1") and "'a' is 'a.1'" in raw.note
    raw = read(tmp_path, "size,kind\nr1,1.5,x\nr2,2.5,\nr3,2.5,y\n")
    assert raw.column_names == ("index", "size", "kind") and len(raw.x) == 3


# The header


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("site,1990,2000\nblue,18.05,44.5\nred,20,54.3\nblue,19,50\n", ("site", "1990", "2000")),
        ("site,1,2,3\nblue,0.3,0.5,1.1\nred,2.2,2.5,7.5\nred,1.5,1.2,3\n", ("site", "1", "2", "3")),
        ("id,1990\n4,100\n5,250\n", ("id", "1990")),
        ("1990,1991,1992\n4,100,3\n5,250,7\n", ("1990", "1991", "1992")),
        ("0,1,2\n0.5,blue,3\n1,red,2\n2,blue,4\n", ("0", "1", "2")),  # of a frame without names
        ("a,3\n1,2\n3,4\n", ("a", "3")),
        ("green,19,50\nblue,18,44\nred,20,54\nblue,20,50\n", ("green", "19", "50")),
        ("0,1,2\n0.5,7,3\n1,3,2\n2,9,4\n", ()),
        ("0,1,2\n0.5,red,3\n1,1,2\n2,blue,4\n3,red,4\n4,blue,4\n", ()),  # 1 is one of the words
        ("blue,18,44\nblue,18.05,44.5\nred,20,54.3\n", ()),  # its word is one of the column's
        ("18,8,chevrolet\n15,8,buick\n18,8,plymouth\n17,6,ford\n", ()),  # names that all differ
        ("5.1,3.5,setosa\n4.9,3,setosa\n7,3.2,other\n", ()),
    ],
)
def test_a_first_row_is_a_header_unless_it_looks_like_its_columns(tmp_path, text, header):
    raw = read(tmp_path, text)
    assert raw.column_names == header and len(raw.x) == text.count("\n") - bool(header)
    said = "is its header, though it has numbers" if header else "has no header"
    assert said in raw.note
    path = tmp_path / "a.csv"
    assert len(read_csv(path, TableOptions(header=False)).x) == text.count("\n")
    assert len(read_csv(path, TableOptions(header=True)).x) == text.count("\n") - 1
    assert len(read_csv(path, plan=raw.plan).x) == len(raw.x)


def test_a_first_row_of_words_is_no_header_if_they_occur_below(tmp_path):
    raw = read(tmp_path, "blue,x\nred,y\nblue,y\nred,x\n")
    assert len(raw.x) == 4 and raw.levels == (("blue", "red"), ("x", "y"))
    assert "a.csv has no header, as its first row has values of its columns" in raw.note
    assert read(tmp_path, "blue,kind\nred,y\nblue,y\nred,x\n").column_names == ("blue", "kind")


def test_the_header_of_a_file_that_was_joined_to_another_counts_as_missing(tmp_path):
    numbers = "".join(f"{i},{2 * i}\n" for i in range(5))
    raw = read(tmp_path, f"a,b\n{numbers}a,b\n{numbers}")
    assert np.isnan(raw.x).any(axis=1).tolist() == [False] * 5 + [True] + [False] * 5
    assert "counts as missing: 'a'" in raw.plan[0].why


@pytest.mark.parametrize("entry", ["inf", "-inf", "Infinity"])
@pytest.mark.parametrize(  # the kind of columns that is asked for, and what else is in the column
    ("rest", "other"), [("", "7.5"), ("", ""), ("", "unknown"), ("plain", "7.5"), ("plain", "")]
)
def test_an_infinite_number_is_an_error_that_names_its_row_and_column(tmp_path, entry, other, rest):
    entries = [other, *(f"{i / 3}" for i in range(11)), entry, "1.5"]
    content = "a,b\n" + "".join(f"{i % 4 + 0.5},{text}\n" for i, text in enumerate(entries))
    message = rf"a\.csv, row 13: expected a finite number in column 'b', got {float(entry):g}$"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, content, asked=TableOptions(rest=rest))


def test_an_infinite_number_of_new_rows_is_an_error_too(tmp_path):
    plan = read(tmp_path, "a,b\n" + "".join(f"{i / 7},{i / 3}\n" for i in range(12))).plan
    with pytest.raises(ValueError, match=r"a\.csv, row 2: expected a finite number in column 'a', got inf$"):
        read(tmp_path, "a,b\n1,2\ninf,\n", plan=plan)


def test_infinity_is_no_error_in_a_column_that_is_left_out(tmp_path):
    raw = read(tmp_path, "a,b\n1.5,inf\n2.5,3\n4,1\n", asked=TableOptions(ignore=("b",)))
    assert raw.ignored == (1,) and np.isnan(raw.x[0, 1])


def test_infinity_among_words_is_a_word(tmp_path):
    assert read(tmp_path, "a,b\n" + "1.5,cavalry\n2,inf\n" * 6).levels == ((), ("cavalry", "inf"))


def test_months_beside_gaps_are_read_without_a_nan_for_pandas(monkeypatch):
    """It multiplies memory that is not initialised beside one, and fails if that is large."""
    real = pd.to_datetime

    def checked(dates, **options):
        assert dates.dtype == object or not np.isnan(dates).any()
        return real(dates, **options)

    monkeypatch.setattr(pd, "to_datetime", checked)
    column = PlannedColumn("day", "date", "", "", "", form="ISO8601", parts=("month", "weekday"))
    found = column.read(Entries("day", np.array(["", "2024-05-16", "2024-06-17"], dtype=object)))[0]
    np.testing.assert_array_equal(found[:, 1:], [[np.nan, np.nan], [4, 3], [5, 0]])
    assert date_texts(found[:, 0], "%d.%m.%Y").tolist() == ["", "16.05.2024", "17.06.2024"]
