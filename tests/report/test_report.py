"""The report: fits of all kinds, and the page against what a browser needs."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
from report_fits import HOSTILE, HOSTILE_TARGET, make_fit, make_rows

from finitegp import GPRegressor
from finitegp.errors import DataError
from finitegp.report import Checkup, Finding, evaluate, gather_contents, render_page, write_report
from finitegp.report.contents import Curve, Importance

SECTIONS = (
    "doctor trained scores predicted calibration importance residuals outliers curves".split()  # noqa: SIM905
)


@pytest.fixture(scope="module")
def page(contents):
    return render_page(contents)


# Inputs of all kinds.


def test_a_bare_fitted_gp_without_training_rows(fit, held_out):
    scaled = fit.inputs_scaler.transform(held_out[0]), fit.target_scaler.transform(held_out[1])
    found = gather_contents(fit.fitted, *scaled)
    assert [scores.name for scores in found.scores] == ["this model"]
    assert found.outliers.source == "held-out"
    assert "leakage: shared rows" in found.checkup.skipped
    assert set(found.remarks) == {"scores", "outliers", "curves"}
    text = render_page(found)
    assert "training rows were not given" in text


class Estimator:
    """What the report needs of an estimator: two targets, of which the second is asked for."""

    def __init__(self, fits):
        self.fits_ = fits
        self.n_features_in_ = 3
        self.feature_names_in_ = np.array(["one", "two", "three"])
        self.training_summary_ = {"rows": 500}

    def predict(self, inputs, return_std=False):
        predictions = [fit.predict(inputs) for fit in self.fits_]
        mean, std = (np.stack([getattr(p, name).numpy() for p in predictions], axis=1) for name in ("mean", "std"))
        return (mean, std) if return_std else mean


def test_an_estimator_with_several_targets(fit, training, held_out):
    estimator = Estimator([make_fit(training[0], -training[1]), fit])
    both = np.column_stack([-held_out[1], held_out[1]])
    found = gather_contents(estimator, held_out[0], both, target_index=1)
    direct = gather_contents(fit, *held_out, column_names=["one", "two", "three"])
    assert found.scores == direct.scores
    assert found.importance == direct.importance
    assert found.facts["Made with"] == "Estimator"
    with pytest.raises(DataError, match="target_index is 2"):
        gather_contents(estimator, held_out[0], both, target_index=2)


def test_the_regressor_with_named_columns(training, held_out, recwarn):
    names = ["one", "two", "three"]
    frame, other = (pandas.DataFrame(inputs, columns=names) for inputs, _ in (training, held_out))
    regressor = GPRegressor(feature_map="mlp", epochs=3, random_state=0).fit(frame, training[1])
    found = gather_contents(
        regressor, other, held_out[1], training_inputs=frame, training_targets=training[1], target_name="wear"
    )
    mean, _ = regressor.predict(other, return_std=True)
    np.testing.assert_allclose(found.scores[0].rmse, np.sqrt(np.mean((mean - held_out[1]) ** 2)), rtol=1e-9)
    assert {entry.name for entry in found.importance.entries} == set(names)
    assert found.outliers.source == "leave-one-out"
    assert found.facts["Made with"] == "GPRegressor"
    assert [curve.panel for curve in found.curves]
    assert not [warning for warning in recwarn if "feature names" in str(warning.message)]
    check_well_formed(render_page(found))


def test_an_estimator_that_shows_no_posterior(fit, held_out):
    estimator = Estimator([fit])
    del estimator.fits_
    estimator.predict = lambda inputs, return_std=True: tuple(
        getattr(fit.predict(inputs), name).numpy() for name in ("mean", "std")
    )
    found = gather_contents(estimator, *held_out)
    assert found.scores[0] == gather_contents(fit, *held_out).scores[0]
    assert "conditioning" in found.checkup.skipped
    check_well_formed(render_page(found))


@pytest.mark.parametrize(
    ("rows", "columns"), [((40, 20), 1), ((500, 1), 2), ((250, 50), 200)], ids=["one column", "one row", "wide"]
)
def test_odd_tables(rows, columns):
    training, held_out = (make_rows(count, seed, columns) for seed, count in enumerate(rows))
    found = gather_contents(make_fit(*training), *held_out, training_inputs=training[0], training_targets=training[1])
    check_well_formed(render_page(found))


def test_errors_say_what_to_do(fit, held_out):
    with pytest.raises(TypeError, match="FittedGP, the outcome of fit_auto"):
        gather_contents(object(), *held_out)
    with pytest.raises(DataError, match="column_names are 2"):
        gather_contents(fit, *held_out, column_names=["a", "b"])
    with pytest.raises(DataError, match="'a' twice"):
        gather_contents(fit, *held_out, column_names=["a", "b", "a"])
    with pytest.raises(DataError, match="no such column"):
        gather_contents(fit, *held_out, column_groups={"color": ["red"]})
    with pytest.raises(ValueError, match="both, or neither"):
        gather_contents(fit, *held_out, training_inputs=held_out[0])


# The page.


class Parser(HTMLParser):
    """Collects tags with their attributes, and checks that all are closed in order."""

    VOID = frozenset({"meta", "br", "path", "rect"})

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def parse(text):
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser


def check_well_formed(text):
    parser = parse(text)
    identifiers = [attributes["id"] for _, attributes in parser.tags if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        for path in root.iter("path"):
            assert re.fullmatch(r"[MLHVZhv0-9. \-]+", path.get("d"))
    visible = " ".join(parser.text)
    assert not re.search(r"\b(nan|inf|None)\b", visible, re.IGNORECASE)
    return parser


def test_page_is_well_formed(page):
    check_well_formed(page)


def test_page_refers_to_nothing_outside(page):
    parser = parse(page)
    allowed = {"a": "#", "clippath": "#"}
    for tag, attributes in parser.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"href", "src", "srcset", "action", "data", "xlink:href", "poster"}:
                assert value.startswith(allowed.get(tag, " no reference is allowed here"))
    assert not re.search(r"https?:|@import|//[a-z]", page)
    assert all(reference.startswith("#") for reference in re.findall(r"url\(([^)]*)\)", page))
    policy = next(a["content"] for tag, a in parser.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_page_has_all_sections_and_links_to_them(page):
    parser = parse(page)
    sections = [attributes["id"] for tag, attributes in parser.tags if tag == "section"]
    links = [attributes["href"][1:] for tag, attributes in parser.tags if tag == "a"]
    assert sections == links == SECTIONS


def test_names_are_escaped(page):
    parser = parse(page)
    assert "<script" not in page
    assert "<b>" not in page
    text = "".join(parser.text)
    assert HOSTILE in text
    assert HOSTILE_TARGET in text
    # Inside attributes too: a quote would end one and begin another.
    known = {
        "id",
        "class",
        "scope",
        "aria-label",
        "aria-labelledby",
        "tabindex",
        "role",
        "href",
        "d",
        "lang",
        "charset",
    }
    known |= {"name", "content", "http-equiv", "viewbox", "x", "y", "width", "height", "text-anchor", "transform"}
    assert {name for _, attributes in parser.tags for name in attributes} <= known | {"clip-path"}


def test_every_text_is_escaped(contents):
    names = ["text", *SECTIONS]
    outliers = dataclasses.replace(
        contents.outliers, values=[[HOSTILE]] * len(contents.outliers.values), value_names=[HOSTILE]
    )
    panel = dataclasses.replace(
        contents.residual_panels[0], name=HOSTILE, categories=[HOSTILE] * len(contents.residual_panels[0].centers)
    )
    hostile = dataclasses.replace(
        contents,
        title=HOSTILE,
        target_name=HOSTILE,
        facts={HOSTILE: HOSTILE, "Training rows": HOSTILE, "Versions": HOSTILE},
        settings={HOSTILE: HOSTILE},
        scores=[dataclasses.replace(scores, name=HOSTILE) for scores in contents.scores],
        by_level=panel,
        curves=[Curve(HOSTILE, HOSTILE, [1.0, 2.0], [1.0, 2.0])],
        outliers=outliers,
        residual_panels=[panel],
        importance=dataclasses.replace(contents.importance, entries=[Importance(HOSTILE, 1.0, 0.1, 0.1)]),
        checkup=Checkup([Finding("note", HOSTILE, HOSTILE, HOSTILE)], [HOSTILE], {HOSTILE: HOSTILE}),
        remarks=dict.fromkeys(names, HOSTILE),
    )
    text = render_page(hostile)
    assert "<script" not in text
    check_well_formed(text)


def test_charts_can_be_read_without_seeing_them(page):
    parser = parse(page)
    drawings = [attributes for tag, attributes in parser.tags if tag == "svg"]
    identifiers = {attributes["id"] for _, attributes in parser.tags if "id" in attributes}
    assert len(drawings) >= 9
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= identifiers
    assert page.count("<summary>Numbers as a table</summary>") == len(drawings)


def test_samples_are_named_as_such_and_reproducible(fit):
    inputs, targets = make_rows(3000, seed=3)
    found = gather_contents(fit, inputs, targets)
    text = render_page(found)
    assert "A random sample of 500 of 3,000 held-out rows" in text
    assert "between 1,000 of 3,000" in text
    assert len(text) < 300_000
    again = gather_contents(fit, inputs, targets)
    again.facts["Time to predict"] = found.facts["Time to predict"]  # the only thing that may differ
    assert render_page(again) == text


def test_training_curves_of_one_run_and_of_several(contents, fit, held_out):
    assert [(curve.panel, curve.values[-1]) for curve in contents.curves] == [("exact NLML per row", 0.2)]
    runs = {f"network {k}": [{"epoch": e, "noise_variance": 1.0 / e} for e in (1, 2, 3)] for k in (1, 2)}
    several = dataclasses.replace(fit, record={"history": runs})
    found = gather_contents(several, *held_out)
    assert [(curve.panel, curve.name) for curve in found.curves] == [
        ("noise variance", "network 1"),
        ("noise variance", "network 2"),
    ]
    assert "Training curve: noise variance" in render_page(found)


def test_an_evaluation_is_handed_over_and_not_measured_again(fit, training, held_out, monkeypatch):
    rows = {"training_inputs": training[0], "training_targets": training[1]}
    expected = gather_contents(fit, *held_out, **rows)
    evaluation = evaluate(fit, *held_out, training=training)

    def fail(*arguments, **options):
        raise AssertionError("measured again")

    for name in ("score", "predict_linear"):
        monkeypatch.setattr(f"finitegp.report.evaluation.{name}", fail)
    found = gather_contents(fit, *held_out, **rows, evaluation=evaluation)
    assert found.scores == expected.scores == evaluation.scores
    assert found.checkup == expected.checkup
    with pytest.raises(DataError, match="evaluation is of 250 rows, but there are 200 held-out rows"):
        gather_contents(fit, held_out[0][:200], held_out[1][:200], evaluation=evaluation)


def test_contents_are_json(contents):
    stored = json.dumps(contents.to_dict(), allow_nan=False)
    assert json.loads(stored)["scores"][0]["name"] == "this model"


# The files.


def test_template_and_stylesheet_are_in_the_package(page):
    templates = files("finitegp.report") / "templates"
    assert (templates / "report.css").read_text(encoding="utf-8").strip() in page
    # All text is escaped: nothing in the template says that it need not be.
    template = (templates / "report.html.j2").read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", template)


def test_write_is_whole_or_nothing_and_does_not_overwrite(contents, page, tmp_path, monkeypatch):
    path = write_report(contents, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="force=True"):
        write_report(contents, path)
    assert path.read_text() == "mine"

    def fail(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no space left"):
            write_report(contents, path, force=True)
    assert path.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert write_report(contents, path, force=True).read_text(encoding="utf-8") == page
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        write_report(contents, tmp_path / "none" / "report.html")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_report(contents, tmp_path, force=True)
