"""The command line on tables as people have them: what is read, what is left as it is, how fits are judged."""

import csv as python_csv
import errno
import gzip
import io
import itertools
import json
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_runs import run, run_json
from conftest import write_shop_table
from pyarrow import csv, feather
from typer.testing import CliRunner

from finitegp.cli import app
from finitegp.commands.console import columns_table, verdict
from finitegp.tables.csv_files import CsvOptions, read_records
from finitegp.tables.reader import TableReader
from finitegp.tables.summaries import ColumnSummary

NASTY = (
    'zip,big,price2,flag,when,"quoted, name",text,width,colour,sold\r\n'
    '01234,12345678901234567890,1.50,TRUE,2013-01-01T10:00:00Z,"a ""b"" c","two\nlines",1.0,red,2024-01-01\r\n'
    "\r\n"
    '00501,00000000000000000001,0.10,FALSE,2013-01-01 10:00:00,,5" pipe,2.50,blue,2024-02-01\r\n'
    '00000,-0,1e5,true,NA,"x,y", padded ,3,green,2024-03-01\n'
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*more):
    return run_json("fit", "t.csv", "-t", "price", "--effort", "low", "--no-report", "--force", *more)


def test_predict_leaves_every_character_of_a_nasty_table(here, shop):
    (here / "n.csv").write_bytes(NASTY.encode())
    run("predict", shop / "price.finitegp", "n.csv", "-o", "out.csv")
    out = (here / "out.csv").read_bytes().decode()
    with io.StringIO(NASTY, newline="") as before, io.StringIO(out, newline="") as after:
        pairs = list(zip(read_records(before), read_records(after), strict=True))
    assert len(pairs) == 4
    for own, made in pairs:
        assert made.text.startswith(own.text + ",")
        assert made.end == own.end
        assert made.text[len(own.text) :].count(",") == 4
    assert pairs[0][1].text.endswith(",price_mean,price_std,price_lower,price_upper")
    # The same numbers as for the same rows, written plainly.
    rows = list(python_csv.DictReader(io.StringIO(NASTY)))
    with open("plain.csv", "w") as opened:
        opened.write("width,colour,sold\n" + "".join(f"{r['width']},{r['colour']},{r['sold']}\n" for r in rows))
    run("predict", shop / "price.finitegp", "plain.csv", "-o", "plain-out.csv")
    expected = csv.read_csv("plain-out.csv")["price_mean"].to_pylist()
    assert [float(made.text.split(",")[-4]) for _, made in pairs[1:]] == expected


def test_predict_to_other_kinds_and_only_some_columns(here, shop):
    (here / "n.csv").write_bytes(NASTY.encode())
    run("predict", shop / "price.finitegp", "n.csv", "-o", "keep.tsv", "--keep", "zip", "--keep", "quoted, name")
    kept = (here / "keep.tsv").read_text().splitlines()
    assert kept[1].startswith('01234\t"a ""b"" c"\t')
    run("predict", shop / "price.finitegp", "n.csv", "-o", "all.tsv")
    assert '\t"two\nlines"\t1.0\tred\t' in (here / "all.tsv").read_text()
    run("predict", shop / "price.finitegp", "n.csv", "-o", "out.csv.gz")
    assert gzip.decompress((here / "out.csv.gz").read_bytes()).startswith(b"zip,big")
    pq.write_table(pa.table({"id": ["007"], "width": [1.5], "colour": ["red"], "sold": ["2024-01-01"]}), "n.parquet")
    run("predict", shop / "price.finitegp", "n.parquet", "-o", "out.parquet", "--keep", "id")
    table = pq.read_table("out.parquet")
    assert table.column_names == ["id", "price_mean", "price_std", "price_lower", "price_upper"]
    assert table["id"].to_pylist() == ["007"]
    result = run("predict", shop / "price.finitegp", "n.csv", "-o", "x.csv", "--keep", "Zip", code=1)
    assert "no column 'Zip'" in result.stderr
    assert "did you mean 'zip'?" in result.stderr


def test_what_is_outside_is_written_for_each_row(here, quick_effort):
    rows = [f"{width / 7},{'ab'[width % 2]},{3.0 * width + width % 3}" for width in range(60)]
    (here / "t.csv").write_text("\n".join(["width,cut,price", *rows]) + "\n")
    fit("-o", "m.finitegp")
    (here / "n.csv").write_text("width,cut\n2,a\n50,z\n")
    run("predict", "m.finitegp", "n.csv", "-o", "out.csv", "--outside")
    run("predict", "m.finitegp", "n.csv", "-o", "out.parquet", "--outside")
    written = (here / "out.csv").read_text().splitlines()
    assert written[0].endswith(",price_upper,price_outside")
    inside, outside = (line.rpartition(",")[2] for line in written[1:])
    assert inside == ""
    assert outside.startswith("cut: new; width: ")
    assert float(outside.rpartition(" ")[2]) > 5.0
    assert pq.read_table("out.parquet")["price_outside"].to_pylist() == [inside, outside]


def test_pipes(here, shop):
    text = (shop / "new.csv").read_bytes()
    run("predict", shop / "price.finitegp", shop / "new.csv", "-o", "file.csv")
    result = run("predict", shop / "price.finitegp", "-", "-o", "-", input=text)
    assert result.stdout == (here / "file.csv").read_text()
    evaluated = json.loads(run("evaluate", shop / "price.finitegp", "-", "--json", input=text).stdout)
    assert evaluated["rows"] == 25


def test_every_kind_of_file_is_read(here, shop):
    table = csv.read_csv(shop / "new.csv")
    text = (shop / "new.csv").read_text()
    feather.write_feather(table, "n.feather")
    (here / "n.tsv").write_text(text.replace(",", "\t"))
    (here / "n.txt").write_text(text.replace(",", ";"))
    (here / "n.csv.gz").write_bytes(gzip.compress(text.encode()))
    scores = [
        run_json("evaluate", shop / "price.finitegp", name)["scores"][0]["rmse"]
        for name in (shop / "new.csv", "n.feather", "n.tsv", "n.txt", "n.csv.gz")
    ]
    assert scores == pytest.approx([scores[0]] * 5, rel=1e-9)


def test_a_workbook_is_read(here, shop):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (shop / "new.csv").read_text().splitlines():
        book.active.append(row.split(","))
    book.save("n.xlsx")
    assert run_json("evaluate", shop / "price.finitegp", "n.xlsx")["rows"] == 25


def test_cells_of_a_workbook_keep_their_types(here):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["when", "size", "mixed", "sold", None])
    book.active.append([datetime(2020, 1, 2), 1, "a", True, 5])
    book.active.append([date(2020, 1, 3), 2.5, 3, None, 6])
    book.active.append([None] * 5)  # as programs leave behind
    book.save("t.xlsx")
    table = TableReader("t.xlsx")
    assert [str(each) for each in table.schema.types] == ["timestamp[us]", "double", "string", "bool", "int64"]
    assert table.column_names[-1] == "column 5"
    assert table.read().to_pylist()[1] == {
        "when": datetime(2020, 1, 3),
        "size": 2.5,
        "mixed": "3",
        "sold": None,
        "column 5": 6,
    }
    assert table.num_rows == 2


def test_sheets_that_are_not_read_are_named(here):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "March"
    book.create_sheet("empty")
    book.active["B3"], book.active["C3"], book.active["B4"], book.active["C4"] = "size", "price", 1, 2
    book.save("t.xlsx")
    table = TableReader("t.xlsx", columns=["size", "price"])
    assert table.read().to_pylist() == [{"size": 1, "price": 2}]  # rows left free above the header are none
    assert table.notes == []
    book.create_sheet("April")["A9"] = 5
    book.save("t.xlsx")
    assert TableReader("t.xlsx").notes == [
        "t.xlsx has several sheets, of which only the first, 'March', is read: not 'April'."
    ]


def test_the_shell_completes_names(here):
    """Typer asks the program itself what can follow."""
    environment = {"_FINITEGP_COMPLETE": "complete_bash", "COMP_WORDS": "finitegp ev", "COMP_CWORD": "1"}
    shown = CliRunner(env=environment).invoke(app, [], prog_name="finitegp")
    assert shown.stdout.split() == ["evaluate"]
    environment |= {"COMP_WORDS": "finitegp fit --target-s", "COMP_CWORD": "2"}
    assert CliRunner(env=environment).invoke(app, [], prog_name="finitegp").stdout.split() == ["--target-scale"]


def test_a_stop_says_what_is_kept(here, shop, quick_effort, monkeypatch):
    write_shop_table(here / "t.csv", 60)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("finitegp.tables.model.TableRegressor.save", stop)
    message = run("fit", "t.csv", "-t", "price", "--effort", "low", code=130).stderr
    assert "Stopped: no file was written, and files that were there before are as they were." in message
    monkeypatch.setattr("finitegp.tables.model.TableRegressor.fit_rows", stop)
    message = run("fit", "t.csv", "-t", "price", "-o", "other.finitegp", code=130).stderr
    assert "Stopped: no file was written" in message
    assert [path.name for path in here.iterdir()] == ["t.csv"]


def test_a_disk_without_room_for_the_model_leaves_the_old_report_too(here, shop, quick_effort, monkeypatch):
    write_shop_table(here / "t.csv", 60)
    run("fit", "t.csv", "-t", "price", "--effort", "low")
    before = {path.name: path.read_bytes() for path in here.iterdir()}

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("finitegp.tables.model.TableRegressor.save", full)
    run("fit", "t.csv", "-t", "price", "--effort", "low", "--seed", "1", "--force", code=1)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


def test_decimal_commas_and_semicolons(here, shop, quick_effort):
    lines = (shop / "train.csv").read_text().replace(".", "§").replace(",", ";").replace("§", ",")
    (here / "t.csv").write_text(lines)
    expected = run_json("info", shop / "price.finitegp")["summary"]["scores"][0]["rmse"]
    for more in ((), ("--decimal", ",")):
        found = fit(*more)
        # 96,689 may be a thousand and more, but other columns have decimal commas.
        assert found["scores"][0]["rmse"] == pytest.approx(expected, rel=1e-6)
        assert [line["kind"] for line in found["columns"]] == ["number", "category", "date"]
        # Predictions are written as the table is: a spreadsheet reads a point there as text or as a date.
        run("predict", found["model"], "t.csv", "-o", "p.csv", "--force")
        first = (here / "p.csv").read_text().splitlines()[1]
        assert "." not in first
        assert len(first.split(";")) == len(lines.splitlines()[0].split(";")) + 4
    assert "must be . or ," in run("fit", "t.csv", "-t", "price", "--decimal", "x", code=2).stderr


def test_rows_without_a_target_in_every_command(here, shop, quick_effort):
    lines = (shop / "train.csv").read_text().splitlines()
    lines[4] = lines[4].rsplit(",", 1)[0] + ","
    (here / "t.csv").write_text("\n".join(lines) + "\n")
    found = fit("--no-rows")
    assert (found["rows"], found["held_out_rows"]) == (59, 11)
    told = "'price' is missing in 1 of 60 rows, first in line 5 of t.csv: these rows are left out."
    assert any(told in note for note in found["notes"])
    for command in (["evaluate"], ["update", "-o", "u.finitegp"], ["statistics", "-o", "s.statistics"]):
        found = run_json(command[0], "model.finitegp", "t.csv", *command[1:])
        assert any(told in note for note in found["notes"]), command
        assert 59 in (found.get("rows"), found.get("rows_added"))
    assert any(told in note for note in run_json("report", "model.finitegp", "t.csv", "-o", "r.html")["notes"])


def test_gaps_after_a_complete_fit_are_predicted_and_told(here, shop):
    (here / "n.csv").write_text("width,colour,sold\n,red,2024-01-01\n2,red,2024-01-01\n")
    result = run("predict", shop / "price.finitegp", "n.csv", "-o", "out.csv")
    assert "Column 'width': 1 of 2 values were missing" in result.stderr
    std = csv.read_csv("out.csv")["price_std"].to_pylist()
    assert std[0] > std[1]


def test_columns_can_be_named(here, quick_effort):
    random = np.random.default_rng(0)
    rows = [f"{n},{random.normal():.3f},{n % 7},{random.normal():.3f},{1 + n % 2}" for n in range(60)]
    (here / "t.csv").write_text("n,x,zone,price,times\n" + "\n".join(rows) + "\n")
    found = fit("--categorical", "zone", "--drop", "x", "--weight", "times", "--test-fraction", 0)
    kinds = {line["column"]: (line["kind"], line["encoding"]) for line in found["columns"]}
    assert kinds == {"n": ("identifier", "left out"), "zone": ("category", "one-hot")}
    assert run_json("info", "model.finitegp")["rows"] == 90
    assert [line["column"] for line in fit("--only", "x")["columns"]] == ["x"]
    assert any("'n' is left out: it numbers or names the rows" in note for note in found["notes"])


def test_ambiguous_dates_name_the_option(here):
    (here / "t.csv").write_text("d,price\n" + "".join(f"0{1 + n % 9}/0{1 + n % 8}/2020,{n}\n" for n in range(60)))
    message = run("fit", "t.csv", "-t", "price", code=1).stderr
    assert "Use --day-first or --month-first" in message
    assert "day_first=" not in message


def test_weights_that_are_text_name_the_option(here):
    write_shop_table(here / "t.csv", 60)
    message = run("fit", "t.csv", "-t", "price", "--weight", "colour", code=1).stderr
    assert "The weight 'colour' must be numbers, but line 2 of t.csv holds" in message
    assert "name another one with --weight." in message


def test_splits_of_the_command_line(here, quick_effort):
    write_shop_table(here / "t.csv", 60)
    write_shop_table(here / "later.csv", 20, seed=5)
    assert fit("--split-by", "sold")["judged_by"] == "the rows with the highest 'sold'"
    assert fit("--group", "colour")["judged_by"] == "whole groups of 'colour'"
    found = fit("--cv", 3)
    assert (found["judged_by"], found["held_out_rows"]) == ("3-fold cross-validation", 60)
    found = fit("--test", "later.csv")
    assert (found["held_out_rows"], found["rows"], found["takes_in_held_out_rows"]) == (20, 60, False)
    assert found["scores"][0]["rmse"] == pytest.approx(
        run_json("evaluate", "model.finitegp", "later.csv")["scores"][0]["rmse"], rel=1e-9
    )
    both = [("--cv", 3), ("--split-by", "sold"), ("--test", "later.csv"), ("--group", "colour")]
    for one, other in itertools.combinations(both, 2):
        if (one[0], other[0]) != ("--cv", "--group"):
            message = " ".join(run("fit", "t.csv", "-t", "price", *one, *other, code=2).stderr.split())
            assert "choose one" in message
            assert one[0] in message
            assert other[0] in message
    assert fit("--cv", 3, "--group", "colour")["judged_by"] == "3-fold cross-validation"


def test_scores_in_the_terminal_end_in_a_verdict_and_findings(here, shop, quick_effort):
    result = run("fit", shop / "train.csv", "-t", "price", "--effort", "low", "-o", "m.finitegp")
    assert "R2" in result.stdout
    assert "MAE" in result.stdout
    assert "of the variance" in result.stdout
    assert "90 % intervals hold" in result.stdout
    found = run_json("fit", shop / "train.csv", "-t", "price", "--effort", "low", "-o", "m.finitegp", "-f")
    for finding in found["findings"]:
        assert set(finding) == {"severity", "title", "evidence", "fix"}
        assert finding["title"] in result.stdout
    assert verdict(found["scores"], found["interval_width"]) in result.stdout


def test_the_table_of_columns_is_short_for_wide_tables():
    lines = [ColumnSummary(f"c{n}", "number", "number", (f"c{n}",), "", 0, 5) for n in range(500)]
    lines.append(ColumnSummary("t", "category", "one-hot", ("t=a", "t=b"), "", 3, 2))
    table = columns_table(lines)
    assert table.row_count == 1
    assert "1 of 501 columns (500 number, 1 one-hot)" in str(table.title)


def test_a_csv_is_read_at_most_twice(here, quick_effort, monkeypatch):
    write_shop_table(here / "t.csv", 60)
    from finitegp.tables import csv_files

    passes = []
    original = csv_files._reader

    def counted(path, options, types, *skip):
        passes.append(types)
        return original(path, options, types, *skip)

    monkeypatch.setattr(csv_files, "_reader", counted)
    fit()
    # The first guesses types from the first block and settles them over the whole file.
    assert len(passes) == 2
    assert passes[0] == {}


def test_lines_are_those_of_editors(here):
    (here / "t.csv").write_text('a,b\n1,"x\ny\nz"\n\n2,w\n3,"open\n')
    assert [CsvOptions().line_of(here / "t.csv", row) for row in range(4)] == [2, 6, 7, None]
    (here / "u.csv").write_text('a,b\n1,"x\ny\nz"\n\n2,w\n')
    table = TableReader("u.csv")
    assert [table.line_of(row) for row in range(2)] == [2, 6]


def test_gaps_as_in_the_fit_are_nothing_to_speak_of(shop, tmp_path, quick_effort):
    """Those in columns that had none are."""
    lines = (shop / "train.csv").read_text().splitlines()
    gaps = [f",{line.split(',', 1)[1]}" if number % 7 == 3 else line for number, line in enumerate(lines)]
    (tmp_path / "gaps.csv").write_text("\n".join(gaps) + "\n")
    fit = run_json("fit", tmp_path / "gaps.csv", "--target", "price", "--effort", "low", "-o", tmp_path / "m.finitegp")
    assert sum("width" in note for note in fit["notes"]) == 1  # that gaps were filled
    for model, told in ((tmp_path / "m.finitegp", 0), (shop / "price.finitegp", 1)):
        notes = run_json("predict", model, tmp_path / "gaps.csv", "-o", tmp_path / "p.csv", "--force")["notes"]
        assert sum("'width'" in note and "usual value was put in" in note for note in notes) == told


def test_output_fits_into_a_terminal_of_80_letters(here, shop):
    narrow = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    shown = narrow.invoke(app, ["info", str(shop / "price.finitegp")]).stdout
    assert max(map(len, shown.splitlines())) <= 80
    heading = next(line for line in shown.splitlines() if line.startswith(" column"))
    assert heading.split() == ["column", "holds", "becomes", "gaps", "relevance", "note"]
    assert "numbers  gaps  different" in run("info", shop / "price.finitegp").stdout
    # A paragraph is broken where the terminal ends, not where the source does.
    words = narrow.invoke(app, ["fit", "--help"]).stdout.split("\n\n")[1:3]
    assert all(len(line.rstrip()) > 60 for each in words for line in each.splitlines()[:-1] if line.strip())


def test_one_row_is_no_rows(here, shop):
    (here / "one.csv").write_text("".join((shop / "new.csv").read_text().splitlines(keepends=True)[:2]))
    assert "1 row added, " in run("update", shop / "price.finitegp", "one.csv", "-o", "more.finitegp").stdout
    assert run("evaluate", shop / "price.finitegp", "one.csv").stdout.startswith("1 row ")
    report = run("report", shop / "price.finitegp", "one.csv", "-o", "one.html").stdout
    assert "report on 1 row: " in report
    assert "Overfitted" not in report  # one row has no standard error
