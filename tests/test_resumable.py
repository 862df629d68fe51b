"""Automatic fits that are interrupted and resumed end as if nothing had happened; files of other fits are refused."""

import sys

import numpy as np
import pytest
import torch
from shadow_device import SHADOW, shadow_device
from typer.testing import CliRunner

from finitegp import GPRegressor, Lagged, TableRegressor, resumable
from finitegp import stages as stages_module
from finitegp.automatic import fit_auto, seconds
from finitegp.callbacks import Checkpoint
from finitegp.cli import app
from finitegp.distributed import Ranks
from finitegp.errors import DataError, ModelFileError
from finitegp.persistence.container import read_container, write_container
from finitegp.stages import FORMAT

QUICK = {"steps": 30, "max_steps": 30, "noise_steps": 20, "learning_rows": 60, "max_validation_rows": 200}
QUICK |= {"hidden": (16, 16), "fourier_features": 16}
runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def make_rows(rows, seed=0):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, 2))
    return inputs, np.exp(np.sin(inputs[:, 0]) + 0.3 * inputs[:, 1] + 0.1 * random.normal(size=rows))


def fit_kernels(rows=80, seed=0, **options):
    return fit_auto(*make_rows(rows), effort="low", settings=QUICK, seed=seed, **options)


def fit_networks(**options):
    return fit_auto(*make_rows(240), effort="low", settings=QUICK | {"small_rows": 100}, **options)


def fit_race(**options):
    """Two weight decays, of which one wins, and kernels beside networks."""
    race = {"small_rows": 100, "most_rows_for_both": 1000, "members": 3, "weight_decays": (0.1, 0.3)}
    return fit_auto(*make_rows(240), effort="low", settings=QUICK | race, **options)


def fit_targets():
    inputs, targets = make_rows(60)
    return GPRegressor(effort="low", random_state=3).fit(inputs, np.column_stack([targets, inputs[:, 0] + targets]))


def fit_table():
    inputs, targets = make_rows(80)
    return TableRegressor(effort="low", random_state=0).fit(inputs, targets)


FITS = [fit_kernels, fit_networks, fit_race, fit_targets, fit_table]


def predict(fitted):
    inputs = make_rows(30, seed=1)[0]
    if isinstance(fitted, GPRegressor | TableRegressor):
        return np.stack(fitted.predict(inputs, return_std=True))
    found = fitted.predict(inputs)
    return torch.stack([found.mean, found.std]).numpy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.checkpoint"


@pytest.fixture
def stop_after(monkeypatch):
    """Interrupt a fit when this number of stages has been written."""

    def stop(count):
        left = [count]

        def write(*arguments):
            write_container(*arguments)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        monkeypatch.setattr(stages_module, "write_container", write)

    return stop


def interrupted(fit, path, stop_after, stages=2):
    stop_after(stages)
    with pytest.raises(KeyboardInterrupt), resumable(path):
        fit()
    stop_after(-1)
    return path


@pytest.mark.parametrize("fit", FITS)
def test_interrupted_again_and_again_it_ends_as_if_nothing_had_happened(fit, path, stop_after):
    expected = predict(fit())
    for number in range(100):
        stop_after(1 + number % 3)
        try:
            with resumable(path):
                found = fit()
            break
        except KeyboardInterrupt:
            assert path.exists()
    assert number > 1
    assert np.array_equal(predict(found), expected)
    assert not path.exists()


@pytest.mark.parametrize("fit", [fit_networks, fit_table])
def test_what_is_finished_is_not_computed_again(fit, path, stop_after, monkeypatch):
    interrupted(fit, path, stop_after, 2)
    calls = []
    for place in ("automatic.ensemble._train_group", "tables.learning._left_out_density"):
        function = getattr(sys.modules[f"finitegp.{place.rpartition('.')[0]}"], place.rpartition(".")[2])

        def count(*arguments, function=function):
            calls.append(function)
            return function(*arguments)

        monkeypatch.setattr(f"finitegp.{place}", count)
    with resumable(path):
        fit()
    assert len(calls) == (0 if fit is fit_networks else 2)  # of two groups, and of four scales


def test_a_fit_on_a_device_goes_on_there(path, stop_after):
    def fit():
        return fit_networks(device=SHADOW)

    with shadow_device():
        expected = predict(fit())
        interrupted(fit, path, stop_after, 1)
        interrupted(fit, path, stop_after, 2)  # two groups of networks and a noise network are stored
    with pytest.raises(ModelFileError, match="device was meta and is now cpu"), resumable(path):
        fit_networks()
    with shadow_device() as made, resumable(path):
        found = fit()
    assert made.tensors > 1000  # what was left was done there
    assert np.array_equal(predict(found), expected)


@pytest.mark.slow
def test_a_time_budget_is_not_chosen_anew(path, stop_after, monkeypatch):
    def fit():
        options = {"learning_rows": 200, "input_noise": False}
        return fit_auto(*make_rows(250), effort="low", settings=QUICK | options, time_budget=150.0)

    monkeypatch.setattr(seconds, "expected_seconds", lambda work: work.settings.learning_rows)
    expected = predict(fit())
    interrupted(fit, path, stop_after)
    monkeypatch.setattr(seconds, "expected_seconds", lambda work: 1.0)
    assert not np.array_equal(predict(fit()), expected)
    with resumable(path):
        assert np.array_equal(predict(fit()), expected)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: fit_kernels(rows=81), "hash of the rows was"),
        (lambda: fit_kernels(seed=1), "seed was 0 and is now 1"),
        (lambda: fit_kernels(may_be_copies=False), "may_be_copies was True and is now False"),
        (fit_networks, "work was kernels and is now networks"),
    ],
)
def test_other_rows_and_settings_are_refused(other, message, path, stop_after):
    interrupted(fit_kernels, path, stop_after)
    before = path.read_bytes()
    with (
        pytest.raises(ModelFileError, match=f"belongs to another fit: {message}.*Delete it to start anew"),
        resumable(path),
    ):
        other()
    assert path.read_bytes() == before


def test_other_settings_of_networks_are_refused(path, stop_after):
    interrupted(fit_networks, path, stop_after, 1)
    with pytest.raises(ModelFileError, match="max_validation_rows was 200 and is now 100"), resumable(path):
        fit_auto(*make_rows(400), effort="low", settings=QUICK | {"small_rows": 100, "max_validation_rows": 100})


def test_damaged_files_are_refused(path, stop_after):
    whole = interrupted(fit_kernels, path, stop_after).read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(len(whole), size=20).tolist():
        changed = bytearray(whole)
        changed[place] ^= 1 << int(random.integers(8))
        for data in (bytes(changed), whole[:place]):
            path.write_bytes(data)
            with pytest.raises(ModelFileError), resumable(path):
                raise AssertionError("it was read")
            assert path.read_bytes() == data


def test_crafted_files_are_refused(path, stop_after):
    header, tensors = read_container(interrupted(fit_kernels, path, stop_after), "a checkpoint", FORMAT)
    name, tensor = next(iter(tensors.items()))
    for other in (tensor[:-1], tensor.float(), tensor[None], tensor * np.nan):
        write_container(path, header, tensors | {name: other})
        with pytest.raises(ModelFileError, match="its tensor 'array' of the stage"), resumable(path):
            fit_kernels()
    write_container(path, header, {name.replace("array", "other"): tensor for name, tensor in tensors.items()})
    with pytest.raises(ModelFileError, match="is missing instead of"), resumable(path):
        fit_kernels()
    for odd in (None, 3, [3], {"a": 1}):
        write_container(path, header | {"works": odd}, tensors)
        with pytest.raises(ModelFileError, match="list of works makes no sense"), resumable(path):
            pass
    write_container(path, header | {"torch": "1.0"}, tensors)
    with pytest.raises(ModelFileError, match=r"written by torch 1\.0,"), resumable(path):
        pass


def test_other_files_are_refused_by_name(path, stop_after, tmp_path):
    from finitegp import FeatureGP, make_optimizer, train
    from finitegp.features import MLPFeatures

    algorithm = Lagged(FeatureGP(MLPFeatures(2, hidden=(4,), seed=0)), num_data=60)
    train(algorithm, make_optimizer(algorithm), make_rows(60), epochs=1, batch_size=10, callbacks=[Checkpoint(path)])
    with pytest.raises(ModelFileError, match="checkpoint of a training run"), resumable(path):
        pass
    path.unlink()
    interrupted(fit_kernels, path, stop_after)
    with pytest.raises(ModelFileError, match="what an interrupted fit has finished"):
        TableRegressor.load(path)
    with pytest.raises(DataError, match="is a directory"), resumable(tmp_path):
        pass


def test_a_full_disk_does_not_end_the_fit(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(stages_module, "write_container", full)
    expected = predict(fit_kernels())
    with pytest.warns(UserWarning, match="cannot be written .No space left on device.") as warned, resumable(path):
        assert np.array_equal(predict(fit_kernels()), expected)
    assert len(warned) == 1


def test_nothing_is_written_before_its_time(path, stop_after):
    stop_after(1)
    with resumable(path, after=1e6):
        fit_kernels()
    with pytest.raises(ValueError, match="after must be a number of seconds"), resumable(path, after=-1.0):
        pass


def test_fits_of_several_processes_are_refused(path):
    with pytest.raises(DataError, match="several processes cannot be resumed"), resumable(path):
        fit_kernels(ranks=Ranks(rank=0, world_size=2))


class TestShell:
    """``finitegp fit --resume``."""

    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        inputs, targets = make_rows(70)
        rows = "\n".join(f"{a},{b},{y}" for (a, b), y in zip(inputs, targets, strict=True))
        (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("finitegp.commands.fit._SECONDS_NOT_KEPT", 0.0)
        return tmp_path

    def run(self, *more, code=0):
        result = runner.invoke(app, ["fit", "t.csv", "-t", "y", "--effort", "low", *more])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def test_after_a_stop_the_same_command_goes_on(self, here, stop_after):
        self.run("-o", "unbroken.finitegp")
        for number, stages in enumerate((2, 7, 9)):
            stop_after(stages)
            message = self.run(*["--resume"] * (number > 0), code=130).stderr
            assert (
                "What was finished is kept in model.finitegp.checkpoint: give the same command with --resume" in message
            )
        stop_after(-1)
        assert "going on from model.finitegp.checkpoint" in self.run("--resume").stdout
        assert not (here / "model.finitegp.checkpoint").exists()
        inputs = 0.5 * make_rows(30, seed=1)[0]  # no extrapolations, which would be told
        new = {"a": inputs[:, 0], "b": inputs[:, 1]}
        broken, unbroken = (TableRegressor.load(f"{name}.finitegp") for name in ("model", "unbroken"))
        assert np.array_equal(broken.predict(new), unbroken.predict(new))
        assert broken.summary_["scores"] == unbroken.summary_["scores"]

    def test_interrupted_when_files_are_written_it_goes_on(self, here, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("finitegp.tables.model.TableRegressor.save", stop)
            assert "no file was written" in self.run(code=130).stderr
        assert not (here / "model.html").exists()
        self.run("--resume")
        assert (here / "model.html").exists()

    def test_what_was_interrupted_is_not_lost_by_mistake(self, here, stop_after):
        stop_after(2)
        self.run(code=130)
        stop_after(-1)
        kept = (here / "model.finitegp.checkpoint").read_bytes()
        message = self.run(code=1).stderr
        assert "use --resume to go on from it, or --force to start anew" in message
        message = self.run("--resume", "--seed", "1", code=1).stderr
        assert "belongs to another fit" in message
        assert "goes on" not in message
        assert "go on" not in message
        assert (here / "model.finitegp.checkpoint").read_bytes() == kept
        self.run("--force")
        assert not (here / "model.finitegp.checkpoint").exists()

    def test_a_short_fit_writes_none_unless_it_is_asked_to(self, here, stop_after, monkeypatch):
        stop_after(1)
        self.run("--memory", "200MB")
        monkeypatch.setattr("finitegp.commands.fit._SECONDS_NOT_KEPT", 1e6)
        self.run("--force")
        self.run("--force", "--resume", code=130)
        assert (here / "model.finitegp.checkpoint").exists()
