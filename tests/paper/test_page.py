"""The page of results and its appendix: what is counted, compared and shown, and where nothing was run."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from result_rows import make_peer, make_row
from typer.testing import CliRunner

from paper.__main__ import app
from paper.appendix import render_appendix
from paper.cells import PAPER_METHODS
from paper.complexity import complexity_section, fit_exponent
from paper.contenders import find_contenders
from paper.datasets import PAPER_DATASETS
from paper.outcome import Outcome
from paper.page import render_page, share_sentence
from paper.page_command import render
from paper.predictions import Predictions, save_predictions
from paper.published import load_published
from paper.reproduction import OWN, PARTS
from paper.selection import Cell
from paper.store import CELLS

ROOT = Path(__file__).resolve().parents[2]


def appendix(rows, results=Path("nowhere"), **options):
    return render_appendix(rows, results=results, **options)


def section(text, heading):
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def line(text, *starts):
    """The cells of the only line of a table that begins with these cells."""
    (found,) = [found for found in text.splitlines() if found.startswith("| " + " | ".join(starts) + " |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def write(directory, rows, name=CELLS):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def everything():
    """Every cell of the reproduction as it was published, and the default beside a peer on all tables."""
    rows = []
    for part in PARTS:
        for cell in part.search() + [
            part._cell(d, m, s, 0.3) for d in part.datasets for m in part.methods for s in (1, 2)
        ]:
            key = ("nlml", cell.kernel, cell.batch_size, cell.dataset, cell.method)
            nlml = load_published()[key].mean if key in load_published() else 0.0
            rows.append(make_row(nlml=nlml) | {"negative_elbo": nlml} | cell.to_row())
    tables = [*PAPER_DATASETS, "autompg", "concrete", "energy", "housing", "wine", "yacht"]
    splits = [(name, split) for name in tables for split in range(6)]
    return rows + [make_peer(name, dataset=d, split=s) for name in ("auto", "mlp", "ngboost") for d, s in splits]


# What was reproduced.


def test_nothing_run_yet():
    text = render_page([make_peer()])
    assert "None has been rerun at full length yet" in text
    assert "| method |" not in text
    assert "](figures/" not in text
    assert "Not yet run: 216 of 216 places" in appendix([make_peer()])
    assert "| kernel |" not in appendix([make_peer()])
    expected = "The full-length rerun of the paper's tables is under way: 0 of their 432 cells are there."
    assert share_sentence([make_peer()]) == expected


def test_reproduced_cells_are_counted_by_method():
    # Published at 32: scgd on bike -1.454 ± 0.264, on pol 2.016 ± 0.126, on kin40k -1.760 ± 0.090.
    rows = [make_row(nlml=-1.5), make_row(nlml=2.2, dataset="pol"), make_row(nlml=-1.0, dataset="kin40k")]
    # bsgd on bike at 128: NLML -1.311 ± 0.126, RMSE 0.056 ± 0.004; one of the cells that choices were searched on.
    rows.append(make_row("bsgd", -1.9, batch_size=128, rmse=0.06))
    text = render_page(rows)
    assert line(text, "NLML", "scgd") == ["NLML", "scgd", "3", "2", "0", "1", "51"]
    assert line(text, "NLML", "bsgd") == ["NLML", "bsgd", "1", "0", "1", "0", "53"]
    assert line(text, "NLML", "minimax") == ["NLML", "minimax", "0", "0", "0", "0", "54"]
    assert line(text, "RMSE", "bsgd") == ["RMSE", "bsgd", "1", "1", "0", "0", "53"]
    # RMSE 0.1 of scgd: bike 0.095 ± 0.007 within, pol far better, kin40k 0.068 ± 0.005 worse.
    counts = "4 (50 %) lie within two published standard deviations, 2 are better, 2 worse"
    assert "**8 were rerun** with 100 epochs of AdaDelta by the [paper's protocol](reproducing.md), 0 of them" in text
    assert f"**{counts}.** Not run: 48 cells of `slice`, 376 others." in text
    assert "2 of the cells served to find choices that the paper leaves open; of the 6 others 3 (50 %)" in text
    rerun = "Of the 432 cells of the paper's tables 8 were rerun with 100 epochs, 0 of them on all five splits"
    assert share_sentence(rows) == f"{rerun}: {counts}."


def test_whole_cells_are_counted():
    rows = [make_row(rate=rate) for rate in (0.1, 0.3, 1.0)] + [make_row(split=split) for split in range(1, 5)]
    assert "2 of them on all five splits with the whole search" in render_page(rows)


def test_runs_by_another_protocol_are_not_counted():
    rows = [make_row(settings={"optimizer": "adadelta"}), make_row(epochs=20)]
    assert "None has been rerun" in render_page(rows)
    assert "| kernel |" not in appendix(rows)


def test_cells_of_the_appendix():
    rows = [
        make_row(nlml=-1.5, rmse=0.2, rate=0.3),
        make_row(nlml=-1.4, rate=0.1),
        make_row(nlml=-1.7, rmse=0.3, split=1, rate=0.3),
        make_row(nlml=None, dataset="pol"),
        make_row(batch_size=256),  # the paper prints no such table
    ]
    text = appendix(rows)
    expected = ["-1.454 ± 0.264", "-1.600 ± 0.141 ≈", "0.095 ± 0.007", "0.250 ± 0.071 ▼", "2", "0.3 (2)"]
    assert line(text, "linear", "32", "bike", "scgd")[4:] == expected
    assert line(text, "linear", "32", "pol", "scgd")[5::2] == ["*failed*", "*failed*", "–"]
    assert line(text, "linear", "256", "bike", "scgd")[4:] == ["–", "-1.000", "–", "0.100", "1", "1 (1)"]
    assert "Not yet run: 214 of 216 places" in text


def test_bound_is_marked_only_where_it_is_one():
    rows = [make_row("svgp", -1.0, kernel="gaussian", batch_size=16), make_row("svgp", -0.9)]
    text = appendix(rows)
    assert line(text, "linear", "32", "bike", "svgp")[5] == "-0.900 ≈"
    assert line(text, "gaussian", "16", "bike", "svgp")[5] == "-1.000 ≈‡"
    assert text.count("‡") == 2  # the figure and the legend


def test_figures_are_of_kernels_that_were_run():
    assert "figures/reproduction-linear.png" in render_page([make_row()])
    assert "gaussian.png" not in render_page([make_row()])
    assert "figures/reproduction-gaussian.png" in render_page([make_row(kernel="gaussian")])
    assert "](figures/" not in render_page([make_row("lagged"), make_row(dataset="yacht"), make_row(batch_size=512)])


# Ours.


def test_ours_beside_the_best_published_and_the_best_reproduced():
    own = {"settings": dict(OWN), "rate": 1e-3}
    rows = [
        make_row("scgd", -1.5),
        make_row("bsgd", -1.2),
        make_row("lagged", -1.6),
        make_row("lagged", -2.0, **own),
        make_row("lagged", -1.8, split=1, **own),
        make_row("lagged", -1.8, dataset="pol", **own),
        make_row("lagged", -1.8, batch_size=64, **own),  # not among those of the compact table
    ]
    text = section(render_page(rows), "Ours at the same number of epochs")
    published = "-1.482 ± 0.249 (minimax)"
    assert "minimax-stable |" not in text  # nobody ran it: no column
    assert line(text, "32", "bike")[2:] == [published, "-1.500 (scgd)", "-1.600", "**-1.900 ± 0.141**"]
    assert line(text, "32", "pol")[3:] == ["–", "–", "**-1.800**"]
    assert "| 64 |" not in text
    cells = section(appendix(rows), "Ours")
    settings = "adam, block 20, weight update train, window 1000"
    assert line(cells, "linear", "32", "bike", "lagged", settings)[5:] == [
        "-1.900 ± 0.141",
        "0.100 ± 0.000",
        "2",
        "0.001 (1)",
    ]
    assert line(cells, "linear", "32", "bike", "lagged", "protocol paper")[5:7] == ["-1.600", "0.100"]
    assert line(cells, "linear", "64", "bike", "lagged", settings)[5] == "-1.800"
    assert "## Ours" not in render_page([make_row()])
    assert "## Ours" not in appendix([make_row()])


# The default and the peers.


def test_the_default_beside_the_best_peer():
    rows = [
        make_row("lagged", rmse=0.01, nlpd=-9.0),  # not a peer
        make_peer("mlp", rmse=0.1, nlpd=None, crps=0.05),
        make_peer("ngboost", rmse=0.2, nlpd=-0.3, crps=0.06),
        make_peer("auto", rmse=0.15, nlpd=-0.4, crps=0.05, coverage={"0.5": 0.6, "0.9": 0.88, "0.95": 0.95}),
        make_peer("auto", rmse=0.05, nlpd=-9.0, settings={"effort": "low"}),
    ]
    text = section(render_page(rows), "The default beside the peers")
    expected = [
        "0.1500",
        "0.1000 (mlp)",
        "**-0.400**",
        "-0.300 (ngboost)",
        "**0.0500**",
        "0.0500 (mlp)",
        "60 / 88 / 95",
    ]
    assert line(text, "bike", "0")[2:] == expected
    assert "in RMSE on 0, in NLPD on 1 and in CRPS on 1 of 1 tables" in text
    assert "hold 60.0, 88.0, 95.0 % of test rows" in text
    assert "not be lowest in NLPD on 0 of these 1 tables" in text
    rows[3]["gaussian_nlpd"] = -0.2
    assert "not be lowest in NLPD on 1 of these 1 tables" in render_page(rows)
    assert "The default beside" not in render_page(rows[:3])
    assert "The default beside" not in render_page(rows[3:])


def test_small_tables_are_averaged_over_five_splits():
    rows = [
        make_peer(method, dataset="yacht", split=split, rmse=base + split, nlpd=base - split)
        for method, base in (("auto", 1.0), ("lightgbm", 2.0))
        for split in range(5)
    ]
    rows += [make_peer("ngboost", dataset="yacht", split=0, nlpd=-9.0)]  # one split is not enough
    rows += [make_peer("auto", dataset="yacht", split=7, nlpd=-9.0)]
    shown = line(section(render_page(rows), "The default beside the peers"), "yacht", "0 to 4")
    assert shown[2:6] == ["**3.0000**", "4.0000 (lightgbm)", "**-1.000**", "0.000 (lightgbm)"]
    text = section(appendix(rows), "Peers")
    assert line(text, "yacht", "*auto*")[2:6] == ["**3.000**", "**-1.000**", "**0.050**", "**91.0 %**"]
    assert line(text, "yacht", "lightgbm")[2:4] == ["4.000", "0.000"]
    assert "ngboost" not in text


def test_peers_with_null_values_and_best_marked():
    rows = [
        make_peer(rmse=0.1, nlpd=None, crps=None, coverage=None, largest_standardized_residual=None, seconds=None),
        make_peer("auto", rmse=0.3, nlpd=-0.4, gaussian_nlpd=-0.25, peak_memory_bytes=None),
        make_peer("ngboost", rmse=0.2, coverage={"0.9": 0.8}),
        make_peer("mlp", split=1),
    ]
    text = section(appendix(rows), "Peers")
    assert line(text, "bike", "lightgbm")[2:] == ["**0.100**", "–", "–", "–", "–", "–", "100", "0"]
    assert line(text, "bike", "ngboost")[2:] == [
        "0.200",
        "**-0.500**",
        "**0.050**",
        "80.0 %",
        "4.0",
        "12.0",
        "100",
        "0",
    ]
    expected = ["0.300", "-0.400 (-0.250)", "**0.050**", "**91.0 %**", "4.0", "12.0", "–", "0"]
    assert line(text, "bike", "*auto*")[2:] == expected
    assert "mlp" not in text.split("|", 1)[1]
    assert "Last column" not in text


def test_settings_of_peers_are_kept_apart_and_the_first_seed_counts():
    rows = [make_peer(settings={"trees": count}) for count in (10, 20)] + [make_peer("auto", seed=1, rmse=9.0)]
    (contenders,) = find_contenders([*rows, make_peer("auto", seed=0)]).values()
    assert [contender.name for contender in contenders] == ["auto", "lightgbm, trees 10", "lightgbm, trees 20"]
    assert contenders[0].mean("rmse") == 0.1


def test_paired_differences_where_predictions_are_stored(tmp_path):
    import numpy as np

    rows = [make_peer("auto"), make_peer("mlp"), make_peer("ngboost"), make_peer("auto", dataset="pol")]
    for row, density in ((rows[0], [0.0, 1.0, 2.0]), (rows[1], [-1.0, -1.0, -1.0])):
        outcome = Outcome(np.zeros(3), np.ones(3), 1.0, log_density=np.array(density))
        save_predictions(Cell.from_row(row), Predictions.of(outcome, np.zeros(3)), tmp_path)
    text = section(appendix(rows, tmp_path), "Peers")
    assert "Last columns" in text
    # The same means and deviations, other densities.
    assert line(text, "bike", "mlp")[-3:] == ["2.0000 ± 0.5774", "0.0000 ± 0.0000", "0.0000 ± 0.0000"]
    assert line(text, "bike", "ngboost")[-3:] == ["–"] * 3
    assert line(text, "bike", "*auto*")[-3:] == ["–"] * 3


def test_paired_differences_over_splits_add_their_squared_errors(tmp_path):
    import numpy as np

    targets = np.random.default_rng(0).normal(size=(2, 40))
    rows, losses = [], []
    for method, width in (("auto", 1.0), ("mlp+t", 2.0)):
        for split in range(2):
            row = make_peer(method, split=split)
            outcome = Outcome(np.zeros(40), np.full(40, width), 1.0)
            save_predictions(Cell.from_row(row), Predictions.of(outcome, targets[split]), tmp_path)
            rows.append(row)
        losses.append(0.5 * (targets / width) ** 2 + np.log(width))
    difference = losses[1] - losses[0]
    error = np.sqrt(np.sum(difference.var(axis=1, ddof=1) / 40)) / 2
    shown = line(section(appendix(rows, tmp_path), "Peers"), "bike", "mlp+t")
    assert shown[-4:-2] == ["0 to 1", f"{difference.mean():.4f} ± {error:.4f}"]


def test_treated_peers_have_columns_of_their_own():
    rows = [
        make_peer("auto", rmse=0.2, nlpd=-0.4, crps=0.05),
        make_peer("mlp", rmse=0.3, nlpd=-0.3, crps=0.07),
        make_peer("mlp+t", rmse=0.1, nlpd=-0.6, crps=0.06),
        make_peer("auto", rmse=0.01, nlpd=-9.0, settings={"gp": False}),
    ]
    text = section(render_page(rows), "The default beside the peers")
    shown = line(text, "bike", "0")[2:11]
    assert shown[:3] == ["0.2000", "0.3000 (mlp)", "0.1000 (mlp+t)"]
    assert shown[3:6] == ["-0.400", "-0.300 (mlp)", "-0.600 (mlp+t)"]
    assert shown[6:] == ["**0.0500**", "0.0700 (mlp)", "0.0600 (mlp+t)"]
    assert "one treatment, the same for all" in text
    assert "keep the predictive distribution" not in text
    assert "*auto, gp False*" in section(appendix(rows), "Peers")


def test_shortened_runs_are_marked():
    rows = [make_peer("auto"), make_peer("tabm", shortened=True), make_peer("mlp", shortened=False)]
    text = section(appendix(rows), "Peers")
    assert [line(text, "bike", name)[7] for name in ("tabm", "mlp")] == ["12.0*", "12.0"]


def test_other_splits_are_shown_beside_split_0_with_what_they_share():
    rows = [make_peer("auto", split=split, rmse=0.1 * (split + 1), nlpd=float(split)) for split in (0, 5, 7)]
    rows += [make_peer("auto", split=6, settings={"effort": "low"}), make_peer("mlp"), make_peer("mlp", split=8)]
    text = section(render_page(rows), "The default beside the peers")
    assert "bike, split 5: 0.6000 / 5.000 (0.1000 / 0.000); bike, split 7: 0.8000 / 7.000 (0.1000 / 0.000). " in text
    assert "split 6" not in text
    assert "ten-fold partition" in text
    assert "ten-fold partition" not in render_page([rows[0], make_peer("mlp")])


def test_ablations_have_a_table_of_their_own():
    rows = [
        make_peer("auto", rmse=0.5, nlpd=-1.0, gaussian_nlpd=-0.875),
        make_peer("auto", rmse=0.5, nlpd=-0.75, settings={"input_noise": False}),
        make_peer("auto", rmse=0.6, nlpd=-0.5, settings={"effort": "low"}),
        make_peer("auto", dataset="pol", rmse=2.0, nlpd=0.125, settings={"input_noise": False}),
    ]
    text = appendix(rows)
    pieces = section(text, "Pieces of the default")
    assert line(pieces, "the default")[1:] == ["0.5000 / -1.000", "–"]
    assert line(pieces, "the same, as Gaussian")[1:] == ["0.5000 / -0.875", "–"]
    assert line(pieces, "input noise False")[1:] == ["0.5000 / -0.750", "2.0000 / 0.125"]
    assert line(pieces, "effort low")[1:] == ["0.6000 / -0.500", "–"]
    # Presets are contenders beside the peers, ablations are not.
    peers = section(text, "Peers")
    assert "effort low" in peers
    assert "input noise" not in peers
    assert "Pieces" not in appendix(rows[:1])


def test_appendix_without_peers_or_complexity_leaves_these_sections_out():
    text = appendix([make_row()])
    assert "## Peers" not in text
    assert "Cost of a step" not in text
    assert "## Peers" in appendix([make_peer()])


def test_complexity_exponents():
    sizes = [16, 32, 64, 128]
    assert fit_exponent(sizes, [5.0 * size**2 for size in sizes]) == pytest.approx(2.0)
    assert fit_exponent([16], [1.0]) is None
    shared = {"commit": "abc", "torch": "2", "threads": 1, "date": "2000-01-01", "features_by": "network"}
    rows = [
        {"sweep": "batch_size", "method": "scgd", "batch_size": size, "features": 128, "milliseconds": 0.1 * size}
        | {"peak_bytes": 1e4 * size**2}
        | shared
        for size in sizes
    ]
    text = "\n".join(complexity_section(rows))
    assert "| scgd | 1.60 | 3.20 | 6.40 | 12.80 | 1.00 | 1.00 | d³ + b d² |" in text
    assert "| 2.00 | 2.00 | d² + b d |" in text
    assert "\n".join(complexity_section(rows)) in appendix([make_row()], complexity=rows)


# The whole.


def test_page_is_short_even_with_everything():
    reading = (ROOT / "docs" / "results-reading.md").read_text(encoding="utf-8")
    assert reading.count("\n") <= 40
    rows = everything()
    text = render_page(rows, reading=reading)
    assert text.count("\n") <= 150
    assert "| – | – |" not in text
    # What was published is within two deviations of itself; RMSE is the same everywhere.
    assert line(text, "NLML", "scgd")[2:6] == ["36", "36", "0", "0"]


def test_rendering_does_not_depend_on_the_order_of_rows():
    generator = random.Random(0)
    rows = [
        make_row(method, generator.uniform(-2, 2), dataset=dataset, split=split, rate=rate)
        for method in (*PAPER_METHODS, "lagged")
        for dataset in ("bike", "pol", "yacht")
        for split in range(2)
        for rate in (0.3, 1.0)
    ]
    rows += [make_row("lagged", generator.uniform(-2, 2), settings=dict(OWN), rate=rate) for rate in (1e-3, 3e-3)]
    rows += [make_peer(method, rmse=generator.random()) for method in ("mlp", "laplace", "auto")]
    rows += [make_peer("auto", rmse=generator.random(), settings={"input_noise": value}) for value in (False, True)]
    first = render_page(rows), appendix(rows)
    for _ in range(3):
        generator.shuffle(rows)
        assert (render_page(rows), appendix(rows)) == first


# The commands.


def run(*arguments):
    return CliRunner().invoke(app, ["page", *map(str, arguments)])


def test_command_writes_page_appendix_figures_and_the_sentence_of_readme(tmp_path):
    rows = [make_row("scgd", batch_size=size, split=split) for size in (32, 64) for split in range(2)]
    write(tmp_path / "results", [*rows, make_row(kernel="gaussian"), make_row("lagged"), make_peer()])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results-reading.md").write_text("## By hand\n\nSome words.\n")
    (tmp_path / "README.md").write_text("Before. <!-- reproduced -->Old.<!-- /reproduced --> After.\n")
    arguments = ("--results", tmp_path / "results", "--out", tmp_path / "docs")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "docs" / "results.md").read_text()
    assert text.startswith("<!-- Generated by `python -m paper page`")
    assert "## By hand\n\nSome words.\n" in text
    figures = sorted(path.name for path in (tmp_path / "docs" / "figures").iterdir())
    assert figures == ["reproduction-gaussian.png", "reproduction-linear.png"]
    assert all(f"(figures/{name})" in text for name in figures)
    readme = (tmp_path / "README.md").read_text()
    assert re.fullmatch(r"Before. <!-- reproduced -->Of the 432 .*worse\.<!-- /reproduced --> After\.\n", readme)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    for name in figures:
        (tmp_path / "docs" / "figures" / name).unlink()
    write(tmp_path / "results", [make_peer(), *reversed(rows), make_row("lagged"), make_row(kernel="gaussian")])
    assert run(*arguments).exit_code == 0
    del before[tmp_path / "results" / CELLS]
    assert {path: path.read_bytes() for path in before} == before


def test_command_without_results_says_what_to_do(tmp_path):
    result = run("--results", tmp_path / "nothing", "--out", tmp_path / "docs")
    assert result.exit_code == 1
    assert "There are no results in" in result.output
    assert "python -m paper run" in result.output
    assert not (tmp_path / "docs").exists()


def test_command_names_a_broken_line(tmp_path):
    write(tmp_path, [make_row()])
    (tmp_path / CELLS).write_text('{"broken\n' + (tmp_path / CELLS).read_text())
    result = run("--results", tmp_path, "--out", tmp_path / "docs", "--no-figures")
    assert result.exit_code == 1
    assert "line 1 is not JSON" in result.output


def test_command_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    write(tmp_path, [make_row()])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--results", tmp_path, "--out", tmp_path / "docs")
    assert result.exit_code == 1
    assert "finitegp[plot]" in result.output
    assert run("--results", tmp_path, "--out", tmp_path / "docs", "--no-figures").exit_code == 0


def test_pages_and_readme_are_those_of_the_stored_lines():
    texts = render(ROOT / "results", ROOT / "docs")
    assert {path.name for path in texts} == {"results.md", "results-cells.md", "README.md"}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run python -m paper page"
    sentence = share_sentence([json.loads(row) for row in (ROOT / "results" / CELLS).read_text().splitlines()])
    assert sentence in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_cell_is_rerun_beside_what_is_stored_and_published(uci_dir, tmp_path):
    arguments = ["yacht", "bsgd", "--rate", "0.3", "--epochs", "1", "--data-dir", uci_dir, "--results", tmp_path]
    result = CliRunner().invoke(app, ["cell", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("yacht/0 bsgd linear batch 32 lr 0.3, 1 epochs: NLML, RMSE\nnow ")
    assert "stored" not in result.output
    assert "published" not in result.output
    assert not list(tmp_path.iterdir())
    stored = make_row("bsgd", -1.25, dataset="yacht", epochs=1, rate=0.3, rmse=0.5)
    write(tmp_path, [stored, make_row("bsgd", -7.0, dataset="yacht", epochs=1, rate=0.1)])
    again = CliRunner().invoke(app, ["cell", *map(str, arguments)])
    assert "stored     -1.2500  0.5000\n" in again.output
    assert again.output.splitlines()[1] == result.output.splitlines()[1]  # the same digits


@pytest.mark.parametrize("arguments", [["moon", "scgd"], ["bike", "magic"], ["bike", "scgd", "--kernel", "cubic"]])
def test_cell_refuses_what_it_does_not_know(arguments):
    result = CliRunner().invoke(app, ["cell", *arguments, "--rate", "0.3"])
    assert result.exit_code == 2
    assert "is not known; choose from" in re.sub(r"[│\s]+", " ", result.output)
