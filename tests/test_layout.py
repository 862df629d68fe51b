"""How the modules of the package, and of what is built on it, depend on one another."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import finitegp
import finitegp.tables

PACKAGE = Path(finitegp.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
# What is not installed may import the package, never the reverse.
AROUND = ("paper", "benchmarks")


def modules(*roots):
    """The files of all modules below these directories, by full name; the packages themselves are left out."""
    found = {}
    for root in roots:
        for path in root.rglob("*.py"):
            parts = [root.name, *path.relative_to(root).with_suffix("").parts]
            if parts[1:] != ["__init__"]:
                found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imported(name, path):
    """What a file imports anywhere, also in functions: full names of modules, or of names in them."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((stem, f"{stem}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize(
    "roots", [[PACKAGE], [ROOT / name for name in AROUND]], ids=["the package", "what is built on it"]
)
def test_imports_make_no_circle(roots):
    paths = modules(*roots)
    above = {
        name: {full if full in paths else stem for stem, full in imported(name, path)} & paths.keys() - {name}
        for name, path in paths.items()
    }
    lower, upper = ("model", "algorithms.base") if roots == [PACKAGE] else ("cells", "worker")
    top = "finitegp" if roots == [PACKAGE] else "paper"
    assert f"{top}.{lower}" in above[f"{top}.{upper}"]
    while ready := {name for name, below in above.items() if not below & above.keys()}:
        above = {name: below for name, below in above.items() if name not in ready}
    assert not above, f"among these modules there is a circle of imports: {sorted(above)}"


def test_the_model_knows_rows_and_no_processes():
    """What several processes add up is a matter of the source that the rows come from."""
    paths = modules(PACKAGE)
    seen, left = set(), ["finitegp.model"]
    while left:
        name = left.pop()
        seen.add(name)
        found = {full if full in paths else stem for stem, full in imported(name, paths[name])}
        left += sorted((found & paths.keys()) - seen)
    assert "finitegp.data.sources" in seen
    assert "finitegp.distributed" not in seen


def test_the_package_imports_nothing_that_is_not_installed_with_it():
    for name, path in modules(PACKAGE).items():
        roots = {stem.partition(".")[0] for stem, _ in imported(name, path)}
        if name == "finitegp.botorch":  # whose extra brings it
            roots -= {"gpytorch"}
        assert not roots & {*AROUND, "tests", "gpytorch"}, f"{name} imports {roots & {*AROUND, 'tests', 'gpytorch'}}"


def test_the_map_of_the_tables_names_all_of_their_modules():
    named = set(re.findall(r"``(\w+)``", finitegp.tables.__doc__))
    assert named == {path.stem for path in (PACKAGE / "tables").glob("*.py")} - {"__init__"}


def test_the_command_line_starts_without_torch():
    """``--version`` and ``--help`` do not wait for PyTorch, SciPy, scikit-learn, Arrow or matplotlib."""
    code = (
        "import sys; from finitegp.cli import app\n"
        "try:\n    app(['fit', '--help'])\nexcept SystemExit:\n    pass\n"
        "slow = {'torch', 'scipy', 'sklearn', 'pyarrow', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    """Each name of ``dir(finitegp)`` can be had, and type checkers see the same names from the same modules."""
    assert dir(finitegp) == sorted(finitegp.__all__)
    for name in finitegp.__all__:
        assert getattr(finitegp, name) is not None
    tree = ast.parse(Path(finitegp.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name: node.module for node in block.body for alias in node.names}
    assert shown == finitegp._MODULES
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        finitegp.nothing  # noqa: B018


@pytest.mark.slow
def test_a_test_file_that_cannot_be_imported_is_an_error(tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_broken.py").write_text("import no_such_module\n\n\ndef test_nothing():\n    pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={tmp_path}",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "No module named 'no_such_module'" in done.stdout
