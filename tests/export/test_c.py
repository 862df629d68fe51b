"""C headers compile without a warning and predict what the library predicts."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from export_models import KINDS, kept, library, rows, scaled, table
from torch import nn
from typer.testing import CliRunner

from finitegp import DataError, FeatureGP, GPRegressor, TableRegressor
from finitegp.cli import app
from finitegp.errors import ArgumentError
from finitegp.export import export_c
from finitegp.export.c_header import _plain
from finitegp.export.formulas import described
from finitegp.features import ConcatenatedFeatures, FourierFeatures, LandmarkFeatures, LinearFeatures, MLPFeatures
from finitegp.lite.program import Value, evaluate
from finitegp.scaled import ScaledGP

COMPILER = shutil.which("cc") or shutil.which("gcc")
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-shared", "-fPIC"]
EXPORTED = [kind for kind in KINDS if kind not in ("table", "table, log", "table of numbers, log, automatic")]
# Of the largest value: kernels on landmarks subtract nearly equal numbers, an RBF kernel the more.
FLOAT = {"automatic small without rows": 3e-3, "rbf on landmarks": 1e-4}
PAIRS = [(kind, real) for kind in EXPORTED for real in ("double", "float")]
PAIRS.remove(("automatic small", "float"))  # refused: 32 bits are not enough
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc or gcc)")


def has_no_parts(kind):
    """Whether the target has another scale, on which the standard deviation has no parts."""
    return kind.startswith("table of numbers, ")


def slug(kind, real):
    return f"{re.sub('[^a-z]', '_', kind.lower())}_{real}"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All models in one library, each as float and as double."""
    directory = tmp_path_factory.mktemp("headers")
    code = ""
    for kind, real in PAIRS:
        name = slug(kind, real)
        export_c(kept(kind).fitted, directory / f"{name}.h", name=name, real=real)
        pointers = ", ".join(f"{real} *{letter}" for letter in "abcd")
        given = "x, a, d" if has_no_parts(kind) else "x, a, b, c, d"
        unused = "(void)b; (void)c; " if has_no_parts(kind) else ""
        code += f'#include "{name}.h"\nvoid run_{name}(const {real} *x, {pointers});\n'
        code += f"void run_{name}(const {real} *x, {pointers}) {{ {unused}{name}_predict({given}); }}\n"
    return compile_c(directory, code)


def compile_c(directory, code):
    (directory / "all.c").write_text(code)
    command = [COMPILER, *FLAGS, str(directory / "all.c"), "-o", str(directory / "all.so"), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(directory / "all.so"))


def run(function, inputs, real, targets=1):
    """Mean, standard deviation, epistemic and noise deviations, row by row."""
    kind = np.float32 if real == "float" else np.float64
    found = []
    for row in inputs:
        given, outputs = np.ascontiguousarray(row, kind), [np.zeros(targets, kind) for _ in range(4)]
        function(*(each.ctypes.data_as(ctypes.c_void_p) for each in (given, *outputs)))
        found.append(outputs)
    mean, epistemic, noise, std = np.array(found).transpose(1, 0, 2)
    return mean, std, epistemic, noise


@needs_compiler
@pytest.mark.parametrize(("kind", "real"), PAIRS)
def test_predictions_are_the_librarys(kind, real, compiled):
    fitted, new = kept(kind).fitted, kept(kind).new
    inputs = np.column_stack(list(new.values())) if isinstance(new, dict) else new
    targets = 2 if kind == "several targets" else 1
    found = run(compiled[f"run_{slug(kind, real)}"], inputs, real, targets)
    for mine, theirs in zip(found, library(fitted, new), strict=True):
        if theirs is not None:
            tolerance = 1e-10 if real == "double" else FLOAT.get(kind, 2e-5)
            np.testing.assert_allclose(mine.squeeze(), theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max())


def test_what_a_header_cannot_do_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="Column 'size' had gaps in the fit, but a C header takes numbers only: fit"):
        export_c(kept("table").fitted, tmp_path / "model.h")
    with pytest.raises(DataError, match=r"scale 'log'.*mixtures.*fit with target_scale='identity', or export an ONNX"):
        export_c(kept("table of numbers, log, automatic").fitted, tmp_path / "model.h")
    made, targets = table(60)
    for name, what in (("cut", "text"), ("sold", "dates")):
        model = TableRegressor(regressor=GPRegressor("fourier", algorithm="exact", epochs=1, random_state=0))
        with pytest.raises(DataError, match=f"Column '{name}' holds {what}"):
            export_c(model.fit({name: made[name]}, targets), tmp_path / "model.h")
    with pytest.raises(DataError, match=r"^The model cannot be exported: it cannot be used: .*Own.*make it of "):
        export_c(GPRegressor(Own(), algorithm="exact", epochs=1).fit(*rows(20)), tmp_path / "model.h")
    with pytest.raises(DataError, match=r"one number for each of 50 rows, but have shape \(3,\)"):
        export_c(kept("Fourier").fitted, tmp_path / "model.h", max_bytes="1kB", rows=rows(50)[0], targets=np.ones(3))
    with pytest.raises(DataError, match="give both"):
        export_c(kept("Fourier").fitted, tmp_path / "model.h", targets=np.ones(3))
    with pytest.raises(DataError, match="C identifier"):
        export_c(kept("Fourier").fitted, tmp_path / "model.h", name="1*/")
    with pytest.raises(ValueError, match="real must be"):
        export_c(kept("Fourier").fitted, tmp_path / "model.h", real="half")
    assert not (tmp_path / "model.h").exists()


def test_float_is_refused_where_it_is_not_enough(tmp_path):
    fit = kept("automatic small").fitted
    with pytest.raises(DataError, match=r"off by up to .* standard deviations") as caught:
        export_c(fit, tmp_path / "model.h")
    assert caught.value.code == "needs_double"
    assert export_c(fit, tmp_path / "model.h", real="double").rounding == 0.0


def test_names_of_columns_cannot_end_the_comment(tmp_path):
    inputs, targets = rows(30)
    regressor = GPRegressor(LinearFeatures(2), algorithm="exact", epochs=1)
    model = TableRegressor(target_scale="identity", regressor=regressor)
    model.fit({"a*/ int x;": inputs[:, 0], "größe": inputs[:, 1]}, targets)
    export_c(model, tmp_path / "model.h")
    text = (tmp_path / "model.h").read_text(encoding="ascii")
    assert text.count("*/") == 1
    assert "a* / int x;" in text


class Own(nn.Module):
    """A feature map that files do not hold."""

    num_features = 2

    def forward(self, inputs):
        return inputs


def test_a_fitted_gp_is_exported_in_its_own_units(tmp_path):
    inputs, targets = rows(50)
    fitted = FeatureGP(FourierFeatures(2, 20), 0.1).condition((inputs, targets))
    found, expected = described(fitted).predict(inputs), fitted.predict(inputs)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(found.epistemic_std, expected.epistemic_variance.sqrt(), rtol=1e-10)
    assert export_c(fitted, tmp_path / "model.h").features == 20
    several = FeatureGP(FourierFeatures(2, 20), 0.1).condition((inputs, np.stack([targets, targets], axis=1)))
    for given, words in ((several, "2 targets"), (FeatureGP(Own(), 0.1).condition((inputs, targets)), "input_dim")):
        with pytest.raises(DataError, match=f"{words} cannot be exported: fit a GPRegressor"):
            export_c(given, tmp_path / "model.h")


@needs_compiler
@pytest.mark.parametrize("kind", ["fourier", "landmarks", "networks"])
def test_fewer_features_have_their_exact_posterior(kind, tmp_path):
    """Within the limit, and equal to a fit of the chosen features alone to the same rows."""
    inputs, _ = rows(50)
    places = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    maps = {
        "fourier": lambda: FourierFeatures(2, 60, seed=1),
        "landmarks": lambda: ConcatenatedFeatures(
            LinearFeatures(2), LandmarkFeatures.at(places, kernel="matern52", length_scales=[0.8, 0.9], variance=1.0)
        ),
        "networks": lambda: ConcatenatedFeatures(
            *(MLPFeatures(2, (9, 12), seed=seed) for seed in range(3)), FourierFeatures(2, 20), input_dim=2
        ),
    }
    fit = scaled(maps[kind]())
    limit = 1700
    new, targets = rows(200, seed=4)
    result = export_c(fit, tmp_path / "model.h", max_bytes=limit, rows=new, targets=targets)
    assert result.constant_bytes <= limit < export_c(fit, tmp_path / "whole.h").constant_bytes
    assert 3 < result.features < result.features_before
    assert result.lost_of == "NLPD"
    by_evidence = export_c(fit, tmp_path / "model.h", max_bytes=limit)
    assert by_evidence.lost_of == "evidence"
    run_it = "void run(const float *x, float *a, float *b, float *c, float *d)"
    code = f'#include "model.h"\n{run_it};\n{run_it} {{ model_predict(x, a, b, c, d); }}\n'
    found = run(compile_c(tmp_path, code).run, new[:20], "float")
    expected = _exact(fit, inputs, limit, new[:20])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine[:, 0], theirs, rtol=1e-3)


def _exact(fit, inputs, limit, new):
    """From the chosen columns of features at all training rows, by the textbook formulas of the function space."""
    from finitegp.export.c_export import _print, compressed

    small = compressed(described(fit), lambda model: _print(model, "model", "float").constant_bytes, limit)
    gp = small.fits[0].gps[0]
    x = Value("input", 2)
    blocks, _ = gp.parts(x)
    values = {f"{number}": block.raw for number, block in enumerate(blocks)}
    _, targets = rows(50)
    scale_in, scale_out = fit.inputs_scaler, fit.target_scaler

    def kernel(one, other):
        total = 0.0
        first, second = (evaluate(values, scale_in.transform(each)) for each in (one, other))
        for number, block in enumerate(blocks):
            inner = np.eye(block.raw.width) if block.root is None else block.root @ block.root.T
            total = total + first[str(number)] @ np.linalg.solve(inner, second[str(number)].T)
        return gp.output_scale * total

    noise = gp.noise
    cross, inner = kernel(new, inputs), kernel(inputs, inputs) + noise * np.eye(len(inputs))
    mean = cross @ np.linalg.solve(inner, scale_out.transform(targets))
    unknown = np.diag(kernel(new, new) - cross @ np.linalg.solve(inner, cross.T))
    for block in blocks:
        if block.variance:
            raw = evaluate({"raw": block.raw}, scale_in.transform(new))["raw"]
            seen = np.einsum("ij,ij->i", raw, np.linalg.solve(block.root @ block.root.T, raw.T).T)
            unknown = unknown + gp.output_scale * (block.variance - seen)
    unit = float(scale_out.scale)
    parts = np.sqrt(unknown + noise), np.sqrt(unknown), np.full(len(new), np.sqrt(noise))
    return scale_out.inverse(mean), *(unit * each for each in parts)


def test_a_budget_that_nothing_fits_into(tmp_path):
    with pytest.raises(DataError, match=r"Nothing fits into 100 bytes.*takes \d+ for noise networks"):
        export_c(kept("automatic large").fitted, tmp_path / "model.h", max_bytes=100)
    with pytest.raises(DataError, match="one target and one GP"):
        export_c(kept("automatic small").fitted, tmp_path / "model.h", max_bytes=100, real="double")


def test_the_command(tmp_path):
    fitted = kept("table of numbers").fitted
    fitted.save(tmp_path / "model.finitegp")
    arguments = ["export", str(tmp_path / "model.finitegp"), "--c", str(tmp_path / "model.h"), "--max-bytes", "1kB"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for words in ("bytes of constants", "operations", "nats per row of evidence", "of 20 features"):
        assert words in result.output
    assert "x[1]  width" in (tmp_path / "model.h").read_text()
    inputs, targets = rows(40, seed=7)
    lines = [f"{a},{b},{c}" for (a, b), c in zip(inputs, targets, strict=True)]
    (tmp_path / "later.csv").write_text("\n".join(["length,width,power", *lines]))
    result = CliRunner().invoke(app, [*arguments, "--force", "--rows", str(tmp_path / "later.csv")])
    assert result.exit_code == 0, result.output
    assert "of NLPD on the given rows lost" in result.output
    assert CliRunner().invoke(app, arguments).exit_code == 1  # it is there already
    assert isinstance(kept("Fourier").fitted.fits_[0], ScaledGP)


@pytest.mark.parametrize("name", ["*/ int x = ; /*", "/*", "??/", "\u4e00\u4e00/", "back\\", "nl\nx", "L" * 1000])
def test_names_of_strangers_stay_inside_of_comments(name):
    plain = _plain(name)
    assert not any(part in plain for part in ("*/", "/*", "??", "\n"))
    assert len(plain) <= 210
    assert not plain.endswith("\\")


def test_what_is_no_model_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"^model must be a model file"):
        export_c(3, tmp_path / "model.h")
    with pytest.raises(ArgumentError, match=r"^path must be"):
        export_c(Path(__file__).parents[1] / "files" / "networks-2.finitegp", 3)
