"""Checkpoints: a run that is resumed equals one that was never stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same_state, make, make_data, state_of

from finitegp import DataError
from finitegp.algorithms import BSGD, SCGD, Lagged, Minimax
from finitegp.callbacks import (
    Callback,
    Checkpoint,
    ExactNLML,
)
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import train


@pytest.fixture
def data():
    return make_data()


class TestCheckpoints:
    @pytest.mark.parametrize("kind", [Lagged, SCGD, Minimax, BSGD])
    @pytest.mark.parametrize(("optimizer", "double"), [("adam", False), ("adadelta", False), ("adam", True)])
    def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(self, data, tmp_path, kind, optimizer, double):
        def go(path, stop_at=None, resume=None):
            class Stop(Callback):
                def on_step(self, run):
                    if run.step == stop_at:
                        raise KeyboardInterrupt

            algorithm = make(kind, double=double)
            run = None
            callbacks = [ExactNLML(every=2), Checkpoint(path, every_steps=7), Stop()]
            try:
                run = train(
                    algorithm,
                    make_optimizer(algorithm, optimizer, learning_rate=5e-3),
                    data,
                    epochs=4,
                    batch_size=32,
                    schedule=cosine_decay(40),
                    callbacks=callbacks,
                    resume=resume,
                )
            except KeyboardInterrupt:
                assert stop_at is not None
            return algorithm, run

        whole, expected = go(tmp_path / "whole.ckpt")
        go(tmp_path / "part.ckpt", stop_at=26)
        resumed, found = go(tmp_path / "part.ckpt", resume=tmp_path / "part.ckpt")
        assert_same_state(state_of(whole), state_of(resumed))
        assert found.step == expected.step == 40
        assert found.best.value == expected.best.value
        drop = {"seconds"}
        clean = [[{k: v for k, v in row.items() if k not in drop} for row in r.history] for r in (found, expected)]
        assert clean[0] == clean[1]
        assert found.seconds > 0

    def test_another_run_is_refused(self, data, tmp_path):
        path = tmp_path / "run.ckpt"
        algorithm = make()
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=32, callbacks=[Checkpoint(path)])
        for change in ({"batch_size": 16}, {"seed": 1}, {"sampling": "independent"}):
            other = make()
            with pytest.raises(DataError, match=f"belongs to another run: {next(iter(change))}"):
                train(other, make_optimizer(other), data, epochs=2, resume=path, **({"batch_size": 32} | change))
        other = make(SCGD)
        with pytest.raises(DataError, match="algorithm was 'Lagged' and is now 'SCGD'"):
            train(other, make_optimizer(other), data, epochs=2, batch_size=32, resume=path)

    def test_damaged_files_are_refused_and_leave_nothing_behind(self, data, tmp_path):
        path = tmp_path / "run.ckpt"
        algorithm = make()
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=32, callbacks=[Checkpoint(path)])
        assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]
        content = path.read_bytes()
        for damaged in (content[:100], content[:-50], b"", b"\xff" * 64, b"not a checkpoint"):
            path.write_bytes(damaged)
            other = make()
            with pytest.raises(DataError, match="checkpoint"):
                train(other, make_optimizer(other), data, epochs=1, batch_size=32, resume=path)

    def test_missing_file_starts_from_the_beginning(self, data, tmp_path):
        algorithm = make()
        run = train(algorithm, make_optimizer(algorithm), data, epochs=1, resume=tmp_path / "none.ckpt")
        assert run.epoch == 1


KILLED = """
import torch
import training_runs
from finitegp.callbacks import Checkpoint
from finitegp.schedules import make_optimizer
from finitegp.training import train
torch.set_num_threads(1)
algorithm = training_runs.make()
print("ready", flush=True)
train(algorithm, make_optimizer(algorithm), training_runs.make_data(), epochs=20, batch_size=8,
      callbacks=[Checkpoint({path!r}, every_steps=5)], resume={path!r})
from safetensors.torch import save_file
save_file(training_runs.state_of(algorithm), {result!r})
"""


@pytest.mark.slow
def test_killed_process_resumes_to_the_same_parameters(tmp_path):
    """SIGKILL at random moments, several times; the run that survives equals one that was never killed."""

    def script(name):
        text = KILLED.format(path=str(tmp_path / f"{name}.ckpt"), result=str(tmp_path / f"{name}.st"))
        return [sys.executable, "-c", text]

    # What -c runs imports from the working directory: training_runs.
    options = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "cwd": Path(__file__).parent}
    subprocess.run(script("whole"), check=True, timeout=120, **options)
    generator = torch.Generator().manual_seed(int(time.time()))
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(script("killed"), stdout=subprocess.PIPE, **options)
        process.stdout.readline()
        time.sleep(float(0.05 + 0.6 * torch.rand((), generator=generator)))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run(script("killed"), check=True, timeout=120, **options)
    assert kills > 0
    assert_same_state(load_file(tmp_path / "whole.st"), load_file(tmp_path / "killed.st"))
