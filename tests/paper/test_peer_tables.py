"""The default and the peers on the page of results and in its appendix."""

import numpy as np
from result_pages import appendix, line, section
from result_rows import make_peer, make_row

from paper.contenders import find_contenders
from paper.outcome import Outcome
from paper.page import render_page
from paper.predictions import Predictions, save_predictions
from paper.selection import Cell


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
