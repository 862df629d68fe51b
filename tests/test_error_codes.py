"""Errors carry a code and fields, from which the command line takes advice of its own."""

from __future__ import annotations

import ast
import copy
import inspect
from pathlib import Path

import numpy as np
import pytest

import finitegp
from finitegp import GPRegressor
from finitegp.commands import console
from finitegp.errors import DataError, FiniteGPError, LostRankError, OutputExistsError
from finitegp.memory import MemoryBudgetError, plan_memory

PACKAGE = Path(finitegp.__file__).parent


def raised():
    """Code and names of the fields of every error of the package that has a code as a literal."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                named = {each.arg: each.value for each in node.keywords}
                if isinstance(named.get("code"), ast.Constant) and named["code"].value is not None:
                    yield named["code"].value, frozenset(named) - {"code", "reported"}


def test_the_command_line_knows_every_code_and_its_fields():
    # These two codes reach their error through an argument.
    known = dict(raised()) | dict.fromkeys(("missing_values", "missing_values_in_new_rows"), frozenset())
    assert len(known) > 10
    assert known.keys() == console._ADVICE.keys()
    for code, fields in known.items():
        assert fields == inspect.signature(console._ADVICE[code]).parameters.keys(), code


@pytest.mark.parametrize(
    ("error", "python", "shell"),
    [
        (
            LostRankError("Rank 1 was lost.", "Start the run again with train(...).", code="lost_rank"),
            "Rank 1 was lost. Start the run again with train(...).",
            "Rank 1 was lost. Start the command again, with as many processes as there are now.",
        ),
        (
            OutputExistsError("m.html exists already:", "set force=True.", code="output_exists"),
            "m.html exists already: set force=True.",
            "m.html exists already: give another name with --output, or use --force to replace it.",
        ),
        (
            DataError("One column.", "Pass delimiter='\\t'.", code="wrong_delimiter", delimiter="\t"),
            "One column. Pass delimiter='\\t'.",
            "One column. Use --delimiter tab.",
        ),
        (DataError("There are no rows: add some."),) + ("There are no rows: add some.",) * 2,
    ],
    ids=["lost rank", "output exists", "delimiter", "no code"],
)
def test_advice_in_python_and_in_the_shell(error, python, shell):
    assert str(error) == python
    assert console.error_message(error) == shell
    again = copy.copy(error)  # as other processes get it
    assert (type(again), str(again), again.code, again.fields) == (type(error), python, error.code, error.fields)


def test_a_budget_that_is_too_small_names_one_that_is_not():
    with pytest.raises(MemoryBudgetError) as refused:
        plan_memory("100KB", num_columns=9)
    message = console.error_message(refused.value)
    assert message.startswith(refused.value.problem)
    size = message.removesuffix(" or more.").rpartition(" ")[2]
    assert f"Use --memory {size} or more." in message
    assert isinstance(refused.value, FiniteGPError)
    assert isinstance(refused.value, MemoryError)


def test_warnings_are_at_the_line_that_called(recwarn):
    """Not at a line of this package, however deep inside it the reason was found."""
    GPRegressor(effort="low").fit(np.arange(6.0)[:, None], np.ones(6))
    assert [warning.filename for warning in recwarn] == [__file__]
