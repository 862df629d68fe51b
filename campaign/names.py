"""Hostile names: of columns, categories and targets, in reports, on the terminal and in exported tables."""

from __future__ import annotations

import copy
import csv
import html.parser
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from .fixtures import Fixtures, scratch
from .mutations import parsed, signed
from .outcomes import Case, WrongError, check_command, command
from .processes import HAS_ONNX

NAMES = [
    *("<script>alert(1)</script>", '" onmouseover="alert(1)', "' onload='x", "</title><script>x</script>"),
    *(
        "</style><img src=x onerror=alert(1)>",
        "javascript:alert(1)",
        "\u202ecod.exe",
        "&lt;b&gt;",
        "<svg/onload=alert(1)>",
    ),
    *("*/ int x = ; /*", "/*", "??/", "\u4e00\u4e00/", "back\\", "*\u4e00/"),
    *("]]><!--", "=cmd|' /C calc'!A0", "L" * 100_000, "a,b", 'q"q"', "nl\nx", "[bold]m[/bold]", "{{7*7}}", "${7*7}"),
    *(
        "\x1b]0;owned\x07\x1b[2J\x1b[31mRED",
        "\x9b31m",
        "\r\x1b[A",
        "\u2066x\u2069",
        "\ud800",
        "\0",
        "",
        " ",
        "\x7f",
        "\u2028",
    ),
]


def name_cases(fixtures: Fixtures) -> Iterator[Case]:
    """Every name, in every place where it can come out."""
    for number, name in enumerate(NAMES):
        label = ascii(name[:30])
        yield Case(f"info, {label}", partial(_in_terminal, fixtures, name, ["info"]))
        yield Case(f"predict, {label}", partial(_in_terminal, fixtures, name, ["predict"]))
        yield Case(f"evaluate, {label}", partial(_in_terminal, fixtures, name, ["evaluate"]))
        yield Case(f"report, {label}", partial(_in_report, name))
        yield Case(f"C header, {label}", partial(_in_c, fixtures, name))
        if HAS_ONNX:
            yield Case(f"ONNX graph, {label}", partial(_in_onnx, fixtures, name))
        if name.isprintable() and 0 < len(name.strip()) < 1000:
            yield Case(f"table, {label}", partial(_in_tables, fixtures, name, number))


def _in_terminal(fixtures: Fixtures, name: str, arguments: list[str]) -> None:
    folder = scratch()
    outer, header, body = parsed(fixtures.model.read_bytes())
    header = copy.deepcopy(header)
    columns = header["table"]["encoder"]["columns"]
    columns[0]["name"] = columns[0]["note"] = name
    header["table"]["target"] = name + "y"
    header["table"]["summary"]["judged_by"] = name
    (folder / "named.finitegp").write_bytes(signed(outer, header, body))
    rest = [] if arguments == ["info"] else [str(fixtures.new)]
    rest += ["-o", "named.csv", "--force"] if arguments == ["predict"] else []
    found = command(*arguments, "named.finitegp", *rest, folder=folder)
    for letter in "\x1b\x9b\x07\x7f\u202e\u2066\u2028\0":
        if letter in found.output + found.errors:
            raise WrongError(f"{letter!r} came out raw")
    check_command(found)


class _Page(html.parser.HTMLParser):
    """Finds what could run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "embed", "link", "form", "base"):
            self.bad.append(tag)
        for name, value in attrs:
            loads = name in ("src", "srcdoc", "action", "formaction") or (name == "href" and (value or "#")[0] != "#")
            if name.startswith("on") or loads:
                self.bad.append(f"{tag} {name}={value}")


def _in_report(name: str) -> None:
    from finitegp import FeatureGP, LinearFeatures, gather_contents, write_report

    inputs = np.random.default_rng(0).normal(size=(60, 2))
    targets = inputs[:, 0] + 0.1 * np.random.default_rng(1).normal(size=60)
    fitted = FeatureGP(LinearFeatures(2), 0.01).condition((inputs[:40], targets[:40]))
    contents = gather_contents(
        fitted, inputs[40:], targets[40:], column_names=[name, "other"], target_name=name + "y", title=name
    )
    path = scratch() / "named.html"
    write_report(contents, path, force=True)
    text = path.read_text()
    page = _Page()
    page.feed(text)
    if page.bad:
        raise WrongError(f"the page has {page.bad[0]}")
    if any(letter in text for letter in "\x1b\x9b\u202e\u2066\0") or "L" * 2000 in text:
        raise WrongError("the name stands there raw")


def _renamed(fixtures: Fixtures, name: str) -> Path:
    """A model of numbers whose first column and target have this name."""
    outer, header, body = parsed(fixtures.numbers.read_bytes())
    header = copy.deepcopy(header)
    header["table"]["encoder"]["columns"][0]["name"] = name
    header["table"]["target"] = name + "y"
    path = scratch() / "named.finitegp"
    path.write_bytes(signed(outer, header, body))
    return path


def _in_c(fixtures: Fixtures, name: str) -> None:
    folder = scratch()
    model = _renamed(fixtures, name)
    found = command("export", model, "--c", "named.h", "--double", "--force", folder=folder)
    check_command(found)
    text = (folder / "named.h").read_bytes()
    if not text.isascii() or any(byte < 32 and byte != 10 for byte in text) or b"L" * 2000 in text:
        raise WrongError("the name stands there raw")
    compiler = shutil.which("gcc")
    if compiler is not None:
        program = '#include "named.h"\nint main(void) { double x[MODEL_COLUMNS] = {0}, m, e, n, s;\n'
        program += "model_predict(x, &m, &e, &n, &s); return s > 0 ? 0 : 1; }\n"
        (folder / "named.c").write_text(program)
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        built = subprocess.run(
            [compiler, *flags, "named.c", "-lm", "-o", "named"], cwd=folder, capture_output=True, check=False
        )
        if built.returncode or subprocess.run([folder / "named"], check=False).returncode:
            raise WrongError(f"the header does not compile: {built.stderr.decode(errors='replace')[:200]}")


def _in_onnx(fixtures: Fixtures, name: str) -> None:
    import onnx

    folder = scratch()
    model = _renamed(fixtures, name)
    check_command(command("export", model, "-o", "named.onnx", "--force", folder=folder))
    onnx.checker.check_model(str(folder / "named.onnx"))


def _in_tables(fixtures: Fixtures, name: str, number: int) -> None:
    folder = scratch()
    with open(fixtures.new, newline="") as stream:
        rows = list(csv.reader(stream))
    rows = [[*row, name] for row in rows]
    table = folder / f"named-{number}.csv"
    with open(table, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    found = command("predict", fixtures.model, table, "-o", "named-out.csv", "--force", folder=folder)
    check_command(found)
    with open(folder / "named-out.csv", newline="") as stream:
        written = [row[: len(rows[0])] for row in csv.reader(stream)]
    Path(table).unlink()
    if written != rows:
        raise WrongError("cells of the table have changed")
