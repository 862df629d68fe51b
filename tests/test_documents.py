"""README and docs: Python blocks and commands run, links lead somewhere, the API page is that of the docstrings."""

import importlib
import inspect
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import memory

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES]
LINKING = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(path):
    return PYTHON.findall(path.read_text())


@pytest.fixture
def quick(quick_effort, monkeypatch):
    """The default fit of small tables takes a fraction of a second."""
    from finitegp.automatic import EFFORTS

    monkeypatch.setitem(EFFORTS, "medium", EFFORTS["low"].with_changes({"fourier_features": 64}))


@pytest.mark.filterwarnings("ignore:Column .* categories that the fit did not see:UserWarning")  # as the pages tell
@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(path, capsys, quick, tmp_path, monkeypatch):
    """In order, each file in one namespace, beside the tables of the examples."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "tables", tmp_path / "examples" / "tables")
    torch.manual_seed(0)
    namespace = {}
    for block in blocks(path):
        exec(compile(block, str(path), "exec"), namespace)


def test_the_first_block_of_the_readme_needs_no_extra(quick, tmp_path, monkeypatch):
    """The install line before it brings none; `test_wheel.py` installs the wheel itself."""
    monkeypatch.chdir(tmp_path)
    extras = ("pandas", "polars", "matplotlib", "gpytorch", "linear_operator", "openpyxl", "mapie", "ipywidgets")
    for name in [name for name in sys.modules if name.split(".")[0] in extras]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        """Finds no extra. (None in `sys.modules` would do, but scikit-learn looks there for what is loaded.)"""

        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.split(".")[0] in extras:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
    exec(compile(blocks(ROOT / "README.md")[0], "README.md", "exec"), {})


def test_commands_of_the_readme_run(quick, tmp_path, monkeypatch):
    from finitegp.cli import app

    shutil.copytree(ROOT / "examples" / "tables", tmp_path / "examples" / "tables")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in SHELL.findall((ROOT / "README.md").read_text()) for line in block.splitlines()]
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ran = set()
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "finitegp":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, (line, result.output)
            ran.add(arguments[0])
        elif program == "make":
            assert arguments[0] in targets
        else:  # the set-up; what follows it is run by the tests of the demonstration, and by whoever runs this
            assert shlex.join([program, *arguments]) in {
                "pip install .",
                "python3 -m venv .venv",
                ".venv/bin/pip install -c constraints.txt -e '.[dev]'",
                ".venv/bin/finitegp demo",
                ".venv/bin/python -m pytest -n 2",
            }, f"nobody runs {line!r}"
    assert {"fit", "predict", "evaluate", "update"} <= ran
    written = {file.name for file in tmp_path.iterdir()}
    assert {"rent.finitegp", "rent.html", "predicted.csv", "rent-2.finitegp"} <= written


def headings(path):
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", LINKING, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for link in LINK.findall(FENCED.sub("", path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), f"{path.name} links to {link}, which is not there"
        if anchor and place.suffix == ".md":
            assert anchor in headings(place), f"{path.name} links to {link}, but {place.name} has no such heading"


def test_index_names_every_page():
    linked = set(LINK.findall((ROOT / "docs" / "index.md").read_text()))
    for path in PAGES:
        assert path.name in linked | {"index.md"}, f"docs/index.md should name {path.name}"


@pytest.fixture(scope="module")
def api():
    return runpy.run_path(str(ROOT / "docs" / "make_api.py"))


def test_api_page_is_up_to_date(api):
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == api["make_page"](), "docs/api.md is out of date: run python docs/make_api.py"


@pytest.mark.parametrize(
    "package", ["", ".algorithms", ".callbacks", ".data", ".estimator", ".features", ".persistence", ".report"]
)
def test_api_page_has_every_public_name(package):
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in importlib.import_module(f"finitegp{package}").__all__:
        assert re.search(rf"^### finitegp[\w.]*\.{name}$", page, re.MULTILINE), f"{name} is not on the page"


def test_api_page_from_a_docstring(api):
    docstring = """What it does, see :class:`~finitegp.model.FeatureGP`.

    .. math::
        a + b

    Args:
        size: A ``number``
            of rows.
        name: Text.

    Returns:
        Something
        long.

    Example:
        >>> 1 + 1
        2
    """
    assert list(api["markdown"](inspect.cleandoc(docstring))) == [
        "What it does, see `FeatureGP`.",
        "",
        "```math",
        "a + b",
        "```",
        "",
        "Arguments:",
        "",
        "- `size`: A `number`",
        "  of rows.",
        "- `name`: Text.",
        "",
        "Returns: Something long.",
        "",
        "```pycon",
        ">>> 1 + 1",
        "2",
        "```",
    ]


def test_memory_tables_are_those_of_the_results():
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    for name in ("fits_table", "networks_table"):
        assert "\n".join(getattr(memory, name)()) in page, "run python -m benchmarks.memory --tables"
