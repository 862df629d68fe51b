"""A whole fit under a hard limit of the operating system that is set from its plan."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]  # where `benchmarks` is

LIMITED = """
import gc, json, resource, sys
import numpy as np, torch
from finitegp.automatic import EFFORTS
from finitegp.data import NpySource
from benchmarks.process_memory import data_memory_bytes, peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from benchmarks.libraries import load_libraries
from finitegp.memory import MemoryBudgetError, return_freed_memory
from finitegp import fit_within_memory

torch.set_num_threads(1)
return_freed_memory()
directory, effort, columns = sys.argv[1], sys.argv[2], 8
random = np.random.default_rng(0)
inputs = random.normal(size=(20_000, columns)).astype(np.float32)
targets = np.sin(2 * inputs[:, 0]) + 0.3 * np.exp(0.5 * inputs[:, 1]) * random.normal(size=20_000)
np.save(directory + "/inputs.npy", inputs)
np.save(directory + "/targets.npy", targets)
few = {"steps": 30, "max_steps": 30, "noise_steps": 20}
options = {"effort": effort, "settings": few, "threads": 1}
load_libraries(tables=False, optimizers=False)
source = NpySource(directory + "/inputs.npy", directory + "/targets.npy")
del inputs, targets
plans = []

def refused(budget):
    class Stop(Exception):
        pass

    def stop(plan):
        plans.append(plan)
        raise Stop

    try:
        fit_within_memory(source, budget, on_plan=stop, **options)
    except MemoryBudgetError:
        return True
    except Stop:
        return False

low, high = 10**6, 10**9
while high - low > 10_000:  # the smallest budget that is not refused
    middle = (low + high) // 2
    low, high = (middle, high) if refused(middle) else (low, middle)
budgets = [high, 40 * 10**6]
found = []
for budget in budgets:
    assert not refused(budget)
    plan = plans[-1]
    gc.collect()
    return_freed_memory()
    before = data_memory_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (before + plan.limit, resource.RLIM_INFINITY))
    reset_peak_memory()
    baseline = resident_memory_bytes()
    fit = fit_within_memory(source, budget, **options)
    rows = sum(len(fit.predict(part.inputs).mean) for part in source.with_chunks(fit.fitted.chunk_size))
    share = (peak_memory_bytes() - baseline) / plan.total
    try:
        # The limit is there, whatever has been given back since it was set.
        block = np.ones(int(1.2 * plan.limit) + max(before - data_memory_bytes(), 0), dtype=np.uint8)
        limited = False
    except MemoryError:
        limited = True
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    features = plan.setting.num_features
    found.append({"rows": rows, "limited": limited, "features": features, "share": share})
    del fit
print(json.dumps({"found": found, "refused": refused(low)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets RLIMIT_DATA")
@pytest.mark.parametrize("effort", ["low", "medium"])
def test_a_whole_fit_finishes_under_a_hard_limit_set_from_its_plan(tmp_path, effort):
    arguments = [sys.executable, "-c", LIMITED, str(tmp_path), effort]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["refused"]
    for found in result["found"]:
        assert found["limited"]
        assert found["rows"] == 20_000
    assert 0.8 < result["found"][1]["share"] < 1.1  # the plan is right
    assert result["found"][0]["features"] < result["found"][1]["features"]
