"""One prediction by the library, finitegp-lite, C, ONNX Runtime, scikit-learn's GP and LightGBM: size and time.

    python -m benchmarks.export            # about four minutes of processor time
    python -m benchmarks.export --quick    # a look that is not for the record

Three models of the same rows with 8 columns: a given network, the automatic fit of a small table and that of a large
one (effort low). Mean and standard deviation of a single row, one thread, processor time; runtimes take turns, medians
over rounds. The C header is called in a loop in C. ONNX Runtime and LightGBM are measured if they are installed;
LightGBM predicts a mean alone. Writes ``benchmarks/results/export.jsonl`` and the tables of ``docs/export.md``.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import made_with, publish
from finitegp import DataError, FourierFeatures, GPRegressor, MLPFeatures
from finitegp.export import export_c, to_onnx
from finitegp.lite import load

COLUMNS, ROWS, SMALL_ROWS = 8, 4000, 500
PAGE = Path(__file__).parents[1] / "docs" / "export.md"
LITE = Path(__file__).parents[1] / "src" / "finitegp" / "lite"
ORDER = ("library", "lite", "ONNX Runtime", "C, double", "C, float", "scikit-learn GPR", "LightGBM (mean alone)")

Call = Callable[[], object]


def make_rows(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, COLUMNS))
    noise = 0.1 + 0.2 * (inputs[:, 1] > 0)
    return inputs, np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 2] * inputs[:, 3] + noise * random.normal(size=rows)


def fit_models(quick: bool) -> dict[str, GPRegressor]:
    large, small = make_rows(ROWS // 4 if quick else ROWS), make_rows(SMALL_ROWS // 5 if quick else SMALL_ROWS)
    epochs = 1 if quick else 20
    network = GPRegressor(MLPFeatures(COLUMNS, (64, 64), seed=0), epochs=epochs, random_state=0)
    automatic = GPRegressor(effort="low", random_state=0, **({"epochs": 2} if quick else {}))
    return {
        "given network, 64 features": network.fit(*large),
        f"automatic, {len(small[1])} rows": GPRegressor(effort="low", random_state=0).fit(*small),
        f"automatic, {ROWS} rows": automatic.fit(*make_rows(ROWS)),
    }


def compiled(header: Path, real: str, flags: list[str]) -> tuple[Callable[[Any, int], float], int] | None:
    """Seconds of so many predictions in a loop, and the bytes of the compiled function with its constants."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    code = f"""#include <time.h>
#include "{header.name}"
double run(const {real} *x, int times);
double run(const {real} *x, int times) {{
    {real} a, b, c, d; volatile {real} kept = 0; clock_t start = clock(); int n;
    for (n = 0; n < times; n++) {{ model_predict(x, &a, &b, &c, &d); kept += a + d; }}
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}}
"""
    source = header.with_suffix(".c")
    source.write_text(code)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", *flags]
    subprocess.run([compiler, *strict, "-c", str(source), "-o", str(header.with_suffix(".o"))], check=True)
    shown = subprocess.run(["size", str(header.with_suffix(".o"))], check=True, capture_output=True, text=True).stdout
    library = header.with_suffix(".so")
    subprocess.run([compiler, *strict, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
    function = ctypes.CDLL(str(library)).run
    function.restype = ctypes.c_double
    row = make_rows(1, seed=9)[0].astype(np.float32 if real == "float" else np.float64)

    def run(_: Any, times: int) -> float:
        return float(function(row.ctypes.data_as(ctypes.c_void_p), times))

    return run, int(shown.splitlines()[1].split()[0])


def timed(call: Call) -> Callable[[Any, int], float]:
    def run(_: Any, times: int) -> float:
        started = time.process_time()
        for _repeat in range(times):
            call()
        return time.process_time() - started

    return run


def runtimes(model: GPRegressor, directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """How each runtime predicts one row, and what it takes of disk or flash."""
    row = make_rows(1, seed=9)[0]
    path = directory / "model.finitegp"
    model.save(path)
    light = load(path)
    runs: dict[str, Any] = {
        "library": timed(lambda: model.predict(row, return_std=True)),
        "lite": timed(lambda: light.predict(row).std),
    }
    sizes: dict[str, Any] = {"library": path.stat().st_size, "lite": path.stat().st_size}
    for real in ("double", "float"):
        try:
            shown = export_c(path, directory / f"{real}.h", real=real)
        except DataError:  # 32 bits are not enough
            continue
        made = compiled(directory / f"{real}.h", real, ["-O2"])
        if made is not None:
            runs[f"C, {real}"], sizes[f"C, {real}"] = made
            sizes[f"C, {real}, constants"] = shown.constant_bytes
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        import onnxruntime

        sizes["ONNX Runtime"] = to_onnx(path, directory / "model.onnx", double=True, intervals=False).bytes
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(directory / "model.onnx", options, providers=["CPUExecutionProvider"])
        given = {each.name: row if each.name == "rows" else np.array(0.9) for each in session.get_inputs()}
        runs["ONNX Runtime"] = timed(lambda: session.run(["mean", "std"], given))
    return runs, sizes


def others() -> dict[str, Any]:
    """scikit-learn's GP on the rows of the small table, and LightGBM on those of the large one."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    row = make_rows(1, seed=9)[0]
    gp = GaussianProcessRegressor(RBF(2.0) + WhiteKernel(0.05), optimizer=None, normalize_y=True)
    gp.fit(*make_rows(SMALL_ROWS))
    runs = {"scikit-learn GPR": timed(lambda: gp.predict(row, return_std=True))}
    if importlib.util.find_spec("lightgbm"):
        import lightgbm

        trees = lightgbm.LGBMRegressor(n_jobs=1, verbose=-1).fit(*make_rows(ROWS))
        booster = trees.booster_
        runs["LightGBM (mean alone)"] = timed(lambda: booster.predict(row, num_threads=1))
    return runs


def measure(runs: dict[str, Any], rounds: int) -> dict[str, float]:
    """Microseconds of one prediction: medians over rounds in turns, after one that warms up."""
    times = {name: max(3, int(0.05 / max(run(None, 3) / 3, 1e-7))) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(1e6 * run(None, times[name]) / times[name])
    return {name: statistics.median(each) for name, each in found.items()}


def import_seconds(rounds: int) -> dict[str, float]:
    """Processor seconds of an import in a new process, medians over rounds in turns."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(LITE, Path(directory) / "finitegp_lite")
        codes = {
            "numpy": "import numpy",
            "finitegp_lite": f"import sys; sys.path.insert(0, {directory!r}); import finitegp_lite",
            "finitegp.GPRegressor": "from finitegp import GPRegressor",
        }
        tail = "; import time; print(time.process_time())"
        found: dict[str, list[float]] = {name: [] for name in codes}
        for _ in range(rounds):
            for name, code in codes.items():
                done = subprocess.run([sys.executable, "-c", code + tail], check=True, capture_output=True, text=True)
                found[name].append(float(done.stdout))
    return {name: statistics.median(each) for name, each in found.items()}


def budgets(quick: bool) -> list[dict[str, Any]]:
    """What fewer features cost: a model of 400 Fourier features in ever smaller headers, on rows not seen."""
    features = FourierFeatures(COLUMNS, 400, length_scales=3.0, seed=0)
    model = GPRegressor(features, algorithm="exact", epochs=2 if quick else 30, random_state=0).fit(*make_rows(ROWS))
    rows, targets = make_rows(2000, seed=1)
    nlpd = -float(model.log_density(rows, targets).mean())
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for limit in (None, "32kB", "8kB", "4kB", "2kB", "1kB"):
            path = Path(directory) / "model.h"
            by_rows = export_c(model, path, max_bytes=limit, rows=rows, targets=targets)
            by_evidence = export_c(model, path, max_bytes=limit)
            facts = {"limit": limit, "constants": by_rows.constant_bytes, "operations": by_rows.operations}
            facts |= {"features": by_rows.features, "nlpd": nlpd + by_rows.lost, "nlpd_lost": by_rows.lost}
            found.append({"what": "budget", **facts, "evidence_lost": by_evidence.lost})
    return found


def tables(rows: list[dict[str, Any]]) -> list[str]:
    models = [row for row in rows if row["what"] == "model"]
    beside = next(row for row in rows if row["what"] == "others")["microseconds"]
    imports = next(row for row in rows if row["what"] == "import")["seconds"]
    lines = ["Microseconds of processor time for mean and standard deviation of one row:", ""]
    lines += ["| | " + " | ".join(row["model"] for row in models) + " |", "|---|" + "--:|" * len(models)]
    for name in ORDER:
        cells = [row["microseconds"].get(name) for row in models]
        if any(cell is not None for cell in cells):
            lines.append(f"| {name} | " + " | ".join("–" if cell is None else f"{cell:.1f}" for cell in cells) + " |")
    lines += ["", "Beside them: " + ", ".join(f"{name} {each:.0f}" for name, each in beside.items()) + "."]
    lines += ["", "Bytes:", "", "| | " + " | ".join(row["model"] for row in models) + " |"]
    lines.append("|---|" + "--:|" * len(models))
    names = {"library": "model file", "ONNX Runtime": "ONNX graph", "C, double, constants": "constants of C, double"}
    names |= {"C, float, constants": "constants of C, float", "C, float": "compiled C, float, with its code"}
    for name, shown in names.items():
        cells = [row["bytes"].get(name) for row in models]
        if any(cells):
            lines.append(f"| {shown} | " + " | ".join("–" if cell is None else f"{cell:,}" for cell in cells) + " |")
    seconds = ", ".join(f"`{name}` {each:.2f} s" for name, each in imports.items())
    lines += ["", f"Processor time of imports in a new process: {seconds}."]
    lines += [
        "",
        "A model of 400 Fourier features of 4,000 rows, in ever smaller headers (float); NLPD on 2,000 new rows:",
        "",
    ]
    lines += [
        "| limit | constants | features | operations | NLPD | NLPD lost | evidence lost per row |",
        "|---|" + "--:|" * 6,
    ]
    for row in rows:
        if row["what"] == "budget":
            figures = (round(row[name], 3) + 0.0 for name in ("nlpd", "nlpd_lost", "evidence_lost"))  # no minus zero
            lost = " | ".join(f"{each:.3f}" for each in figures)
            sizes = f"{row['constants']:,} | {row['features']} | {row['operations']:,}"
            lines.append(f"| {row['limit'] or 'none'} | {sizes} | {lost} |")
    return [f"`python -m benchmarks.export` ({made_with(models[0])}).", "", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rounds = 3 if quick else 15
    rows: list[dict[str, Any]] = []
    for name, model in fit_models(quick).items():
        with tempfile.TemporaryDirectory() as directory:
            runs, sizes = runtimes(model, Path(directory))
            rows.append({"what": "model", "model": name, "microseconds": measure(runs, rounds), "bytes": sizes})
        print(json.dumps(rows[-1]))
    rows.append({"what": "others", "microseconds": measure(others(), rounds)})
    rows += budgets(quick)
    print(json.dumps(rows[-6:]))
    rows.append({"what": "import", "seconds": import_seconds(3 if quick else 7)})
    print(json.dumps(rows[-2:]))
    if not quick:
        publish("export", rows, PAGE, __file__, tables)


if __name__ == "__main__":
    main()
