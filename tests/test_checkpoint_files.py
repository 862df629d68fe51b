"""Checkpoint files: what is damaged, crafted or of another run is refused, and then nothing has changed."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch.optim import lr_scheduler

from finitegp import FeatureGP, InputNoise
from finitegp.algorithms import BSGD, SCGD, Lagged
from finitegp.callbacks import Callback, Checkpoint, ExactNLML
from finitegp.errors import ModelFileError
from finitegp.features import MLPFeatures
from finitegp.persistence import load_fit
from finitegp.persistence.container import read_container, write_container
from finitegp.run import load_checkpoint, save_checkpoint
from finitegp.schedules import FlatAdamW, make_optimizer
from finitegp.training import train

ROWS = 60


class Slower(torch.optim.AdamW):
    """An optimizer whose copies make no steps: torch copies only groups and state."""

    def __init__(self, groups):
        super().__init__(groups, lr=1e-3)
        self.factor = 0.5

    def step(self):
        self.param_groups[0]["lr"] = 1e-3 * self.factor
        return super().step()


OPTIMIZERS = {
    "slower": lambda algorithm: Slower(algorithm.parameter_groups()),
    "adam": lambda algorithm: make_optimizer(algorithm),
    "adadelta": lambda algorithm: make_optimizer(algorithm, "adadelta"),
    "momentum": lambda algorithm: torch.optim.SGD(algorithm.parameter_groups(), lr=1e-3, momentum=0.9),
    "adafactor": lambda algorithm: torch.optim.Adafactor(algorithm.parameter_groups()),
    "flat": lambda algorithm: FlatAdamW(algorithm.parameter_groups()[0]["params"], learning_rate=1e-3),
}


def make_data():
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(ROWS, 2, generator=generator)
    return inputs, torch.sin(2 * inputs[:, 0])


def start(path=None, kind=Lagged, optimizer="adam", *, width=6, steps=5, noise=None, dtype=torch.float32):
    """A run in the middle of its second epoch, with a checkpoint of that moment if there is a path."""

    class Stop(Callback):
        def on_step(self, run):
            if run.step == steps:
                runs.append(run)
                raise KeyboardInterrupt

    runs = []
    noise = {"noise_variance": 0.5} if noise is None else {"noise_model": noise}
    model = FeatureGP(MLPFeatures(2, hidden=(width, 4), seed=0), **noise).to(dtype)
    algorithm = kind(model, ROWS)
    callbacks = [ExactNLML(), *([] if path is None else [Checkpoint(path, every_steps=steps)]), Stop()]
    with pytest.raises(KeyboardInterrupt):
        train(algorithm, OPTIMIZERS[optimizer](algorithm), make_data(), epochs=4, batch_size=16, callbacks=callbacks)
    return runs[0]


def snapshot(run):
    """Everything that a checkpoint may change, as a copy."""
    fields = {name: value for name, value in vars(run).items() if name not in ("algorithm", "optimizer", "sampler")}
    state = run.algorithm.state_dict(), run.algorithm.pending_state(), run.optimizer.state_dict(), fields
    return copy.deepcopy((*state, torch.get_rng_state()))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dict__") and not isinstance(one, type):
        return same(vars(one), vars(other))
    return one == other or (one != one and other != other)


def refused(path, run, match=""):
    """Whether the checkpoint is refused with one error class, and the run left as it was."""
    before = snapshot(run)
    try:
        load_checkpoint(path, run)
    except ModelFileError as error:
        message = str(error)
    else:
        return False
    assert all(part in message for part in ("checkpoint", "Delete it to start anew", match)), message
    assert same(before, snapshot(run))
    return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def test_cut_off_anywhere_or_with_one_bit_changed(path):
    start(path)
    whole, other = path.read_bytes(), start(steps=6)
    for position in range(0, len(whole), 197):
        path.write_bytes(whole[:position])
        assert refused(path, other), position
        path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << position % 8)]) + whole[position + 1 :])
        assert refused(path, other), position
    path.write_bytes(whole)
    assert not refused(path, other)
    assert other.step == 5


@pytest.mark.parametrize(("kind", "optimizer"), [(Lagged, "adam"), (SCGD, "adam"), *((BSGD, o) for o in OPTIMIZERS)])
def test_tensors_of_another_shape_or_type_are_refused(path, kind, optimizer):
    """Whoever can write a checksum can write anything; fused optimizers write past the end of a short tensor."""
    start(path, kind, optimizer)
    header, tensors = read_container(path, "a checkpoint", "finitegp-checkpoint")
    other = start(None, kind, optimizer, steps=6)
    assert any(name.startswith("optimizer.") for name in tensors)
    for number, (name, tensor) in enumerate(tensors.items()):
        strange = {
            "absent": None,
            "short": tensor.reshape(-1)[:1].clone() if tensor.shape != (1,) else torch.zeros(2, dtype=tensor.dtype),
            "scalar": tensor.reshape(-1)[:1].reshape(()).clone() if tensor.ndim else tensor[None],
            "long": torch.cat([tensor.reshape(-1)] * 2),
            "bytes": tensor.to(torch.int16 if tensor.dtype == torch.uint8 else torch.uint8),
        }
        # All of them once; with each other optimizer in turn.
        tried = strange.items() if kind is not BSGD else [list(strange.items())[number % len(strange)]]
        for what, changed in tried:
            rest = {each: kept for each, kept in tensors.items() if each != name}
            write_container(path, header, rest if changed is None else rest | {name: changed})
            # A parameter without gradients has no momentum, and residuals are a list of any length.
            possible = name.endswith("momentum_buffer") and what == "absent"
            possible = possible or (name == "pending.residuals" and what in ("absent", "short", "long"))
            assert refused(path, other) or possible, (name, what)
    for name in ("optimizer.99.exp_avg", "optimizer.0.more", "pending.more", "algorithm.more", "more"):
        write_container(path, header, tensors | {name: torch.zeros(3)})
        assert refused(path, other), name


def test_pending_batches_with_scales_are_compared(path):
    noise = InputNoise(torch.nn.Linear(2, 1), reads="inputs")
    start(path, noise=noise)
    header, tensors = read_container(path, "a checkpoint", "finitegp-checkpoint")
    other = start(noise=InputNoise(torch.nn.Linear(2, 1), reads="inputs"), steps=6)
    assert tensors["pending.log_scales"].shape == (tensors["pending.sizes"].sum(),)
    for name, changed in {
        "pending.log_scales": torch.zeros(3),
        "pending.sizes": torch.tensor([-1, 50]),
        "pending.features": tensors["pending.features"].double(),
        "pending.targets": tensors["pending.targets"][:, :0],
    }.items():
        write_container(path, header, tensors | {name: changed})
        assert refused(path, other), name
    write_container(path, header, tensors)
    assert not refused(path, other)


def test_huge_declared_shapes_allocate_nothing(path):
    other = start(steps=6)
    outer = {"__metadata__": {"finitegp": json.dumps({"format": "finitegp-checkpoint", "format_version": 1})}}
    outer["__metadata__"]["sha256"] = "0" * 64
    outer["optimizer.0.exp_avg"] = {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}
    text = json.dumps(outer).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
    assert refused(path, other, "truncated")


def places(value, way=()):
    """Every place in nested JSON."""
    yield way
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield from places(each, (*way, key))


def test_a_signed_header_with_anything_in_it_makes_a_run_or_a_clear_error(path):
    start(path)
    header, tensors = read_container(path, "a checkpoint", "finitegp-checkpoint")
    other = start(steps=6)
    count = 0
    anything = [None, -1, 10**30, 0.5, math.inf, "x", [], {}, True]
    for number, way in enumerate(list(places(json.loads(header["state"])))[1:]):
        for strange in (anything[number % 9], anything[(number + 4) % 9]):
            state = json.loads(header["state"])
            spot = state
            for key in way[:-1]:
                spot = spot[key]
            spot[way[-1]] = strange
            write_container(path, header | {"state": json.dumps(state)}, tensors)
            count += refused(path, other)
    assert count > number / 2
    for name, strange in (("setting", []), ("setting", None), ("state", 3), ("state", "["), ("state", "[" * 100_000)):
        write_container(path, header | {name: strange}, tensors)
        assert refused(path, other), name


def test_a_refused_checkpoint_is_not_trained_from(path):
    start(path)
    header, tensors = read_container(path, "a checkpoint", "finitegp-checkpoint")
    write_container(path, header, tensors | {"optimizer.2.exp_avg": torch.zeros(())})
    algorithm = Lagged(FeatureGP(MLPFeatures(2, hidden=(6, 4), seed=0), 0.5), ROWS)
    with pytest.raises(ModelFileError, match=r"its optimizer has a tensor '2.exp_avg' of shape \(\).*Delete it"):
        train(algorithm, make_optimizer(algorithm), make_data(), epochs=4, batch_size=16, resume=path)


def test_another_network_or_type_is_a_clear_error(path):
    start(path)
    assert refused(path, start(width=7), "its algorithm has a tensor 'model.feature_map.layers.0.weight' of shape (6,")
    assert refused(path, start(dtype=torch.float64), "torch.float32, but that of the run has shape")
    assert refused(path, start(optimizer="momentum"), "optimizer was 'AdamW' and is now 'SGD'")


def test_files_of_other_kinds_are_named(path):
    run = start()
    save_file({"a": torch.zeros(2)}, path, {"finitegp": json.dumps({"format": "finitegp-checkpoint-1"})})
    assert refused(path, run, "by an earlier release of finitegp, without a checksum: only that release can go on")
    save_file({"a": torch.zeros(2)}, path)
    assert refused(path, run, "a safetensors file, but not a checkpoint")
    write_container(path, {"kind": "fit"}, {})
    assert refused(path, run, "not a checkpoint that finitegp saved: its format is 'finitegp-model'")
    start(path)
    with pytest.raises(ModelFileError, match="checkpoint of a training run, not a model"):
        load_fit(path)


SCHEDULERS = {
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=16),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 7], gamma=0.1),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch_go_on_to_the_bit(path, name):
    def go(stop_at=None):
        class Stop(Callback):
            def on_step(self, run):
                if run.step == stop_at:
                    raise KeyboardInterrupt

        algorithm = Lagged(FeatureGP(MLPFeatures(2, hidden=(6, 4), seed=0), 0.5), ROWS)
        optimizer = make_optimizer(algorithm)
        schedule = SCHEDULERS[name](optimizer)
        callbacks = [Checkpoint(path, every_steps=5, scheduler=schedule), Stop()]
        options = {"epochs": 4, "batch_size": 16, "schedule": schedule, "callbacks": callbacks, "resume": path}
        train(algorithm, optimizer, make_data(), **options)
        return algorithm.state_dict(), optimizer.param_groups[0]["lr"]

    whole = go()
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        go(stop_at=6)
    assert same(go(), whole)


def test_numbers_that_are_not_finite_come_back(path):
    run = start()
    run.metrics |= {"never": math.inf}
    run.loss, run.history = math.nan, [{"epoch": 1, "never": -math.inf}]
    save_checkpoint(path, run)
    other = start(steps=6)
    load_checkpoint(path, other)
    assert other.metrics["never"] == math.inf
    assert math.isnan(other.loss)
    assert other.history == [{"epoch": 1, "never": -math.inf}]
