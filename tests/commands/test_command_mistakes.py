"""Mistakes that people make on the command line: each gets one line that says what to do, and an exit code."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest
from command_runs import fail, runner

from finitegp import GPRegressor
from finitegp.cli import app
from finitegp.features import LinearFeatures

HEADER = "width,colour,sold,price\n"
ROWS = "".join(
    f"{1 + 0.1 * n},{'red' if n % 3 else 'blue'},2024-01-{1 + n % 28:02d},{5 + 0.3 * n}\n" for n in range(20)
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(HEADER + ROWS)
    return tmp_path


def run(*arguments, code=1):
    return fail(*arguments, code=code, notes=True)


def fit(contents, *more, name="t.csv", target="price"):
    data = contents if isinstance(contents, bytes) else contents.encode()
    with open(name, "wb") as opened:
        opened.write(data)
    return run("fit", name, "--target", target, *more)


def test_wrong_target_name(here):
    message = run("fit", "t.csv", "--target", "Prise")
    assert "no column 'Prise'" in message
    assert "did you mean 'price'?" in message


def test_target_that_is_text(here):
    message = run("fit", "t.csv", "--target", "colour")
    assert "must be numbers, but line 2 of t.csv holds 'blue'" in message
    assert "choose another target" in message


def test_target_that_is_a_date(here):
    assert "turn it into a number first" in run("fit", "t.csv", "--target", "sold")


def test_missing_values_in_the_target(here):
    message = fit(HEADER + ROWS + "1,red,2024-01-01,\n", "--refuse-missing-targets")
    assert (
        "'price' is missing in 1 of 21 rows, first in line 22 of t.csv: remove them, or leave out --refuse" in message
    )


def test_infinite_target(here):
    assert "infinite in 1 of 21 rows" in fit(HEADER + ROWS + "1,red,2024-01-01,inf\n")


def test_constant_target(here):
    message = fit("width,price\n" + "".join(f"{n},5\n" for n in range(20)))
    assert "'price' is 5 in every row, so there is nothing to predict: choose another column" in message


def test_one_row(here):
    assert "The table has 1 row with a target, but at least 2 are needed" in fit("width,price\n1,5\n")


def test_all_missing_column_is_left_out_and_said(here, quick_effort):
    rows = "".join(f"{n % 7},,{n * 0.5}\n" for n in range(12))
    (here / "t.csv").write_text("width,empty,price\n" + rows)
    result = runner.invoke(app, ["fit", "t.csv", "--target", "price", "--effort", "low", "--no-report"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "empty" in line)
    assert "left out" in line


def test_only_an_empty_column(here):
    message = fit("empty,price\n" + "".join(f",{n}\n" for n in range(12)))
    assert "no column that carries information ('empty':" in message


def test_missing_values_in_the_inputs(here):
    message = fit(HEADER + ROWS + ",red,2024-01-01,5\n1,,2024-01-01,7\n", "--missing", "error")
    assert "column 'width' has 1 missing value (first: line 22 of t.csv)" in message
    assert "column 'colour' has 1 missing value" in message
    assert "use --missing impute" in message


def test_infinite_values_in_the_inputs(here):
    message = fit(HEADER + ROWS + "inf,red,2024-01-01,5\n", "--missing", "error")
    assert "column 'width' has 1 infinite value" in message
    assert "use --missing impute" in message


def test_file_not_found(here):
    assert "There is no file tt.csv" in run("fit", "tt.csv", "--target", "price")


def test_empty_file(here):
    assert "empty (0 bytes)" in fit("")


def test_header_only(here):
    assert "a header but no rows" in fit(HEADER)


def test_duplicate_column_names(here):
    assert "more than one column named 'width'" in fit("width,width,price\n1,2,3\n")


def test_ragged_rows(here):
    message = fit(HEADER + ROWS + "1,red\n")
    assert "t.csv, line 22: expected 4 columns, got 2" in message


def test_other_delimiters_and_encodings(here):
    message = fit((HEADER + ROWS).replace(",", ";"), "--delimiter", "|")
    assert "separated by semicolons" in message
    assert "Use --delimiter ';'" in message
    assert "Use --delimiter tab" in fit((HEADER + ROWS).replace(",", "\t"), "--delimiter", ";")
    message = fit((HEADER + ROWS).replace("red", "grün").encode("latin-1"))
    assert "use --encoding with its own, for example cp1252" in message
    message = fit((HEADER + ROWS).encode("utf-16"))
    assert "is text in UTF-16: save it as UTF-8, or use --encoding with its own, for example utf-16." in message
    assert "or use another --delimiter" in fit(HEADER + "1,2,3,4,5,6,7\n" + ROWS)
    for option, value, expected in (("--delimiter", ";;", "one character"), ("--encoding", "utf9", "common ones are")):
        assert expected in run("fit", "t.csv", "--target", "price", option, value, code=2)


def test_unknown_kind_of_file(here):
    (here / "t.json").write_text("[]")
    message = run("fit", "t.json", "--target", "price")
    assert "t.json does not show what kind of table it is: save it as CSV or Parquet" in message
    (here / "t.xlsx").write_bytes(b"PK\x03\x04")
    assert "t.xlsx" in run("fit", "t.xlsx", "--target", "price")


def test_workbook_named_csv(here):
    assert "rename it so that it ends in .xlsx" in fit(b"PK\x03\x04" + bytes(100))


def test_parquet_that_is_not_one(here):
    (here / "t.parquet").write_text(HEADER + ROWS)
    assert "not Parquet as its name has it" in run("fit", "t.parquet", "--target", "price")


def test_truncated_parquet(here):
    (here / "t.parquet").write_bytes(b"PAR1" + bytes(200))
    assert "not a whole Parquet file" in run("fit", "t.parquet", "--target", "price")


def test_broken_gzip(here):
    (here / "t.csv.gz").write_bytes(gzip.compress((HEADER + ROWS).encode())[:-30])
    assert "t.csv.gz" in run("fit", "t.csv.gz", "--target", "price")


def test_files_with_different_columns(here):
    (here / "u.csv").write_text("width,price\n1,2\n")
    message = run("fit", "t.csv", "u.csv", "--target", "price")
    assert "u.csv lacks the column 'colour', 'sold' that t.csv has" in message
    assert "columns=" not in message


def test_unknown_column_to_drop(here):
    message = run("fit", "t.csv", "--target", "price", "--drop", "color")
    assert "no column 'color'" in message
    assert "did you mean 'colour'?" in message


def test_output_exists(here):
    (here / "model.finitegp").write_text("mine")
    message = run("fit", "t.csv", "--target", "price")
    assert "model.finitegp exists already" in message
    assert "--force" in message
    assert (here / "model.finitegp").read_text() == "mine"
    (here / "m.html").write_text("mine")
    assert "m.html exists already" in run("fit", "t.csv", "--target", "price", "-o", "m.finitegp")


def test_output_directory_is_missing(here):
    message = run("fit", "t.csv", "--target", "price", "-o", "models/price.finitegp")
    assert "no directory models" in message
    assert "create it" in message


def test_output_directory_cannot_be_written(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    assert "cannot be written: choose another place" in run("fit", "t.csv", "--target", "price")


def test_output_is_the_input(here):
    message = run("fit", "t.csv", "--target", "price", "-o", "t.csv", "--force")
    assert "t.csv is also read" in message


def test_shares_that_are_percentages(here):
    message = run("fit", "t.csv", "--target", "price", "--device", "gpu", code=2)
    assert "Invalid value for --device: device must be one that torch knows" in message
    message = run("fit", "t.csv", "--target", "price", "--device", "meta", code=2)
    assert "Invalid value for --device: device is 'meta', which torch cannot use here" in message
    message = run("fit", "t.csv", "--target", "price", "--test-fraction", "20", code=2)
    assert "between 0 and 1, but is 20; did you mean 0.2?" in message


def test_no_target(here):
    assert "--target" in run("fit", "t.csv", code=2)


def test_unknown_effort(here):
    assert "'low', 'medium', 'high'" in run("fit", "t.csv", "--target", "price", "--effort", "max", code=2)


def predict(shop, contents, *more, code=1):
    with open("n.csv", "w") as opened:
        opened.write(contents)
    return run("predict", shop / "price.finitegp", "n.csv", "-o", "out.csv", *more, code=code)


def test_text_in_a_column_of_numbers_at_predict(here, shop):
    message = predict(shop, "width,colour,sold\n1,red,2024-01-01\nwide,red,2024-01-01\n")
    assert "Column 'width', line 3 of n.csv holds 'wide', but the column was numbers" in message
    assert "Correct the table" in message
    assert not (here / "out.csv").exists()


def test_missing_column_at_predict(here, shop):
    message = predict(shop, "Width,colour,sold\n1,red,2024-01-01\n")
    assert "no column 'width'" in message
    assert "did you mean 'Width'?" in message


def test_new_columns_and_categories_at_predict_are_fine_and_said(here, shop):
    (here / "n.csv").write_text("shop,sold,colour,width\nx,2024-01-01,purple,1\ny,2024-01-02,red,2\n")
    result = runner.invoke(app, ["predict", str(shop / "price.finitegp"), "n.csv", "-o", "out.csv"])
    assert result.exit_code == 0, result.output
    assert "Columns that the fit did not see are ignored: 'shop'" in result.stderr
    assert "categories that the fit did not see, such as 'purple'" in result.stderr
    assert (here / "out.csv").read_text().count("\n") == 3


def test_missing_values_at_predict_after_they_were_refused(here, shop, quick_effort):
    options = ["--target", "price", "--effort", "low", "--missing", "error", "--no-report"]
    assert runner.invoke(app, ["fit", str(shop / "train.csv"), *options]).exit_code == 0
    (here / "n.csv").write_text("width,colour,sold\n,red,2024-01-01\n")
    message = run("predict", "model.finitegp", "n.csv", "-o", "out.csv")
    assert "column 'width' has 1 missing value (first: line 2 of n.csv)" in message
    assert "fit the model with --missing impute" in message
    assert "missing='impute'" not in message


def test_column_that_predictions_need(here, shop):
    assert "column 'price_std' already" in predict(shop, "width,colour,sold,price_std\n1,red,2024-01-01,1\n")


def test_wrong_coverage(here, shop):
    assert "did you mean 0.9?" in predict(shop, HEADER + ROWS, "--coverage", "90", code=2)
    assert "between 0 and 1" in predict(shop, HEADER + ROWS, "--coverage", "0", code=2)


def test_output_of_an_unknown_kind(here, shop):
    message = run("predict", shop / "price.finitegp", "t.csv", "-o", "out.json")
    assert "ends in .csv, .csv.gz, .tsv, .tsv.gz, .txt, .parquet" in message


def test_predictions_exist_already(here, shop):
    (here / "out.csv").write_text("mine")
    assert "exists already" in predict(shop, HEADER + ROWS)
    assert "is also read" in run("predict", shop / "price.finitegp", "t.csv", "-o", "t.csv", "--force")


@pytest.mark.parametrize(
    ("module", "command", "output"),
    [
        ("predict", "predict", "out.csv"),
        ("models", "update", "out.finitegp"),
        ("models", "statistics", "out.statistics"),
    ],
)
def test_an_output_that_appears_during_the_work_is_kept(here, shop, monkeypatch, module, command, output):
    (here / output).write_text("of somebody who was quicker")
    monkeypatch.setattr(f"finitegp.commands.{module}.options.check_output", lambda path, **_: path)
    message = run(command, shop / "shared.finitegp", "t.csv", "-o", output)
    assert f"{output} exists already: give another name with --output, or use --force" in message
    assert (here / output).read_text() == "of somebody who was quicker"


def test_model_that_is_a_jpeg(here):
    (here / "m.finitegp").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(500))
    message = run("predict", "m.finitegp", "t.csv", "-o", "out.csv")
    assert "m.finitegp is a JPEG image, not a model" in message


def test_truncated_model(here, shop):
    data = (shop / "price.finitegp").read_bytes()
    (here / "m.finitegp").write_bytes(data[: len(data) // 2])
    message = run("info", "m.finitegp")
    assert "m.finitegp is truncated" in message
    assert "Copy or write it again" in message


def test_damaged_model(here, shop):
    data = bytearray((shop / "price.finitegp").read_bytes())
    data[-1000] ^= 4
    (here / "m.finitegp").write_bytes(data)
    assert "do not match its checksum" in run("evaluate", "m.finitegp", "t.csv")


def test_model_not_found(here):
    assert "There is no file m.finitegp" in run("info", "m.finitegp")


def test_table_and_model_exchanged(here, shop):
    message = run("predict", "t.csv", shop / "price.finitegp", "-o", "out.csv")
    assert "t.csv is not a model that finitegp saved" in message


def test_model_that_is_a_directory(here):
    assert "is a directory, not a model" in run("info", here)


def test_evaluating_without_the_truth(here, shop):
    (here / "n.csv").write_text("width,colour,sold\n1,red,2024-01-01\n")
    assert "no column 'price'" in run("evaluate", shop / "price.finitegp", "n.csv")
    assert "no column 'price'" in run("update", shop / "price.finitegp", "n.csv", "-o", "m.finitegp")
    assert "no column 'price'" in run("report", shop / "price.finitegp", "n.csv", "-o", "m.html")
    assert not (here / "m.finitegp").exists()


def test_model_that_does_not_know_its_target(here):
    numbers = np.arange(20.0)
    model = GPRegressor(LinearFeatures(1), algorithm="exact").fit(pandas.DataFrame({"width": numbers}), numbers)
    model.save("m.finitegp")
    message = run("evaluate", "m.finitegp", "t.csv")
    assert "does not know the name of its target: name the column with --target." in message


def test_report_without_a_table(here, shop):
    assert "does not hold the truth to report on: give a table" in run("report", shop / "price.finitegp", code=2)


def test_unknown_command_and_option(here):
    assert "No such command" in run("train", code=2)
    assert "No such option" in run("info", "m.finitegp", "--jason", code=2)


def test_what_is_no_time_is_a_usage_error(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,2\n2,3\n3,4\n")
    done = runner.invoke(app, ["fit", str(path), "--target", "y", "--time", "soon"])
    assert done.exit_code == 2
    assert "must be a time such as 60s, 5min or 1h, but is 'soon'" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(shop):
    """As with ``| head -1``."""
    command = [sys.executable, "-m", "finitegp", "predict", shop / "price.finitegp", shop / "new.csv", "-o", "-"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert "Broken pipe" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("width,colour,sold\n1,red,2024-01-01\n", "no column 'price' in later.csv"),
        ("colour,price\nred,1\n", "no column 'width' in later.csv"),
        (HEADER + "1,red,2024-01-01,soon\n", "'price', line 2 of later.csv holds 'soon'"),
    ],
)
def test_a_table_that_cannot_judge_is_refused_before_the_fit(here, monkeypatch, contents, message):
    monkeypatch.setattr(GPRegressor, "fit", lambda *_: pytest.fail("the fit was begun"))
    (here / "later.csv").write_text(contents)
    assert message in run("fit", "t.csv", "--target", "price", "--test", "later.csv")


def test_a_table_does_not_judge_the_fit_to_itself(here):
    message = run("fit", "t.csv", "--target", "price", "--test", "../" + here.name + "/t.csv")
    assert "t.csv is given to learn from and to judge by" in message
    assert "leave out --test" in message


def test_the_decimal_sign_that_the_target_does_not_have(here):
    message = run("fit", "t.csv", "--target", "price", "--decimal", ",")
    assert "'price' must be numbers, but line 2 of t.csv holds '5.0'" in message


def test_the_target_is_no_weight(here):
    message = run("fit", "t.csv", "--target", "price", "--weight", "price")
    assert "'price' is both the target and the weight" in message
    assert "--weight" in message


def test_no_column_is_left(here):
    message = run("fit", "t.csv", "--target", "price", "--drop", "width", "--drop", "colour", "--drop", "sold")
    assert "no column that carries information ('width', 'colour', 'sold', 'price': target" in message


def test_more_folds_than_rows(here):
    assert "20 different rows or groups, too few for 21 folds: use fewer" in run(
        "fit", "t.csv", "--target", "price", "--cv", "21"
    )


def test_a_seed_that_scikit_learn_does_not_take_is_refused_before_the_fit(here):
    assert "--seed" in run("fit", "t.csv", "--target", "price", "--seed", str(2**32), code=2)
    with pytest.raises(ValueError, match="random_state must be from 0 to 4294967295, but is 4294967296"):
        GPRegressor(effort="low", random_state=2**32).fit(np.eye(20), np.arange(20.0))
