"""Which runs count, and how they compare with what was published."""

import csv
from collections import Counter
from pathlib import Path

import pytest
from result_rows import make_row

import paper
from paper.cells import KERNELS, PAPER_METHODS
from paper.published import Published, find_published, load_published, published_row
from paper.selection import Place, Verdict, compare, judge, select

PLACE = Place("linear", 32, "bike", "scgd")


# Which runs count.


def test_best_rate_is_chosen_by_nlml_split_by_split():
    rows = [
        make_row(nlml=-1.0, rmse=0.1, rate=1.0),
        make_row(nlml=-2.0, rmse=0.9, rate=3.0),  # lower NLML, though worse on test rows
        make_row(nlml=-5.0, rmse=0.3, split=1, rate=1.0),
        make_row(nlml=-4.0, rmse=0.2, split=1, rate=3.0),
    ]
    chosen = select(rows)[PLACE]
    assert chosen.average("nlml") == (-3.5, pytest.approx(4.5**0.5))
    assert chosen.average("rmse").mean == pytest.approx((0.9 + 0.3) / 2)
    assert chosen.rates == (1.0, 3.0)


def test_one_split_has_no_deviation():
    assert select([make_row(nlml=-1.25)])[PLACE].average("nlml") == (-1.25, None)


def test_seeds_are_not_selected_from():
    rows = [make_row(nlml=-1.0), make_row(nlml=-9.0, seed=1)]
    assert select(rows)[PLACE].average("nlml") == (-1.0, None)


def test_shorter_runs_do_not_count():
    assert select([make_row(nlml=-9.0, epochs=20), make_row(nlml=-1.0)])[PLACE].average("nlml").mean == -1.0
    assert select([make_row(nlml=-9.0, epochs=20)]) == {}


def test_settings_are_kept_apart():
    adam = make_row(nlml=-3.0, settings={"optimizer": "adam"})
    inducing = make_row(nlml=-4.0, settings={"protocol": "paper", "tracking_rate": 0.5})
    rows = [make_row(nlml=-1.0), adam, inducing]
    assert select(rows)[PLACE].average("nlml").mean == -1.0
    assert select(rows, {"optimizer": "adam"})[PLACE].average("nlml").mean == -3.0
    assert select([adam, inducing]) == {}


def test_float64_likelihood_counts():
    assert select([make_row(nlml=-1.0, nlml_float64=-1.5)])[PLACE].average("nlml").mean == -1.5


def test_bound_counts_where_there_is_no_exact_likelihood():
    row = make_row("svgp", -1.0, kernel="gaussian", nlml_float64=-5.0)
    assert select([row])[Place("gaussian", 32, "bike", "svgp")].average("nlml").mean == -1.0
    row = make_row("svgp", -1.0, negative_elbo=-5.0)
    assert select([row])[Place("linear", 32, "bike", "svgp")].average("nlml").mean == -1.0


def test_null_likelihood_is_not_selected_and_all_null_is_failed():
    rows = [make_row(nlml=None, rmse=0.01), make_row(nlml=-1.0, rmse=0.5, rate=3.0)]
    assert select(rows)[PLACE].average("rmse").mean == 0.5
    failed = select(rows[:1])
    assert (dict(failed[PLACE].runs), failed[PLACE].failed_splits, failed[PLACE].average("rmse")) == ({}, (0,), None)
    assert set(judge(failed).values()) == {Verdict.WORSE}


def test_repeated_lines_count_once():
    assert select([make_row(), make_row()])[PLACE].average("nlml") == (-1.0, None)
    assert select([make_row(), make_row()])[PLACE].rates == (1.0,)


def test_whole_means_all_splits_and_all_rates():
    rows = [make_row(rate=rate) for rate in (0.1, 0.3, 1.0)] + [make_row(split=split) for split in range(1, 5)]
    assert select(rows)[PLACE].is_whole
    assert not select(rows[1:])[PLACE].is_whole
    assert not select(rows[:-1])[PLACE].is_whole
    failed = make_row(nlml=None, split=4)  # was run, though without success
    assert select([*rows[:-1], failed])[PLACE].is_whole


# What was published.


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("nlml", "linear", 32, "pol", "svgp"), (1.643, 0.108)),
        (("rmse", "gaussian", 64, "bike", "minimax"), (0.101, 0.008)),
        (("nlml", "gaussian", 16, "keggundirected", "scgd"), (-0.714, 0.000)),
    ],
)
def test_published_cells(key, expected):
    assert find_published(*key) == expected
    with (Path(paper.__file__).parent / "published.csv").open() as file:
        names = ("metric", "kernel", "batch_size", "dataset", "method")
        (row,) = [row for row in csv.DictReader(file) if [row[name] for name in names] == [str(part) for part in key]]
    assert (float(row["mean"]), float(row["std"])) == expected


def test_all_published_cells_are_there():
    assert len(load_published()) == 432
    assert find_published("nlml", "linear", 256, "bike", "scgd") is None
    assert published_row("nlml", "linear", 32, "yacht") == {}


def test_published_wins_are_those_printed_bold_in_the_paper():
    found = {(metric, kernel): Counter() for metric in ("nlml", "rmse") for kernel in KERNELS}
    for metric, kernel, size, dataset in dict.fromkeys(key[:4] for key in load_published()):
        row = published_row(metric, kernel, size, dataset)
        best = min(cell.mean for cell in row.values())
        found[metric, kernel].update(method for method, cell in row.items() if cell.mean == best)
    assert {key: [counts[method] for method in PAPER_METHODS] for key, counts in found.items()} == {
        ("nlml", "linear"): [15, 9, 6, 0],
        ("nlml", "gaussian"): [8, 14, 11, 5],
        ("rmse", "linear"): [9, 9, 6, 10],
        ("rmse", "gaussian"): [13, 11, 13, 5],
    }


@pytest.mark.parametrize(
    ("value", "published", "expected"),
    [
        (0.80, (1.0, 0.1), Verdict.WITHIN),
        (0.79, (1.0, 0.1), Verdict.BETTER),
        (1.21, (1.0, 0.1), Verdict.WORSE),
        (0.1804, (0.178, 0.001), Verdict.WITHIN),  # 0.180 in the paper's decimals
        (0.1806, (0.178, 0.001), Verdict.WORSE),
        (0.7162, (0.714, 0.000), Verdict.WITHIN),  # a deviation printed as zero is at least the rounding
        (0.7167, (0.714, 0.000), Verdict.WORSE),
    ],
)
def test_comparison_with_a_published_cell(value, published, expected):
    assert compare(value, Published(*published)) is expected


def test_verdicts_are_on_published_cells_that_were_run():
    # Published: NLML -1.454 ± 0.264, RMSE 0.095 ± 0.007.
    rows = [make_row(nlml=-1.5, rmse=0.2), make_row(batch_size=256), make_row(dataset="yacht"), make_row("lagged")]
    assert judge(select(rows)) == {("nlml", *PLACE): Verdict.WITHIN, ("rmse", *PLACE): Verdict.WORSE}
