"""The Python blocks of README and docs run, in order, each file in one namespace."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path):
    return BLOCK.findall(path.read_text())


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(path, capsys):
    torch.manual_seed(0)
    namespace = {}
    for block in blocks(path):
        exec(compile(block, str(path), "exec"), namespace)


def test_readme_has_blocks_and_its_links_exist():
    assert len(blocks(ROOT / "README.md")) >= 3
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
