"""How the modules of the package depend on one another."""

import ast
from pathlib import Path

import finitegp

ROOT = Path(finitegp.__file__).parent


def imported(path, modules):
    """The modules of the package that a file imports anywhere, also in functions; the package itself is left out."""
    parts = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = parts[: len(parts) - node.level + 1]
        stem = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{stem}.{alias.name}".lstrip(".")
            found.add(full if full in modules else stem)
    return found & modules.keys()


def test_imports_make_no_circle():
    paths = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")
        if name:
            paths[name] = path
    above = {name: imported(path, paths) - {name} for name, path in paths.items()}
    assert "model" in above["algorithms.base"]
    while ready := {name for name, below in above.items() if not below & above.keys()}:
        above = {name: below for name, below in above.items() if name not in ready}
    assert not above, f"among these modules there is a circle of imports: {sorted(above)}"
