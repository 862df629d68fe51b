"""The memory planner, gradients from micro-batches, and a hard limit set from the plan."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from algorithm_problems import assert_same_gradients, gradients_of

from finitegp import BSGD, SCGD, DataError, FeatureGP, InputNoise, Lagged, Minimax, PaperMinimax, train
from finitegp.data import Rows, spool
from finitegp.features import FourierFeatures, MLPFeatures
from finitegp.memory import MemoryBudgetError, format_bytes, parse_bytes, plan_memory
from finitegp.schedules import make_optimizer

ROOT = Path(__file__).resolve().parents[2]  # where `benchmarks` is


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [("64MB", 64 * 10**6), ("64 mib", 64 * 2**20), ("1.5G", 15 * 10**8), (".5kB", 500), ("12", 12), (7.9, 7)],
    )
    def test_parse(self, text, expected):
        assert parse_bytes(text) == expected

    @pytest.mark.parametrize("text", ["", "MB", "64 M B", "-3MB", "64MBit", "1e3", "0", 0, -1, float("nan"), 2**70])
    def test_refuse(self, text):
        with pytest.raises(ValueError, match="size"):
            parse_bytes(text)

    @pytest.mark.parametrize("value", [None, True, [64]])
    def test_refuse_types(self, value):
        with pytest.raises(TypeError, match="size must be text"):
            parse_bytes(value)

    def test_format_is_read_back(self):
        assert parse_bytes(format_bytes(12_300_000)) == 12_300_000


class TestPlan:
    def test_totals_are_sums_of_the_bill(self):
        plan = plan_memory("64MB", 16, reading_bytes=10**6)
        always = sum(item.bytes for item in plan.items if item.phase == "always")
        for phase, total in plan.phases.items():
            assert total == always + sum(item.bytes for item in plan.items if item.phase == phase)
        assert plan.total == max(plan.phases.values())
        assert plan.total < plan.limit <= plan.budget
        text = str(plan)
        assert all(item.name in text and format_bytes(item.bytes) in text for item in plan.items)
        assert format_bytes(plan.total) in text

    @pytest.mark.parametrize("algorithm", ["lagged", "scgd", "minimax"])
    def test_a_smaller_budget_gives_a_smaller_plan_that_fits(self, algorithm):
        budgets = [10**6 * size for size in (256, 64, 32, 16, 8, 6, 5, 4, 3)]
        plans = [plan_memory(budget, 16, algorithm=algorithm) for budget in budgets]
        assert all(plan.fits for plan in plans)
        widths = [plan.setting.num_features for plan in plans]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] == 128
        assert widths[-1] < 128

    def test_results_are_kept_before_parts_are(self):
        """A little less memory shrinks chunks, gathered batches and micro-batches before batch and network."""
        generous = plan_memory("1GB", 16, hidden=(512, 512), batch_size=1024, algorithm="scgd")
        assert generous.setting.micro_batch_size == 1024
        tight = plan_memory(generous.total // 2, 16, hidden=(512, 512), batch_size=1024, algorithm="scgd")
        assert tight.setting.hidden == (512, 512)
        assert tight.setting.batch_size == 1024
        assert tight.setting.chunk_size < generous.setting.chunk_size

    def test_one_notch_below_the_smallest_is_refused_with_a_plan_that_fits(self):
        fixed = {"hidden": (512, 512), "batch_size": 1024}
        with pytest.raises(MemoryBudgetError) as refused:
            plan_memory("16MB", 16, **fixed)
        assert refused.value.plan.fits
        assert refused.value.plan.setting.num_features < 512
        assert str(refused.value.plan) in str(refused.value)
        low, high = 16 * 10**6, 10**9
        while high - low > 1000:
            middle = (low + high) // 2
            try:
                high = plan_memory(middle, 16, **fixed).budget
            except MemoryBudgetError:
                low = middle
        assert plan_memory(high, 16, **fixed).setting.hidden == (512, 512)
        with pytest.raises(MemoryBudgetError, match=r"at least [0-9.]+MB are needed"):
            plan_memory(low, 16, **fixed)

    def test_a_budget_for_nothing_names_the_smallest(self):
        with pytest.raises(MemoryBudgetError, match="the smallest plan needs a budget of") as refused:
            plan_memory("1MB", 16)
        assert not refused.value.plan.fits
        assert plan_memory(refused.value.plan.limit, 16).fits

    def test_arguments_are_checked(self):
        for arguments, message in (
            ({"algorithm": "bsgd"}, "algorithm must be one of"),
            ({"num_targets": 0}, "num_targets must be at least 1"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"hidden": ()}, "hidden must list"),
        ):
            with pytest.raises(ValueError, match=message):
                plan_memory("64MB", 16, **arguments)

    def test_parameters_are_counted_as_the_model_has_them(self):
        for algorithm, kind in (("lagged", Lagged), ("scgd", SCGD), ("minimax", Minimax)):
            setting = plan_memory("64MB", 7, hidden=(20, 30), num_targets=2, algorithm=algorithm).setting
            model = FeatureGP(MLPFeatures(7, (20, 30)), noise_variance=1.0)
            found = kind(model, num_data=10, num_targets=2)
            assert sum(p.numel() for p in found.parameters()) == setting.num_parameters


def small_problem(generator, *, noise="constant", rows=23, dtype=torch.float64):
    network = MLPFeatures(3, (7, 5), seed=1)
    if noise == "input":
        model = FeatureGP(network, noise_model=InputNoise(torch.nn.Linear(5, 1), variance=0.4)).to(dtype)
    else:
        model = FeatureGP(network, noise_variance=0.4).to(dtype)
    batch = Rows(
        torch.randn(rows, 3, generator=generator).to(dtype),
        torch.randn(rows, 1, generator=generator).to(dtype),
        0.5 + torch.rand(rows, generator=generator).to(dtype) if noise == "input" else None,
    )
    return model, batch


class TestMicroBatches:
    @pytest.mark.parametrize("noise", ["constant", "input"])
    @pytest.mark.parametrize("size", [1, 5, 22])
    @pytest.mark.parametrize(
        ("kind", "arguments"),
        [
            (SCGD, {}),
            (Lagged, {"weight_update": "both", "noise_update": "gradient"}),
            (Minimax, {}),
            (PaperMinimax, {}),
        ],
    )
    def test_gradient_is_that_of_the_whole_batch(self, generator, kind, arguments, size, noise):
        model, batch = small_problem(generator, noise=noise)
        algorithm = kind(model, num_data=100, **arguments)
        algorithm.initialize([batch])
        with torch.no_grad():
            algorithm.weights.normal_(generator=generator)
            if kind is PaperMinimax:
                algorithm.dual_matrix.normal_(generator=generator).div_(10.0)
        whole = algorithm.gradient(batch)
        expected = gradients_of(algorithm)
        algorithm.micro_batch_size = size
        found = algorithm.gradient_in_parts(batch)
        assert_same_gradients(gradients_of(algorithm), expected, 1e-12)
        assert expected.keys() == gradients_of(algorithm).keys()
        torch.testing.assert_close(found.features, whole.features, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.loss, whole.loss, rtol=1e-12, atol=1e-12)
        if noise == "input":
            torch.testing.assert_close(found.log_noise_scale, whole.log_noise_scale, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("kind", [SCGD, Lagged, Minimax])
    def test_training_is_the_same_to_rounding(self, generator, kind):
        inputs = torch.randn(90, 3, generator=generator).double()
        data = inputs, torch.sin(inputs[:, 0])
        states = []
        for size in (None, 7):
            model = FeatureGP(MLPFeatures(3, (7, 5), seed=1), noise_variance=0.1).double()
            algorithm = kind(model, num_data=90)
            train(algorithm, make_optimizer(algorithm), data, epochs=3, batch_size=30, micro_batch_size=size)
            states.append(algorithm.state_dict())
        for name, value in states[0].items():
            torch.testing.assert_close(states[1][name], value, rtol=1e-8, atol=1e-10, msg=name)

    def test_at_most_so_many_rows_pass_at_once(self, generator):
        model, _ = small_problem(generator, dtype=torch.float32)
        seen = []
        original = model.trace
        model.trace = lambda inputs, weights: seen.append(len(inputs)) or original(inputs, weights)
        algorithm = Lagged(model, num_data=50)
        data = torch.randn(50, 3, generator=generator), torch.randn(50, generator=generator)
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=20, micro_batch_size=8)
        assert seen == [8, 8, 4, 8, 8, 4, 8, 2]

    def test_refused_where_the_gradient_is_no_mean_over_rows(self, generator):
        for kind, arguments in ((BSGD, {}), (Lagged, {"include_current": True})):
            model, batch = small_problem(generator)
            algorithm = kind(model, num_data=23, **arguments)
            with pytest.raises(ValueError, match="not a mean over the rows"):
                train(algorithm, make_optimizer(algorithm), tuple(batch[:2]), epochs=1, micro_batch_size=4)
        model, batch = small_problem(generator)
        algorithm = BSGD(model, num_data=23)
        whole = copy.deepcopy(algorithm)
        whole.gradient(batch)
        algorithm.micro_batch_size = 5
        algorithm.gradient_in_parts(batch)  # what train refuses is really another gradient
        with pytest.raises(AssertionError):
            assert_same_gradients(gradients_of(algorithm), gradients_of(whole), 1e-3)
        with pytest.raises(ValueError, match="micro_batch_size must be at least 1"):
            train(algorithm, make_optimizer(algorithm), tuple(batch[:2]), epochs=1, micro_batch_size=0)

    def test_any_feature_map(self, generator):
        model = FeatureGP(FourierFeatures(3, 8, seed=0), noise_variance=0.3).double()
        _, batch = small_problem(generator)
        algorithm = SCGD(model, num_data=50)
        algorithm.initialize([batch])
        algorithm.gradient(batch)
        expected = gradients_of(algorithm)
        algorithm.micro_batch_size = 4
        algorithm.gradient_in_parts(batch)
        assert_same_gradients(gradients_of(algorithm), expected, 1e-12)


def test_prediction_in_chunks_equals_prediction_at_once(tmp_path, generator):
    inputs = torch.randn(100, 3, generator=generator)
    data = spool((inputs, inputs[:, 0]), tmp_path, chunk_size=17)
    fitted = FeatureGP(MLPFeatures(3, (7, 5), seed=1), noise_variance=0.1).condition(data)
    parts = list(fitted.predict_chunks(data))
    assert [len(part.mean) for part in parts] == [17] * 5 + [15]
    whole = fitted.predict(inputs)
    for name in ("mean", "epistemic_variance", "noise_variance"):
        joined = torch.cat([getattr(part, name) for part in parts])
        torch.testing.assert_close(joined, getattr(whole, name), rtol=1e-12, atol=1e-12)
    with pytest.raises(DataError, match="takes 3 input columns"):
        list(fitted.predict_chunks((inputs[:, :2], inputs[:, 0])))


HUGE = """
from pathlib import Path
from finitegp.memory import return_freed_memory

def huge_pages():
    return [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "THP_enabled" in line]

before = huge_pages()
return_freed_memory()
print(*before, *huge_pages())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages as Linux has them")
@pytest.mark.slow
def test_no_huge_pages_where_memory_counts():
    """With them the kernel fills the holes that freed memory has left."""
    done = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    found = done.stdout.split()
    if not found:
        pytest.skip("this kernel does not tell")
    assert found[1] == "0"


LIMITED = """
import json, resource, sys, tempfile
import numpy as np, torch
from finitegp import FeatureGP, Lagged, train
from finitegp.data import spool
from finitegp.features import MLPFeatures
from benchmarks.libraries import load_libraries
from benchmarks.process_memory import data_memory_bytes
from finitegp.memory import MemoryBudgetError, plan_memory, return_freed_memory
from finitegp.schedules import make_optimizer

torch.set_num_threads(1)
return_freed_memory()
fixed = {"hidden": (256, 256), "batch_size": 1024}
low, high = 10**6, 10**9
while high - low > 10_000:  # the smallest budget that is not refused
    middle = (low + high) // 2
    try:
        high = plan_memory(middle, 16, **fixed).budget
    except MemoryBudgetError:
        low = middle
plan = plan_memory(high, 16, **fixed)
with tempfile.TemporaryDirectory() as directory:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(45_000, 16)).astype(np.float32)
    data = spool((inputs, np.sin(inputs[:, 0])), directory, chunk_size=plan.setting.chunk_size)
    del inputs
    load_libraries(tables=False)
    before = data_memory_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (before + plan.limit, resource.RLIM_INFINITY))
    model = FeatureGP(MLPFeatures(16, plan.setting.hidden, seed=0), noise_variance=0.1)
    algorithm = Lagged(model, num_data=data.num_data)
    run = train(algorithm, make_optimizer(algorithm), data, epochs=1, **plan.setting.training_arguments())
    fitted = model.condition(data)
    rows = sum(len(part.mean) for part in fitted.predict_chunks(data))
    try:
        block = np.ones(plan.limit, dtype=np.uint8)  # the limit is there
        limited = False
    except MemoryError:
        limited = True
print(json.dumps({"steps": run.step, "rows": rows, "limited": limited, "refused": low, "budget": high}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets RLIMIT_DATA")
def test_training_finishes_under_a_hard_limit_set_from_the_smallest_plan():
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["limited"]
    assert (found["steps"], found["rows"]) == (44, 45_000)
    with pytest.raises(MemoryBudgetError) as refused:
        plan_memory(found["refused"], 16, hidden=(256, 256), batch_size=1024)
    assert refused.value.plan.fits


def test_sizes_of_numpy_are_numbers_too():
    assert parse_bytes(np.int64(5_000_000)) == parse_bytes(np.float32(5e6)) == 5_000_000
    for size in (np.float64("nan"), np.int64(-1)):
        with pytest.raises(ValueError, match="at least one byte"):
            parse_bytes(size)
    with pytest.raises(TypeError, match="is a bool"):
        parse_bytes(np.bool_(True))
