"""The command that runs the default and the peers: what it lists, refuses, runs once and prints."""

import pytest
from typer.testing import CliRunner

from paper.__main__ import app
from paper.cells import Cell
from paper.peers_command import WITHOUT_GP, make_cell
from paper.store import ResultStore


def invoke(*arguments):
    return CliRunner().invoke(app, ["peers", *map(str, arguments)])


def test_all_combinations_are_listed_table_by_table(tmp_path):
    result = invoke(
        "--tables", "wine, energy", "--splits", "0,2", "--methods", "auto,mlp+t", "--dry-run", "--results", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert [line.split(maxsplit=2)[2] for line in result.output.splitlines()][:5] == [
        "wine/0 auto",
        "wine/0 mlp+t",
        "wine/2 auto",
        "wine/2 mlp+t",
        "energy/0 auto",
    ]
    assert not ResultStore(tmp_path).rows()


def test_a_limit_goes_to_those_that_have_one():
    assert make_cell("wine", 0, "tabm+t", max_seconds=9.0).settings == {"max_seconds": 9.0}
    assert make_cell("wine", 0, "tabm+t").settings == {}
    assert make_cell("wine", 0, "lightgbm", max_seconds=9.0).settings == {}
    assert make_cell("wine", 1, WITHOUT_GP, max_seconds=9.0) == Cell("wine", 1, "auto", settings={"gp": False})


@pytest.mark.slow
def test_plain_and_treated_are_run_once_and_printed(uci_dir, tmp_path):
    arguments = ["--tables", "yacht", "--splits", "0", "--methods", "bayesridge,bayesridge+t", "-p", "2"]
    arguments += ["--data-dir", uci_dir, "--results", tmp_path]
    first = invoke(*arguments)
    assert first.exit_code == 0, first.output
    assert "| yacht | bayesridge |" in first.output
    assert "| yacht | bayesridge+t |" in first.output
    plain, treated = sorted(ResultStore(tmp_path).rows(), key=lambda row: row["method"])
    assert treated["nlpd"] < plain["nlpd"]
    assert treated["degrees_of_freedom"] > 2
    for row in (plain, treated):
        assert row["wall_seconds"] > 0
    assert invoke(*arguments).exit_code == 0
    assert len(ResultStore(tmp_path).rows()) == 2


def test_what_is_not_known_is_refused(uci_dir, tmp_path):
    for option, value in (("--tables", "moon"), ("--splits", "10"), ("--methods", "magic")):
        result = invoke(option, value, "--results", tmp_path, "--data-dir", uci_dir)
        assert result.exit_code == 2
        assert value in result.output
