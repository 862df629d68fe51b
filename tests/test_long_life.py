"""A service that runs for long: models are loaded, used, updated, saved and loaded again by several threads."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from finitegp import GPRegressor

CYCLES, THREADS = 2000, 8


def memory():
    """Megabytes in use, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_and_open_files_stay_flat(tmp_path):
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(60, 2))
    targets = np.sin(inputs[:, 0]) + 0.1 * generator.normal(size=60)
    paths = [tmp_path / f"{seed}.finitegp" for seed in range(4)]
    for seed, path in enumerate(paths):
        GPRegressor(effort="low", random_state=seed).fit(inputs[seed : seed + 50], targets[seed : seed + 50]).save(path)
    expected = [GPRegressor.load(path).partial_fit(inputs[:5], targets[:5]).predict(inputs) for path in paths]
    errors = []

    def serve(number, cycles):
        try:
            for cycle in range(cycles):
                which = (number + cycle) % len(paths)
                model = GPRegressor.load(paths[which])
                model.partial_fit(inputs[:5], targets[:5])
                own = tmp_path / f"thread-{number}.finitegp"
                model.save(own)
                again = GPRegressor.load(own).predict(inputs)
                np.testing.assert_allclose(again, expected[which], rtol=1e-9)
        except BaseException as error:
            errors.append(error)

    def round_of(cycles):
        threads = [threading.Thread(target=serve, args=(number, cycles // THREADS)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        gc.collect()
        return memory(), len(os.listdir("/proc/self/fd")), threading.active_count()

    first, files, threads = round_of(CYCLES // 4)
    last, files_after, threads_after = round_of(CYCLES - CYCLES // 4)
    assert files_after <= files
    assert threads_after == threads
    # A leak of one model per cycle would be 1,500 times 30 kB.
    assert last - first < 20.0
