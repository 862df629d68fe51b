"""What must not happen with damaged files, odd tables, full disks and files of strangers; a sample of the campaign.

Items A1 to C8 are those of `docs/reliability.md`, which names the tests of the others too.
"""

import errno
import json
import struct
import sys
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from campaign.__main__ import as_table, parts
from campaign.fixtures import make_fixtures, training_rows
from campaign.mutations import parsed, signed
from campaign.outcomes import OUTCOMES, Case, WrongError, judged, run_cases
from finitegp import (
    ArraySource,
    FeatureStatistics,
    GPRegressor,
    SiteStatistics,
    TableReader,
    TableRegressor,
    open_spool,
    spool,
    train,
)
from finitegp.atomic import complete_or_absent
from finitegp.cli import app
from finitegp.errors import DataError, ModelFileError
from finitegp.persistence.container import read_container

# What the small tables of the campaign give cause for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The site has 12 rows, fewer than:UserWarning"),
    pytest.mark.filterwarnings("ignore:Column 'b'. 1 of 3 values lie outside:UserWarning"),
]


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return make_fixtures(tmp_path_factory.mktemp("kit"))


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def refused(*arguments):
    """The error of a command, in one line and without a traceback."""
    found = run(*arguments)
    assert found.exit_code == 1, found.output
    assert isinstance(found.exception, SystemExit), found.exception
    return found.stderr


# A: what loses data or is wrong without a word


def test_a3_spools_delete_their_own_files_only(tmp_path):
    mine = [tmp_path / name for name in ("mine.part", "rows-2024.bin", "rows-of-mine.bin", "x.finitegp.part")]
    for path in mine:
        path.write_text("mine")
    spool(training_rows(), tmp_path)
    (tmp_path / "rows-0123456789abcdef.bin").write_text("of a spool that was killed")
    spool(training_rows(), tmp_path, overwrite=True)
    assert all(path.read_text() == "mine" for path in mine)
    assert not (tmp_path / "rows-0123456789abcdef.bin").exists()


@pytest.mark.parametrize("output", ["--output", "--report"])
@pytest.mark.parametrize("given", ["table", "directory", "test"])
def test_a4_no_output_of_a_fit_replaces_a_table_that_is_read(kit, tmp_path, output, given):
    table = tmp_path / "one.csv"
    table.write_bytes(kit.table.read_bytes())
    other = ["--output", tmp_path / "other.finitegp"] if output == "--report" else []
    read = {"table": [table], "directory": [tmp_path], "test": [kit.table, "--test", tmp_path]}[given]
    message = refused("fit", *read, "-t", "y", output, table, *other, "--force")
    assert "one.csv is also read" in message
    assert table.read_bytes() == kit.table.read_bytes()


def test_a4_no_prediction_replaces_a_table_of_the_directory(kit, tmp_path):
    table = tmp_path / "one.csv"
    table.write_bytes(kit.new.read_bytes())
    for command in ("predict", "update", "statistics", "report"):
        assert "is also read" in refused(command, kit.model, tmp_path, "-o", table, "--force")
    assert table.read_bytes() == kit.new.read_bytes()


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-160, 1e-300])
def test_a6_b6_magnitudes_whose_squares_are_no_numbers_are_refused_by_name(factor):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(30, 2))
    targets = inputs[:, 0] + 0.1 * generator.normal(size=30)
    frame = pd.DataFrame(inputs * [1.0, factor], columns=["a", "b"])
    for feature_map in ("auto", "fourier"):
        model = GPRegressor(effort="low", feature_map=feature_map)
        with pytest.raises(DataError, match=r"Column 1 has .* by a power of ten"):
            model.fit(inputs * [1.0, factor], targets)
        with pytest.raises(DataError, match=r"The target has .* by a power of ten"):
            model.fit(inputs, targets * factor)
    with pytest.raises(DataError, match=r"Column 'b' has .* by a power of ten"):
        TableRegressor(effort="low").fit(frame, targets)
    with pytest.raises(DataError, match=r"The target 'y' has .* by a power of ten"):
        TableRegressor(effort="low").fit(frame[["a"]], targets * factor)


def test_a8_a_lock_that_is_a_link_is_refused_and_its_file_stays(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "lock").symlink_to(victim)
    with pytest.raises(DataError, match="cannot be used as a lock"):
        spool(training_rows(), folder)
    assert victim.read_text() == "precious"


# B: crashes and large allocations


@pytest.mark.parametrize("lists", [1_000_000, 20_000_000])
def test_b1_headers_that_would_take_much_memory_are_refused(tmp_path, lists):
    text = json.dumps({"__metadata__": {"finitegp": '{"x":[' + "[]," * lists + "0]}"}}).encode()
    (tmp_path / "bomb").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(ModelFileError, match=r"parts|first bytes are damaged"):
        read_container(tmp_path / "bomb")


def test_b3_a_run_is_not_resumed_on_other_rows_or_with_other_rates(kit):
    from finitegp import FeatureGP, Lagged, MLPFeatures, make_optimizer

    def resume(targets, rate):
        algorithm = Lagged(FeatureGP(MLPFeatures(2, hidden=(4,), seed=0), noise_variance=0.1), num_data=20)
        optimizer = make_optimizer(algorithm, learning_rate=rate)
        return train(algorithm, optimizer, (inputs, targets), epochs=3, batch_size=5, resume=kit.checkpoint)

    inputs, targets = training_rows()
    assert resume(targets, 1e-3).epoch == 3
    with pytest.raises(ModelFileError, match="another run: hash of the rows"):
        resume(np.append(targets[:-1], 7.0), 1e-3)
    with pytest.raises(ModelFileError, match="another run: learning_rates"):
        resume(targets, 1e-2)


def test_b4_a_header_in_latin_1_names_the_option(tmp_path):
    table = tmp_path / "sizes.csv"
    table.write_bytes("größe,y\n1,2\n2,3\n3,5\n".encode("latin-1"))
    assert "--encoding" in refused("fit", table, "-t", "y", "-o", tmp_path / "m.finitegp")
    assert TableReader(table, encoding="latin-1").column_names == ["größe", "y"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("table", "summary", "scores"), {"a": 1}),
        (("table", "summary", "scores"), ["x"]),
        (("table", "summary", "scores"), [{"name": "x", "coverage": {"much": 1.0}, "rmse": 1.0}]),
        (("table", "summary", "held_out_rows"), "many"),
        (("table", "summary", "target_std"), "x"),
        (("table", "encoder", "columns", 0, "name"), "\ud800"),
        (("regressor", "parameters", "memory_budget"), [1]),
        (("regressor", "parameters", "memory_budget"), -5),
        (("regressor", "training_summary", "rows_added"), "x"),
        (("regressor", "training_summary", "versions"), [1]),
        (("fits", 0, "record", "path"), ["x"]),
        (("fits", 0, "record", "history"), [3]),
        (("fits", 0, "record", "settings"), {"hidden": []}),
    ],
)
def test_b5_summaries_and_records_that_make_no_sense_are_refused(kit, tmp_path, place, value):
    outer, header, body = parsed(kit.sums.read_bytes())
    at = header
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path = tmp_path / "odd.finitegp"
    path.write_bytes(signed(outer, header, body))
    for command in (["info", path], ["predict", path, kit.new, "-o", tmp_path / "out.csv"]):
        assert "odd.finitegp" in refused(*command)


@pytest.mark.parametrize("factor", [1e300, 1e155, 1e-300])
def test_b5_scales_and_sums_whose_squares_overflow_are_refused(kit, tmp_path, factor):
    for source, name, load in (
        (kit.sums, "fits.0.target_scaler.scale", TableRegressor.load),
        (kit.sums, "fits.0.inputs_scaler.scale", TableRegressor.load),
        (kit.statistics, "statistics.gram", SiteStatistics.load),
    ):
        outer, header, body = parsed(source.read_bytes())
        changed = bytearray(body)
        start, stop = outer[name]["data_offsets"]
        with np.errstate(over="ignore"):
            changed[start:stop] = (np.frombuffer(body[start:stop]) * factor).tobytes()
        (tmp_path / "odd").write_bytes(signed(outer, header, bytes(changed)))
        with pytest.raises(ModelFileError, match="cannot be used"):
            load(tmp_path / "odd")


def test_b7_tables_with_very_many_columns_are_refused_at_once(tmp_path):
    table = tmp_path / "wide.csv"
    names = ",".join(f"c{number}" for number in range(10_001))
    table.write_text(f"{names}\n{'1,' * 10_000}1\n")
    with pytest.raises(DataError, match="has 10001 columns, but at most 10000"):
        TableReader(table)


@pytest.mark.parametrize("encoding", ["base64", "hex", "zip", "rot13", "punycode", "\0", "undefined", "no such"])
def test_b8_codecs_that_are_no_text_are_usage_errors(kit, tmp_path, encoding):
    found = run("predict", kit.model, kit.new, "-o", tmp_path / "out.csv", "--encoding", encoding)
    assert found.exit_code == 2
    assert "--encoding" in found.stderr
    with pytest.raises(ValueError, match="encoding must be one of text"):
        TableReader(kit.new, encoding=encoding)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "", "..", "../rows-0123456789abcdef.bin"])
def test_b9_manifests_that_make_no_sense_are_refused(kit, tmp_path, name):
    manifest = json.loads((kit.spool / "manifest.json").read_text())
    for text in (json.dumps(manifest | {"file": name}), "[" * 200_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json"):
            open_spool(tmp_path)


# C: what is unclear or untidy


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07\x1b[2J", "\x9b31m", "\u202eevil", "[bold]x[/bold]", "a\rb"])
def test_c1_no_name_of_a_stranger_moves_the_terminal(kit, tmp_path, name):
    outer, header, body = parsed(kit.model.read_bytes())
    header["table"]["encoder"]["columns"][0]["name"] = header["table"]["target"] = name
    path = tmp_path / "named.finitegp"
    path.write_bytes(signed(outer, header, body))
    for found in (run("info", path), run("predict", path, kit.new, "-o", tmp_path / "out.csv")):
        assert not set("\x1b\x9b\x07\u202e\r") & set(found.output + found.stderr)
    assert "[bold]" in run("info", path).output or "[" not in name or name[0] == "\x1b"


def test_c2_ctrl_c_while_commands_are_imported_is_no_traceback(monkeypatch, capsys):
    from finitegp.__main__ import main

    class Interrupted:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "finitegp.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "finitegp.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped: no file was written.\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_c3_an_error_of_a_full_disk_names_the_file(tmp_path, number):
    with pytest.raises(OSError, match=r"out\.csv"), complete_or_absent(tmp_path / "out.csv"):
        raise OSError(number, "No space left on device")
    with pytest.raises(OSError, match=r"^[^/]*$"), complete_or_absent(tmp_path / "out.csv"):
        raise OSError(errno.EIO, "of another file")
    assert not list(tmp_path.iterdir())


def test_c4_a_report_is_written_through_a_link(tmp_path):
    from finitegp import FeatureGP, LinearFeatures, gather_contents, write_report

    inputs = np.random.default_rng(0).normal(size=(60, 2))
    targets = inputs[:, 0] + 0.1 * np.random.default_rng(1).normal(size=60)
    fitted = FeatureGP(LinearFeatures(2), 0.01).condition((inputs[:40], targets[:40]))
    name = "L" * 100_000 + "\u202e"
    contents = gather_contents(fitted, inputs[40:], targets[40:], column_names=[name, "other"], target_name=name)
    place, link = tmp_path / "report.html", tmp_path / "link.html"
    place.write_text("old")
    link.symlink_to(place)
    write_report(contents, link, force=True)
    text = place.read_text()
    assert link.is_symlink()
    assert text.rstrip().endswith("</html>")
    # C6: no marks that turn text around, no endless names, nothing that could send a form away
    assert "\u202e" not in text
    assert "L" * 1000 not in text
    assert "base-uri 'none'; form-action 'none'" in text


def test_c7_what_is_wrong_with_an_argument_is_said_with_its_name():
    inputs, targets = training_rows()
    with pytest.raises(ValueError, match="device must be one that torch knows"):
        GPRegressor(effort="low", device="foo").fit(inputs, targets)
    with pytest.raises(DataError, match="more than one column named 'a'"):
        GPRegressor(effort="low").fit(pd.DataFrame(inputs, columns=["a", "a"]), targets)
    with pytest.raises(DataError, match="masked values"):
        GPRegressor(effort="low").fit(np.ma.masked_array(inputs, mask=inputs > 0.9), targets)
    from finitegp import FeatureGP, Lagged, LinearFeatures, make_optimizer

    algorithm = Lagged(FeatureGP(LinearFeatures(2), noise_variance=0.1), num_data=20)
    optimizer = make_optimizer(algorithm)
    for argument in ({"callbacks": [1]}, {"resume": 3}, {"batch_size": "many"}, {"epochs": None}):
        with pytest.raises(TypeError, match=f"{next(iter(argument))} must be "):
            train(algorithm, optimizer, (inputs, targets), **{"epochs": 1} | argument)
    for batches in ([], (), set()):
        with pytest.raises(DataError, match="batches must be a sequence of at least one"):
            algorithm.step(batches, optimizer)
    with pytest.raises(DataError, match="indices must be an array"):
        ArraySource(inputs, targets).take([1])
    with pytest.raises(DataError, match="values must have shape"):
        FeatureStatistics.from_batch(torch.ones(3, 2), torch.ones(3)).unflatten(torch.zeros(20, 2))
    encoder = TableRegressor(effort="low").fit(inputs, targets).encoder_
    first, again = (encoder.transform_training(inputs, first_row=number) for number in (3, np.int64(3)))
    assert np.array_equal(first, again)


# The campaign


def test_outcomes_are_told_apart():
    def crash():
        import os

        os.abort()

    def wait():
        while True:
            pass

    def wrong():
        raise WrongError("other numbers")

    cases = [
        Case("good", lambda: None),
        Case("refused", lambda: TableReader("/no/such/table.csv")),
        Case("raw", lambda: {}["key"]),
        Case("crash", crash),
        Case("wrong", wrong),
        Case("hang", wait),
        Case("good again", lambda: None),
    ]
    tally = run_cases("cases", cases, seconds=0.5, processes=2)
    assert [tally.counts[name] for name in OUTCOMES] == [1, 2, 1, 2, 1]
    assert sorted(label for _, label, _ in tally.bad) == ["crash", "hang", "raw", "wrong"]
    assert "| all | 7 | 1 | 2 | 1 | 2 | 1 |" in as_table([tally]).replace("| cases |", "| all |")
    assert judged(Case("named", lambda: int("x"), named=("literal",)))[0] == "refused"


@pytest.mark.slow
def test_a_sample_of_the_campaign(kit):
    for name, cases in parts(kit, 0.012, seed=17):
        if name == "kills at the start":
            continue  # takes as long as all of the others
        chosen = list(cases())
        tally = run_cases(name, islice(chosen, 0, None, max(1, len(chosen) // 27)), seconds=60.0)
        assert not tally.bad, tally.bad[0]
