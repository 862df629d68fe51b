"""The command line as tests run it: commands that succeed, and commands that fail with one line."""

import json

from typer.testing import CliRunner

from finitegp.cli import app

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def run(*arguments, code=0, **options):
    result = runner.invoke(app, [str(each) for each in arguments], **options)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*arguments, quiet=True):
    """The result for scripts: standard output must be one JSON object and nothing else."""
    result = run(*arguments, "--json")
    assert result.stderr == "" or not quiet
    return json.loads(result.stdout)


def fail(*arguments, code=1, notes=False):
    """The message of a failed command, after checking that it is one line, perhaps after notes, and no traceback."""
    result = run(*arguments, code=code)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    if code == 1:
        errors = [line for line in result.stderr.splitlines() if not (notes and line.startswith("Note: "))]
        assert len(errors) == 1, result.stderr
        assert errors[0].startswith("Error: ")
        return errors[0]
    return " ".join(result.stderr.replace("│", " ").split())
