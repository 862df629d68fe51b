"""``finitegp statistics`` and ``finitegp merge``: what they write is what the library gives; mistakes get one line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_runs import fail, run, run_json
from conftest import write_shop_table

from finitegp.tables.model import TableRegressor
from finitegp.tables.reader import TableReader

NAMES = ("north", "south", "west")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        write_shop_table(tmp_path / f"{name}.csv", 40 + number, seed=10 + number)
    return tmp_path


@pytest.fixture
def model(here, shop):
    """A copy of the model, and the statistics of each site for it."""
    (here / "price.finitegp").write_bytes((shop / "shared.finitegp").read_bytes())
    for name in NAMES:
        run("statistics", "price.finitegp", f"{name}.csv", "-o", f"{name}.statistics")
    return here / "price.finitegp"


def mean_of(path, table="north.csv"):
    return np.concatenate([chunk.mean for chunk in TableRegressor.load(path).predict_chunks(TableReader(table))])


def test_three_sites_make_the_model_that_saw_all_tables(model):
    files = [f"{name}.statistics" for name in NAMES]
    found = run_json("merge", "price.finitegp", *files, "-o", "joint.finitegp")
    assert (found["rows"], found["rows_of_model"]) == (60 + 123, 60)
    assert found["sites"] == [{"file": file, "rows": 40.0 + number} for number, file in enumerate(files)]
    assert found["typical_noise"] == found["typical_noise_before"]
    run("update", "price.finitegp", *(f"{name}.csv" for name in NAMES), "-o", "updated.finitegp")
    np.testing.assert_allclose(mean_of("joint.finitegp"), mean_of("updated.finitegp"), rtol=1e-10)
    info = run_json("info", "joint.finitegp")
    assert (info["rows"], info["rows_taken_in_after_training"]) == (183, 12 + 123)
    # Without the rows of the model, and with them as one more site.
    found = run_json("merge", "price.finitegp", *files, "-o", "only.finitegp", "--only-sites")
    assert (found["rows"], found["rows_of_model"]) == (123, 0)
    loaded = TableRegressor.load("price.finitegp")
    joint = loaded.merge(
        *(loaded.statistics(TableReader(f"{name}.csv")) for name in NAMES), keep_model_rows=False, refit_noise=False
    )
    expected = next(joint.predict_chunks(TableReader("north.csv"))).mean
    np.testing.assert_allclose(mean_of("only.finitegp"), expected, rtol=1e-10)
    assert np.abs(mean_of("only.finitegp") - mean_of("joint.finitegp")).max() > 1e-3


def test_statistics_for_scripts_and_for_people(model):
    found = run_json("statistics", model, "north.csv", "-o", "n.statistics")
    features = TableRegressor.load(model).regressor_.fits_[0].fitted.posterior.num_features
    assert (found["rows"], found["target"], found["features"]) == (40, "price", features)
    assert len(found["fingerprint"]) == 64
    shown = run("statistics", model, "north.csv", "-o", "n.statistics", "--force").stdout
    assert f"sums of 40 rows ({features} x {features} of features" in shown
    assert "n.statistics" in shown


def test_info_shows_a_site(model):
    found = run_json("statistics", model, "north.csv", "-o", "n.statistics")
    info = run_json("info", "n.statistics")
    assert info["statistics"] == "n.statistics"
    assert {name: info[name] for name in ("rows", "features", "target", "fingerprint")} == {
        name: found[name] for name in ("rows", "features", "target", "fingerprint")
    }
    used = [line["column"] for line in run_json("info", model)["columns"] if line["outputs"]]
    assert info["columns"] == used
    assert "width" in used
    shown = run("info", "n.statistics").stdout
    for text in ("n.statistics", "price", "40", str(found["features"]), ", ".join(used), found["fingerprint"]):
        assert text in shown


def test_info_of_a_site_of_the_first_release_and_of_a_damaged_one(model, here):
    old = run_json("info", Path(__file__).parents[1] / "files" / "site-1.statistics")
    assert old["columns"] == []
    assert old["fingerprint"] != run_json("info", "north.statistics")["fingerprint"]
    (here / "n.statistics").write_bytes((here / "north.statistics").read_bytes()[:-9])
    assert "n.statistics is truncated" in fail("info", "n.statistics")


def test_few_rows_are_warned_of(model, here):
    (here / "few.csv").write_text("".join((here / "north.csv").read_text().splitlines(keepends=True)[:4]))
    result = run("statistics", model, "few.csv", "-o", "few.statistics")
    assert "Note: The site has 3 rows, fewer than the " in result.stderr
    assert "rows may be computed" in result.stderr
    assert "computed" in run_json("statistics", model, "few.csv", "-o", "few.statistics", "--force")["notes"][0]


def test_refitted_noise_is_shown(model):
    arguments = ("merge", model, "north.statistics", "-o", "joint.finitegp", "--refit-noise", "--force")
    found = run_json(*arguments)
    assert found["typical_noise"] != found["typical_noise_before"]
    assert "typical noise" in run(*arguments).stdout
    message = fail("predict", "joint.finitegp", "north.csv", "-o", "out.csv", "--interval", "conformal")
    assert "need a fit that left rows out" in message


def test_a_table_with_another_name_for_the_target(model, here):
    (here / "n.csv").write_text((here / "north.csv").read_text().replace("price", "paid"))
    run("statistics", model, "n.csv", "--target", "paid", "-o", "n.statistics")
    result = run("merge", model, "n.statistics", "-o", "joint.finitegp")
    assert "has the target under the name 'paid', the model 'price'" in result.stderr
    run("merge", model, "north.statistics", "-o", "other.finitegp")
    np.testing.assert_array_equal(mean_of("joint.finitegp"), mean_of("other.finitegp"))


def test_unseen_categories_and_columns_are_told(model, here):
    text = (here / "north.csv").read_text().replace("red", "purple")
    (here / "n.csv").write_text(text)
    assert "'purple'" in run("statistics", model, "n.csv", "-o", "n.statistics").stderr


def test_statistics_of_another_model(model, here, quick_effort):
    run("fit", "south.csv", "-t", "price", "--effort", "low", "--no-report", "--no-rows", "-o", "other.finitegp")
    run("statistics", "other.finitegp", "north.csv", "-o", "n.statistics")
    message = fail("merge", model, "south.statistics", "n.statistics", "-o", "joint.finitegp")
    assert "n.statistics was made for another model" in message
    assert "Send this model's file to the site" in message
    assert not (here / "joint.finitegp").exists()


def test_a_model_that_holds_its_rows_takes_no_sums(here, shop):
    message = fail("statistics", shop / "price.finitegp", "north.csv", "-o", "n.statistics")
    assert "holds its training rows" in message
    assert "Fit it with --no-rows." in message
    assert run_json("info", shop / "price.finitegp")["holds_training_rows"] is True
    assert run_json("info", shop / "shared.finitegp")["holds_training_rows"] is False
    shown = " ".join(run("info", shop / "shared.finitegp").stdout.split())
    assert "holds training rows │ no" in shown


def test_the_same_site_twice(model, here):
    (here / "copy.statistics").write_bytes((here / "north.statistics").read_bytes())
    message = fail("merge", model, "north.statistics", "copy.statistics", "-o", "joint.finitegp")
    assert "copy.statistics and north.statistics hold the same sums" in message
    assert "use --allow-repeats" in message
    repeated = run_json("merge", model, "north.statistics", "copy.statistics", "-o", "j.finitegp", "--allow-repeats")
    assert repeated["rows"] == 140
    run("merge", model, "north.statistics", "-o", "joint.finitegp")
    message = fail("merge", "joint.finitegp", "north.statistics", "-o", "again.finitegp")
    assert "north.statistics was merged into this model before" in message


def test_the_site_that_fitted_the_model(model, shop):
    run("statistics", model, shop / "train.csv", "-o", "first.statistics")
    message = fail("merge", model, "north.statistics", "first.statistics", "-o", "joint.finitegp")
    assert "first.statistics has the sums of the rows that the model has already" in message
    assert "use --only-sites" in message
    found = run_json("merge", model, "north.statistics", "first.statistics", "-o", "joint.finitegp", "--only-sites")
    assert found["rows"] == 100


def test_missing_columns_and_targets(model, here):
    (here / "n.csv").write_text("Width,colour,sold,price\n1,red,2024-01-01,5\n")
    message = fail("statistics", model, "n.csv", "-o", "n.statistics")
    assert "no column 'width'" in message
    assert "did you mean 'Width'?" in message
    (here / "n.csv").write_text("width,colour,sold\n1,red,2024-01-01\n")
    assert "no column 'price'" in fail("statistics", model, "n.csv", "-o", "n.statistics")
    (here / "n.csv").write_text("width,colour,sold,price\n1,red,2024-01-01,\n")
    assert "'price' is missing in all 1 rows" in fail("statistics", model, "n.csv", "-o", "n.statistics")
    assert not (here / "n.statistics").exists()


def test_files_in_each_others_place(model):
    assert "is not a model that finitegp saved" in fail("statistics", "north.csv", model, "-o", "n.statistics")
    message = fail("merge", "north.statistics", model, "-o", "joint.finitegp")
    assert "holds the statistics of a site, not a model" in message
    message = fail("merge", model, model, "-o", "joint.finitegp")
    assert "not a site's statistics: the model comes first" in message
    assert "not a site's statistics that finitegp saved" in fail("merge", model, "north.csv", "-o", "joint.finitegp")
    assert "holds the statistics of a site" in fail("predict", "north.statistics", "north.csv", "-o", "out.csv")


def test_no_sites_no_output_no_file(model):
    assert "SITE" in fail("merge", model, "-o", "joint.finitegp", code=2)
    assert "--output" in fail("merge", model, "north.statistics", code=2)
    assert "There is no file east.statistics" in fail("merge", model, "east.statistics", "-o", "joint.finitegp")


def test_damaged_statistics(model, here):
    data = bytearray((here / "north.statistics").read_bytes())
    (here / "n.statistics").write_bytes(data[:-9])
    assert "n.statistics is truncated" in fail("merge", model, "n.statistics", "-o", "joint.finitegp")
    data[-100] ^= 4
    (here / "n.statistics").write_bytes(data)
    assert "do not match its checksum" in fail("merge", model, "n.statistics", "-o", "joint.finitegp")


def test_output_exists_already_or_is_read(model):
    assert "exists already" in fail("statistics", model, "north.csv", "-o", "south.statistics")
    assert "is also read" in fail("statistics", model, "north.csv", "-o", "north.csv", "--force")
    assert "exists already" in fail("merge", model, "north.statistics", "-o", "south.csv")
    for read in (model, "north.statistics"):
        assert "is also read" in fail("merge", model, "north.statistics", "-o", read, "--force")
    assert "no directory" in fail("merge", model, "north.statistics", "-o", "sub/joint.finitegp")


def test_help_says_what_happens_to_the_rows_of_the_model():
    shown = " ".join(run("merge", "--help").stdout.split())
    assert "By default the rows that MODEL was fitted to stay in" in shown
    for command in ("statistics", "merge"):
        assert f"finitegp {command} " in run(command, "--help").stdout


def test_the_commands_of_the_page_run(model, here):
    text = (Path(__file__).resolve().parents[2] / "docs" / "merging.md").read_text()
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
    assert len(lines) == 4
    write_shop_table(here / "bench.csv", 50, seed=3)
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "finitegp"
        run(*arguments, "--force")
    assert (here / "joint.finitegp").exists()
