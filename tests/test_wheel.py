"""The wheel, installed into a fresh environment as the README says, runs the README's first Python block."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command, cwd):
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_readme_starts_after_its_first_install_line(tmp_path):
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("finitegp-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    program = tmp_path / "venv" / "bin" / "python"
    run(program, "-m", "pip", "install", "--no-cache-dir", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    installed = run(program, "-m", "pip", "list", cwd=tmp_path)
    assert "pandas" not in installed
    assert "openpyxl" not in installed
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "readme.py").write_text(block + "\nimport finitegp\nprint(finitegp.__file__)\n")
    # -I: nothing of this clone is on the path.
    assert str(tmp_path / "venv") in run(program, "-I", "readme.py", cwd=tmp_path)
    assert "finitegp" in run(program.parent / "finitegp", "--version", cwd=tmp_path)
