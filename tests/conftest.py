"""Fixtures shared by all tests, and the tolerances in one table."""

import os
import sys
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule

# Workers, and programs that tests start, have one thread each, as in the Makefile: on small matrices threads wait.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Look for no examples in files of tests: that is allowed to fail to import a file, and leaves it without tests."""
    found = yield
    return [each for each in found if not (isinstance(each, DoctestModule) and file_path.name.startswith("test_"))]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Workers run whole stretches of files, so that few fixtures are made twice, and share what is left at the end."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


# Relative tolerances by what is compared.
TOLERANCES = {"reference": 1e-9, "peer": 1e-6, "algebra": 1e-10}


@pytest.fixture(params=os.environ.get("FINITEGP_TEST_SEEDS", "0").split(","))
def seed(request):
    """The seed of a test; FINITEGP_TEST_SEEDS=0,1,2 runs every seeded test with each."""
    return int(request.param)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    """What draws from the global generators gets the same numbers whatever ran before, on any worker."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tolerances():
    return TOLERANCES


@pytest.fixture
def uci_dir():
    """The directory of the shared benchmark tables; tests that need it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "uci"
    path = Path(os.environ.get("FINITEGP_UCI_DIR", default))
    if not (path / "bike.parquet").exists():
        pytest.skip(f"UCI tables not found in {path}; set FINITEGP_UCI_DIR to run this test")
    return path


@pytest.fixture
def arrays(seed):
    """Inputs, two targets, weights and counts of rows that sources, spools and moments are tested with."""
    from source_rows import COLUMNS, ROWS

    random = np.random.default_rng(seed)
    inputs, targets = random.normal(size=(ROWS, COLUMNS)), random.normal(size=(ROWS, 2))
    return inputs, targets, 0.5 + random.random(ROWS), random.integers(1, 5, ROWS).astype(float)


@pytest.fixture(scope="module")
def training():
    """The rows of the fit that the report is about."""
    from report_fits import make_rows

    return make_rows(500, seed=0)


@pytest.fixture(scope="module")
def held_out():
    """The rows that the report measures with."""
    from report_fits import make_rows

    return make_rows(250, seed=1)


@pytest.fixture(scope="module")
def fit(training):
    """The fit that the report is about."""
    from report_fits import make_fit

    return make_fit(*training)


@pytest.fixture(scope="module")
def contents(fit, training, held_out):
    """What the report of the fit shows, with names of columns and target that a page must escape."""
    from report_fits import HOSTILE, HOSTILE_TARGET

    from finitegp.report import gather_contents

    return gather_contents(
        fit,
        *held_out,
        training_inputs=training[0],
        training_targets=training[1],
        column_names=[HOSTILE, "a" * 120, "age"],
        target_name=HOSTILE_TARGET,
        history=[{"epoch": epoch, "nlml": 1.0 / epoch, "loss": 2.0} for epoch in range(1, 6)],
    )


@pytest.fixture(scope="session")
def stack():
    """Several kernels with a spread, a variance outside, an outlier and counts; tests leave it as it is."""
    from scaled_fits import make_stack

    return make_stack()


@pytest.fixture(scope="session")
def gaussian():
    """One GP of given features, in the user's units; tests leave it as it is."""
    from scaled_fits import make_gaussian

    return make_gaussian()


@contextmanager
def few_trees():
    """Every effort has at most 20 boosted trees, inside."""
    from finitegp.automatic import EFFORTS

    with pytest.MonkeyPatch.context() as patch:
        for name, settings in [*EFFORTS.items()]:
            patch.setitem(EFFORTS, name, settings.with_changes({"trees": 20}))
        yield


@pytest.fixture(scope="module", autouse=True)
def _few_trees(pytestconfig):
    """Hundreds of trees in every fold would take most of the time of small fits; ``make test-slow`` has them all."""
    with nullcontext() if pytestconfig.getoption("markexpr") == "slow" else few_trees():
        yield


@pytest.fixture(scope="session", autouse=True)
def _freed_memory_is_kept():
    """A memory budget lets the allocator give memory back from then on, which makes all later fits take twice as long.

    Whether budgets hold is tested in processes of their own.
    """
    from finitegp.memory import return_freed_memory

    @wraps(return_freed_memory)  # whose docstring is on a page
    def keep():
        return True

    with pytest.MonkeyPatch.context() as patch:
        for place in ("finitegp.memory", "finitegp.automatic.fit"):
            patch.setattr(f"{place}.return_freed_memory", keep)
        yield


@contextmanager
def small_efforts():
    """``--effort low`` takes a fraction of a second on small tables, inside: targets keep their scale unless told."""
    from finitegp.automatic import EFFORTS

    quick = {"fourier_features": 24, "members": 2, "trees": 20, "learning_rows": 60}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes(quick))
        patch.setattr("finitegp.tables.learning._FEWEST_ROWS", 10**6)  # the search takes longer than the fit
        yield


@pytest.fixture
def quick_effort():
    """``--effort low`` takes a fraction of a second on small tables."""
    with small_efforts():
        yield


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A directory with ``train.csv``, ``new.csv`` and two models of the first.

    ``price.finitegp`` is the default, ``shared.finitegp`` has no rows in it.
    """
    from typer.testing import CliRunner

    from finitegp.cli import app

    directory = tmp_path_factory.mktemp("shop")
    write_shop_table(directory / "train.csv", 60, seed=0)
    write_shop_table(directory / "new.csv", 25, seed=1)
    for options in (["-o", directory / "price.finitegp"], ["-o", directory / "shared.finitegp", "--no-rows"]):
        arguments = ["fit", directory / "train.csv", "--target", "price", "--effort", "low", *options]
        with small_efforts():  # the model stays for the session, the small effort must not
            result = CliRunner().invoke(app, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
    return directory


def write_shop_table(path, rows, *, seed=0, first="width,colour,sold,price"):
    """A small table of numbers, words and dates."""
    generator = np.random.default_rng(seed)
    lines = [first]
    for _ in range(rows):
        width, colour = generator.uniform(1, 5), generator.choice(["red", "blue", "green"])
        day = np.datetime64("2024-01-01") + generator.integers(0, 300)
        price = 100 + 10 * np.sin(width) + 5 * (colour == "red") + generator.normal()
        lines.append(f"{width:.4f},{colour},{day},{price:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def steps_in_python(request, monkeypatch, tmp_path_factory):
    """Loops for Numba as Python runs them; compiled, which takes a minute, where a test is slow."""
    config = pytest.importorskip("numba").config
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(config, "DISABLE_JIT", True)
    else:  # anew in each session: what is kept beside the files may be older than another file that it was made of
        monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path_factory.getbasetemp() / "numba"))
    loops = [f"finitegp.compiled.{name}" for name in ("descent", "factors", "network", "optimizers", "steps")]
    for name in ("finitegp.compiled", *loops, "paper.compiled_steps", "paper.fused"):
        # To its old state afterwards, also if that is absent.
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
        del sys.modules[name]
