"""A small device, end to end: train within a hard limit of memory, ship one C header, take new rows in by row sums.

``python examples/edge_device.py`` (``--small`` for a quick look). A pump reports flow, pressure, temperature and three
vibrations; the power that it draws is to be predicted with error bars. A process that may take only a few megabytes
more than its libraries trains a network with SCGD on batches of 16 rows, which it reads from disk. The model becomes a
header of less than 32 kB. Then the pump is repaired and draws another power: the device takes the new rows in with
NumPy alone, exactly, and the header is written anew.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 6
LIMIT = 16 * 2**20  # bytes of address space beyond what the libraries take
BATCH = 16


def make_rows(rows: int, seed: int, *, repaired: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Flow, pressure, temperature and vibrations, and the power in kW."""
    generator = np.random.default_rng(seed)
    flow, pressure, temperature = generator.uniform([10, 1, 5], [60, 6, 35], size=(rows, 3)).T
    vibrations = generator.normal(size=(rows, 3)) * (1 + 0.02 * flow[:, None])
    power = 0.028 * flow * pressure / (0.5 + 0.2 * np.sin(flow / 12)) + 0.02 * temperature + 0.1 * vibrations[:, 0] ** 2
    power = power * 0.85 + 0.5 if repaired else power
    inputs = np.column_stack([flow, pressure, temperature, vibrations])
    return inputs, power + 0.3 * generator.normal(size=rows)


def write_rows(directory: Path, rows: int) -> None:
    """The stream of the first weeks, on the device's disk; never whole in memory."""
    shapes = {"inputs": (rows, COLUMNS), "targets": (rows,)}
    files = {
        name: np.lib.format.open_memmap(directory / f"{name}.npy", "w+", np.float32, s) for name, s in shapes.items()
    }
    for start in range(0, rows, 500):
        part = slice(start, min(start + 500, rows))
        files["inputs"][part], files["targets"][part] = make_rows(part.stop - start, seed=start)


def train_model(directory: Path, steps: int) -> None:
    """Train and condition within the limit; runs in a process of its own."""
    import torch

    from finitegp import SCGD, FeatureGP, MLPFeatures, NpySource, ScaledSource, make_optimizer, train
    from finitegp.component import Component
    from finitegp.data import Scaling
    from finitegp.data.scaling import Standardizer
    from finitegp.persistence import save_fit
    from finitegp.scaled import ScaledGP

    torch.set_num_threads(1)
    first = make_rows(500, seed=0)
    scaling = Scaling(*(Standardizer.fit(each) for each in first))
    source = ScaledSource(NpySource(directory / "inputs.npy", directory / "targets.npy"), scaling)

    def run(data, batches: int, rows: int) -> tuple[FeatureGP, float]:
        model = FeatureGP(MLPFeatures(COLUMNS, hidden=(32, 32), activation="tanh", seed=0), noise_variance=0.1)
        algorithm = SCGD(model, num_data=rows)
        started = time.process_time()
        epochs = max(1, batches * BATCH // rows)
        train(algorithm, make_optimizer(algorithm, learning_rate=2e-3), data, epochs=epochs, batch_size=BATCH)
        return model, (time.process_time() - started) / (epochs * rows / BATCH)

    # Once on a few rows: what torch, BLAS and LAPACK load when they are first used is no part of the limit.
    few = tuple(
        torch.from_numpy(each) for each in (scaling.inputs.transform(first[0]), scaling.targets.transform(first[1]))
    )
    run(few, 20, len(few[1]))[0].condition(few, optimize_noise=True)
    limited = _limit_memory(LIMIT)
    model, seconds = run(source, steps, source.num_data)
    fitted = model.condition(source, optimize_noise=True)  # one exact pass over all rows, from disk
    save_fit(ScaledGP((Component(fitted),), scaling.inputs, scaling.targets), directory / "pump.finitegp")
    where = f"within {LIMIT / 2**20:.0f} MB beyond the libraries" if limited else "without a limit (not on this system)"
    print(f"trained on batches of {BATCH}, {1e3 * seconds:.2f} ms of processor time per step, {where}")


def _limit_memory(extra: int) -> bool:
    """Let this process take this many bytes of address space beyond what it has; whether the system can do that."""
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    import resource

    line = next(line for line in status.read_text().splitlines() if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, (int(line.split()[1]) * 1024 + extra, resource.RLIM_INFINITY))
    return True


def load_header(directory: Path) -> ctypes.CDLL | None:
    """The header as a library that can be called from here; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    code = '#include "pump.h"\nvoid run(const float *x, float *out);\n'
    code += "void run(const float *x, float *out) { pump_predict(x, out, out + 1, out + 2, out + 3); }\n"
    (directory / "pump.c").write_text(code)
    library = directory / f"pump-{time.time_ns()}.so"
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(directory / "pump.c"), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def call(header: ctypes.CDLL, inputs: np.ndarray) -> np.ndarray:
    """Mean, epistemic, noise and total standard deviation of each row, as the device computes them."""
    found = np.zeros((len(inputs), 4), dtype=np.float32)
    for row, out in zip(np.ascontiguousarray(inputs, dtype=np.float32), found, strict=True):
        header.run(row.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    return found


def main(small: bool = False) -> None:
    """Run the example."""
    from finitegp.export import export_c
    from finitegp.lite import load

    rows, steps = (2000, 250) if small else (100_000, 12_500)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_rows(directory, rows)
        trained = [sys.executable, __file__, "--train", str(directory), str(steps)]
        print(f"{rows} rows on disk; ", end="", flush=True)
        print(subprocess.run(trained, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")

        model = load(directory / "pump.finitegp")  # NumPy alone from here on
        shown = export_c(directory / "pump.finitegp", directory / "pump.h", name="pump", max_bytes="32kB")
        print(
            f"the header has {shown.constant_bytes} bytes of constants, works with {shown.stack_bytes} bytes on the "
            f"stack, and takes {shown.operations} operations and {shown.calls} calls of math.h per prediction"
        )
        check, truth = make_rows(500, seed=10**6)
        found = model.predict(check)
        header = load_header(directory)
        if header is not None:
            device = call(header, check)
            worst = np.max(np.abs(device[:, 0] - found.mean) / found.std)
            print(f"on the device predictions differ by at most {worst:.1e} standard deviations")
        _show("before the repair", model, check, truth)
        check, truth = make_rows(500, seed=2 * 10**6, repaired=True)
        _show("after the repair", model, check, truth)

        # Rows of the old pump are forgotten, a few hundred of the new one are taken in: sums and one factorisation.
        stored = tuple(np.load(directory / f"{each}.npy", mmap_mode="r") for each in ("inputs", "targets"))
        started = time.process_time()
        adapted = model.forget(*stored).update(*make_rows(400, seed=3 * 10**6, repaired=True))
        print(f"forgetting {rows} rows and taking in 400: {time.process_time() - started:.2f} s of processor time")
        _show("with 400 new rows", adapted, check, truth)
        adapted.save(directory / "pump.finitegp")
        export_c(directory / "pump.finitegp", directory / "pump.h", name="pump", max_bytes="32kB")
        header = load_header(directory)
        if header is not None:
            device = call(header, check)
            worst = np.max(np.abs(device[:, 0] - adapted.predict(check).mean) / device[:, 3])
            print(f"the new header differs by at most {worst:.1e} standard deviations")


def _show(when: str, model, inputs: np.ndarray, truth: np.ndarray) -> None:
    found = model.predict(inputs)
    lower, upper = found.interval(0.9)
    held = 100 * np.mean((lower <= truth) & (truth <= upper))
    rmse = np.sqrt(np.mean((found.mean - truth) ** 2))
    print(f"{when}: RMSE {rmse:.3f} kW, 90 % intervals hold {held:.0f} % of 500 rows")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_model(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(small="--small" in sys.argv[1:])
