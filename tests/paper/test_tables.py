"""The page of results: which runs count, what is compared with what, and what is shown where nothing is."""

import csv
import json
import random
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import paper
from paper.__main__ import app
from paper.cells import PAPER_METHODS
from paper.comparison import Verdict, compare, count_wins, table_rows
from paper.complexity import complexity_section, fit_exponent
from paper.page import render_page
from paper.published import Published, find_published, load_published, published_row
from paper.selection import METRICS, Place, select, select_contenders, select_variants
from paper.store import CELLS

KERNELS = ("linear", "gaussian")
PLACE = Place("linear", 32, "bike", "scgd")


def make_row(method="scgd", nlml=-1.0, *, dataset="bike", split=0, kernel="linear", batch_size=32, epochs=100, **other):
    settings = {"optimizer": "adadelta" if method in PAPER_METHODS else "adam", "learning_rate": 1.0}
    bound = method == "svgp" and kernel == "gaussian"
    figures = {"negative_elbo": nlml} if bound else {"nlml": nlml, "nlml_float64": nlml}
    return {
        "dataset": dataset,
        "split": split,
        "method": method,
        "kernel": kernel,
        "batch_size": batch_size,
        "epochs": epochs,
        "seed": other.pop("seed", 0),
        "settings": settings | other.pop("settings", {}),
        "rmse": 0.1,
        "nlpd": -0.5,
        "crps": 0.05,
        "coverage": {"0.5": 0.5, "0.9": 0.91, "0.95": 0.95},
        "largest_standardized_residual": 4.0,
        "seconds": 12.0,
        "peak_memory_bytes": 500_000_000,
        "memory_before_bytes": 400_000_000,
        "diverged": False,
        "commit": "abc",
        "torch": "2",
        "python": "3",
        "date": "2000-01-01",
        **figures,
        **other,
    }


def make_peer(method="lightgbm", **other):
    row = make_row(method, None) | {"kernel": None, "batch_size": None, "epochs": None, "settings": {}}
    return row | other


def page(rows, **options):
    return render_page(rows, **({"metrics": METRICS, "kernels": KERNELS} | options))


def line(text, *starts):
    """The cells of the only line of a table that begins with these cells."""
    found = [found for found in text.splitlines() if found.startswith("| " + " | ".join(starts) + " |")]
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def write(directory, rows, name=CELLS):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


# Which runs count.


def test_best_setting_is_chosen_by_nlml_split_by_split():
    rows = [
        make_row(nlml=-1.0, rmse=0.1, settings={"learning_rate": 1.0}),
        make_row(nlml=-2.0, rmse=0.9, settings={"learning_rate": 3.0}),  # lower NLML, though worse on test rows
        make_row(nlml=-5.0, rmse=0.3, split=1, settings={"learning_rate": 1.0}),
        make_row(nlml=-4.0, rmse=0.2, split=1, settings={"learning_rate": 3.0}),
    ]
    chosen = select(rows)[PLACE]
    assert chosen.average("nlml")[:] == (-3.5, pytest.approx(4.5**0.5), 2)
    assert chosen.average("rmse").mean == pytest.approx((0.9 + 0.3) / 2)
    assert chosen.num_settings == 2


def test_one_split_has_no_deviation():
    assert select([make_row(nlml=-1.25)])[PLACE].average("nlml")[:] == (-1.25, None, 1)
    assert line(page([make_row(nlml=-1.25)]), "bike", "here")[3] == "-1.250 ≈"


def test_seeds_are_averaged_not_selected():
    rows = [
        make_row(nlml=-3.0, seed=0, settings={"learning_rate": 1.0}),
        make_row(nlml=-1.0, seed=1, settings={"learning_rate": 1.0}),
        make_row(nlml=-2.5, seed=0, settings={"learning_rate": 3.0}),
        make_row(nlml=-2.5, seed=1, settings={"learning_rate": 3.0}),
    ]
    assert select(rows)[PLACE].average("nlml").mean == -2.5


def test_longest_runs_count_and_lengths_are_not_mixed():
    rows = [make_row(nlml=-9.0, epochs=20, split=split) for split in range(3)] + [make_row(nlml=-1.0, epochs=40)]
    chosen = select(rows)[PLACE]
    assert (chosen.epochs, sorted(chosen.runs), chosen.average("nlml").mean) == (40, [0], -1.0)
    assert line(page(rows), "bike", "here")[-2:] == ["1", "40 of 100"]


def test_float64_likelihood_counts():
    chosen = select([make_row(nlml=-1.0, nlml_float64=-1.5)])[PLACE]
    assert chosen.average("nlml").mean == -1.5


def test_null_likelihood_is_not_selected_and_all_null_is_failed():
    rows = [make_row(nlml=None, rmse=0.01), make_row(nlml=-1.0, rmse=0.5, settings={"learning_rate": 3.0})]
    assert select(rows)[PLACE].average("rmse").mean == 0.5
    failed = select(rows[:1])[PLACE]
    assert (dict(failed.runs), failed.failed_splits, failed.average("rmse")) == ({}, (0,), None)
    assert line(page(rows[:1]), "bike", "here")[3] == "*failed*"


def test_other_optimizers_count_only_where_the_protocol_was_not_run():
    adam = make_row(nlml=-3.0, settings={"optimizer": "adam"})
    assert select([make_row(nlml=-1.0), adam])[PLACE].average("nlml").mean == -1.0
    assert select([adam])[PLACE].average("nlml").mean == -3.0
    assert line(page([adam]), "bike", "here")[3] == "-3.000 ▲†"
    ((words, variant),) = select_variants([make_row(nlml=-1.0), adam])
    assert (words, variant.average("nlml").mean) == ("adam", -3.0)
    assert "| bike | linear | 32 | scgd | adam | -3.000 |" in page([make_row(nlml=-1.0), adam])


def test_repeated_lines_count_once():
    assert len(select([make_row(), make_row()])[PLACE].runs[0]) == 1


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
    counts = {
        (metric, kernel): count_wins(table_rows({}, metric, kernel)).best_published
        for metric in ("nlml", "rmse")
        for kernel in KERNELS
    }
    found = {key: [value[method] for method in PAPER_METHODS] for key, value in counts.items()}
    assert found == {
        ("nlml", "linear"): [15, 9, 6, 0],
        ("nlml", "gaussian"): [8, 14, 11, 5],
        ("rmse", "linear"): [9, 9, 6, 10],
        ("rmse", "gaussian"): [13, 11, 13, 5],
    }


@pytest.mark.parametrize(
    ("value", "published", "expected"),
    [
        (0.90, (1.0, 0.1), Verdict.WITHIN),
        (0.89, (1.0, 0.1), Verdict.BETTER),
        (1.11, (1.0, 0.1), Verdict.WORSE),
        (0.1794, (0.178, 0.001), Verdict.WITHIN),  # 0.179 in the paper's decimals
        (0.7145, (0.714, 0.000), Verdict.WITHIN),  # a deviation printed as zero is at least the rounding
    ],
)
def test_comparison_with_a_published_cell(value, published, expected):
    assert compare(value, Published(*published)) is expected


# Who is best.


def test_win_counts_of_a_small_example():
    rows = [
        # bike at 32: the best published is -1.482 ± 0.249.
        make_row("scgd", -1.5),
        make_row("bsgd", -1.2),
        make_row("lagged", -2.0),
        # pol at 32: the best published is 1.643 ± 0.108.
        make_row("scgd", 1.9, dataset="pol"),
        make_row("bsgd", 1.9004, dataset="pol"),
        make_row("lagged", 1.95, dataset="pol"),
        # kin40k at 32: only one method, so nobody is best; the best published is -1.760 ± 0.090.
        make_row("lagged", -1.7, dataset="kin40k"),
    ]
    counts = count_wins(table_rows(select(rows), "nlml", "linear"))
    assert counts.rows == 2
    assert counts.best_here == {"lagged": 1, "scgd": 1, "bsgd": 1}  # equal to three decimals: both win
    assert counts.against_published["lagged"] == {Verdict.BETTER: 1, Verdict.WORSE: 1, Verdict.WITHIN: 1}
    assert counts.against_reproduced["lagged"] == {"lower": 1, "higher": 1}
    assert counts.against_published["lagged-input-noise"] == {}
    text = page(rows)
    assert "| NLML, linear | 2 | 0 | 1 | 0 | 1 | 1 | 0 |" in text
    assert "| NLML, linear | lagged | 3 | 1 | 1 | 1 |" in text
    assert "| NLML, linear | lagged | 2 | 1 | 0 | 1 |" in text
    assert "at or below the best published mean in 1 of 3 tables: bike (lagged -2.000 against -1.482)." in text


# What is shown.


def test_missing_cells_are_shown_as_missing():
    text = page([make_row(nlml=-1.5)])
    assert line(text, "bike", "here") == ["bike", "here", "–", "-1.500 ≈", "–", "–", "–", "–", "1", "100"]
    assert line(text, "elevators", "here")[2:] == ["–"] * 8
    assert line(text, "slice", "here")[2:8] == ["not run"] * 6
    published = line(text, "bike", "published")
    assert published[2:6] == ["**-1.482 ± 0.249**", "-1.454 ± 0.264", "-0.895 ± 0.296", "-1.167 ± 0.701"]


def test_differing_epochs_and_splits_are_named():
    rows = [make_row(method) for method in ("minimax", "scgd", "bsgd")] + [make_row("svgp", epochs=30)]
    rows += [make_row("scgd", split=1)]
    assert line(page(rows), "bike", "here")[-2:] == ["1; scgd 2", "100; svgp 30 of 100"]


def test_bound_is_marked_only_where_it_is_one():
    rows = [make_row("svgp", -1.0, kernel="gaussian", batch_size=16), make_row("svgp", -0.9)]
    text = page(rows)
    assert line(text, "bike", "here")[4] == "-0.900 ≈"
    assert "-1.000 ▼‡" in text
    assert text.count("‡") == 2  # the figure and the legend


def test_reading_counts_reproduced_cells():
    # Published: scgd on bike -1.454 ± 0.264, on pol 2.016 ± 0.126, on kin40k -1.760 ± 0.090.
    rows = [make_row(nlml=-1.5), make_row(nlml=2.2, dataset="pol"), make_row(nlml=-1.0, dataset="kin40k")]
    text = page(rows, metrics=["nlml"])
    assert "| NLML, linear | scgd | 3 | 1 | 2 | 0 | 1 |" in text
    assert "of 3 cells 1 lie within one published standard deviation and 2 within two" in text
    assert "scgd on kin40k at 32 (-1.000 against -1.760 ± 0.090)" in text
    assert "3 were rerun at least in part: 0 as the paper says" in text


def test_reading_shows_change_with_batch_size():
    rows = [make_row(nlml=-1.0, batch_size=32), make_row(nlml=-1.5, batch_size=128)]
    assert "| linear, 128 to 32 | scgd | **here** | 1 | 1 | 0 | 0.500 |" in page(rows)


def test_reading_counts_learning_rates_at_the_edge():
    rates = {0.3: -1.0, 1.0: -1.1, 3.0: -1.2}
    rows = [make_row(nlml=nlml, settings={"learning_rate": rate}) for rate, nlml in rates.items()]
    rows.append(make_row(nlml=-0.5, settings={"optimizer": "adam", "learning_rate": 10.0}))  # not of this grid
    text = page(rows)
    assert "Learning rates tried for the paper's methods: 0.3, 1, 3." in text
    assert "the lowest of its grid in 0 and the highest in 1 of 1 searches" in text


def test_other_tables_than_the_papers_are_shown_without_published_figures():
    text = page([make_row(dataset="yacht")])
    assert line(text, "yacht", "here")[3] == "-1.000"
    assert "| yacht | published" not in text


def test_peers_with_null_values_and_best_marked():
    rows = [
        make_row("lagged", rmse=0.2, coverage={"0.9": 0.8}),
        make_peer(rmse=0.1, nlpd=None, crps=None, coverage=None, largest_standardized_residual=None, seconds=None),
        make_peer("auto", rmse=0.3, nlpd=-0.4, gaussian_nlpd=-0.25, peak_memory_bytes=None),
        make_peer("mlp", split=1),
    ]
    text = page(rows)
    section = text[text.index("## Beside the peers") :]
    assert line(section, "lightgbm")[1:] == ["**0.100**", "–", "–", "–", "–", "–", "500 (100)"]
    expected = ["0.200", "**-0.500**", "**0.050**", "80.0 %", "4.0", "12.0", "500 (100)"]
    assert line(section, "*lagged, linear, batch 32*")[1:] == expected
    assert line(section, "*auto*")[1:] == ["0.300", "-0.400 (-0.250)", "**0.050**", "**91.0 %**", "4.0", "12.0", "–"]
    assert "mlp" not in section


def test_the_default_beside_the_best_of_all_others():
    rows = [
        make_row("lagged", rmse=0.2, nlpd=-0.3, crps=0.06),
        make_peer("mlp", rmse=0.1, nlpd=None, crps=0.05),
        make_peer("auto", rmse=0.15, nlpd=-0.4, crps=0.05, coverage={"0.5": 0.6, "0.9": 0.88, "0.95": 0.95}),
        make_peer("auto", rmse=0.05, nlpd=-9.0, settings={"effort": "low"}),
    ]
    text = page(rows)
    section = text[text.index("## The default beside") : text.index("## Beside the peers")]
    expected = ["0.1500", "0.1000 (mlp)", "**-0.400**", "-0.300 (lagged)", "**0.0500**", "0.0500 (mlp)", "60 / 88 / 95"]
    assert line(section, "bike")[1:] == expected
    assert "hold 60.0, 88.0, 95.0 % of test rows" in section
    assert "miss by 10.0, 2.0, 0.0 points" in section
    assert "The default beside" not in page(rows[:2])


def test_splits_for_the_final_check_are_shown_beside_split_0():
    rows = [make_peer("auto", split=split, rmse=0.1 * (split + 1), nlpd=float(split)) for split in (0, 5, 7)]
    rows += [make_peer("auto", split=6, settings={"effort": "low"}), make_peer("mlp", split=8)]
    section = page(rows)[page(rows).index("## The default on splits") :]
    expected = ["5, 7", "0.7000", "0.1000", "6.000", "0.000", "50 / 91 / 95"]
    assert line(section, "bike")[1:] == expected
    assert "The default on splits" not in page(rows[:1])


def test_contenders_take_the_nearest_batch_size_and_keep_settings_apart():
    rows = [make_row("lagged", batch_size=size) for size in (16, 64)]
    rows += [make_peer(settings={"trees": count}) for count in (10, 20)]
    names = [contender.name for contender in select_contenders(rows, "bike")]
    assert names == ["lagged, linear, batch 16", "lightgbm, trees 10", "lightgbm, trees 20"]


def test_page_without_peers_or_complexity_leaves_these_sections_out():
    text = page([make_row()])
    assert "Beside the peers" not in text
    assert "Cost of a step" not in text


def test_page_of_peers_alone():
    assert "### bike" in page([make_peer()])


def test_rendering_does_not_depend_on_the_order_of_rows():
    generator = random.Random(0)
    rows = [
        make_row(method, generator.uniform(-2, 2), dataset=dataset, split=split, settings={"learning_rate": rate})
        for method in (*PAPER_METHODS, "lagged")
        for dataset in ("bike", "pol", "yacht")
        for split in range(2)
        for rate in (0.3, 1.0)
    ] + [make_peer(method, rmse=generator.random()) for method in ("mlp", "laplace", "auto")]
    first = page(rows)
    for _ in range(3):
        generator.shuffle(rows)
        assert page(rows) == first


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


# The command.


def run(*arguments):
    return CliRunner().invoke(app, ["tables", *map(str, arguments)])


def test_command_writes_page_and_figures(tmp_path):
    rows = [make_row("scgd", batch_size=size) for size in (32, 64)] + [make_row("lagged"), make_peer()]
    write(tmp_path / "results", rows)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results-reading.md").write_text("## By hand\n\nSome words.\n")
    arguments = ("--results", tmp_path / "results", "--out", tmp_path / "docs", "--kernel", "linear")
    result = run(*arguments, "--metric", "nlml")
    assert result.exit_code == 0, result.output
    found = tmp_path / "docs" / "results.md"
    text = found.read_text()
    assert text.startswith("<!-- Generated by `python -m paper tables`")
    assert "## By hand\n\nSome words.\n" in text
    assert "gaussian kernel" not in text
    assert "### test RMSE" not in text
    figures = sorted(path.name for path in (tmp_path / "docs" / "figures").iterdir())
    assert figures == ["accuracy-memory.png", "accuracy-seconds.png", "batch-size-nlml-linear.png"]
    assert all(f"(figures/{name})" in text for name in figures)
    before = found.read_bytes()
    assert run(*arguments, "--metric", "nlml", "--format", "markdown").exit_code == 0
    assert found.read_bytes() == before


def test_command_without_results_says_what_to_do(tmp_path):
    result = run("--results", tmp_path / "nothing", "--out", tmp_path / "docs")
    assert result.exit_code == 1
    assert "There are no results in" in result.output
    assert "python -m paper run" in result.output
    assert not (tmp_path / "docs").exists()


def test_command_names_a_broken_line(tmp_path):
    write(tmp_path, [make_row()])
    (tmp_path / CELLS).write_text('{"broken\n' + (tmp_path / CELLS).read_text())
    result = run("--results", tmp_path, "--out", tmp_path / "docs", "--format", "markdown")
    assert result.exit_code == 1
    assert "line 1 is not JSON" in result.output


def test_command_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    write(tmp_path, [make_row()])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--results", tmp_path, "--out", tmp_path / "docs")
    assert result.exit_code == 1
    assert "finitegp[plot]" in result.output
    assert run("--results", tmp_path, "--out", tmp_path / "docs", "--format", "markdown").exit_code == 0


def test_command_refuses_an_unknown_format(tmp_path):
    result = run("--results", tmp_path, "--format", "html")
    assert result.exit_code == 2
    assert "html" in result.output


def test_ablations_have_a_table_of_their_own():
    rows = [
        make_peer("auto", rmse=0.5, nlpd=-1.0, gaussian_nlpd=-0.875),
        make_peer("auto", rmse=0.5, nlpd=-0.75, settings={"input_noise": False}),
        make_peer("auto", rmse=0.6, nlpd=-0.5, settings={"effort": "low"}),
        make_peer("auto", dataset="pol", rmse=2.0, nlpd=0.125, settings={"input_noise": False}),
    ]
    text = render_page(rows, metrics=METRICS, kernels=KERNELS)
    section = text.split("## What each piece of the default contributes")[1].split("\n## ")[0]
    assert "| the default | 0.5000 / -1.000 | – |" in section
    assert "| the same, as Gaussian | 0.5000 / -0.875 | – |" in section
    changed = next(line for line in section.splitlines() if "input noise" in line)
    assert changed.endswith("| 0.5000 / -0.750 | 2.0000 / 0.125 |")
    assert "0.6000 / -0.500" in section
    # Presets are contenders beside the peers, ablations are not.
    peers = text.split("## Beside the peers")[1].split("\n## ")[0]
    assert "effort" in peers
    assert "input noise" not in peers


def test_small_tables_are_averaged_over_five_splits():
    rows = [
        make_peer(method, dataset="yacht", split=split, rmse=base + split, nlpd=base - split)
        for method, base in (("auto", 1.0), ("lightgbm", 2.0))
        for split in range(5)
    ]
    rows += [make_peer("ngboost", dataset="yacht", split=0, nlpd=-9.0)]  # one split is not enough
    text = render_page(rows, metrics=METRICS, kernels=KERNELS)
    section = text.split("## Small tables")[1].split("\n## ")[0]
    assert "| *auto* | **-1.000** | -1.000 |" in section
    assert "| lightgbm | 0.000 | 0.000 |" in section
    assert "| *auto* | **3.000** | 3.000 |" in section
    assert "| *auto* | 0.910 | 0.910 |" in section
    assert "ngboost" not in section
    assert "### yacht" not in text  # not beside the peers again
