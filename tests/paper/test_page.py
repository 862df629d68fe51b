"""The page of results and its appendix: what is counted and shown of the reproduction, and where nothing was run."""

import random
from pathlib import Path

import pytest
from result_pages import appendix, line, section
from result_rows import make_peer, make_row

from paper.cells import PAPER_METHODS
from paper.complexity import complexity_section, fit_exponent
from paper.datasets import PAPER_DATASETS
from paper.page import render_page, share_sentence
from paper.published import load_published
from paper.reproduction import OWN, PARTS

ROOT = Path(__file__).resolve().parents[2]


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
    assert "| – | – | – |" not in text  # Lagged is there on all tables; the other two of ours are not run on all
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
