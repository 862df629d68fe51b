"""Cells and grids of the experiments: their keys, and which cells a grid has."""

import json

from paper.cells import KERNELS, OUR_METHODS, PAPER_METHODS, Cell, make_grid
from paper.protocol import LEARNING_RATES, PAPER
from paper.reproduction import PARTS, Part


def test_key_survives_the_round_trip_through_json():
    for cell in make_grid(methods=[*PAPER_METHODS, *OUR_METHODS, "mlp"], datasets=["bike"], kernels=KERNELS):
        again = Cell.from_row(json.loads(json.dumps(cell.to_row())))
        assert (again.key, again.digest, hash(again)) == (cell.key, cell.digest, hash(cell))


def test_key_does_not_depend_on_the_order_of_settings_but_on_everything_else():
    cell = Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2})
    assert cell.key == Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"b": 2, "a": 1}).key
    others = [
        Cell("pol", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 1, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "bsgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "gaussian", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 64, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 10, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 100, 1, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 3}),
    ]
    assert len({other.key for other in [cell, *others]}) == len({other.digest for other in [cell, *others]}) == 9


def test_parts_of_the_reproduction_are_full_length_and_have_no_cell_twice():
    searched = [cell for part in PARTS for cell in part.search()]
    assert len(searched) == len({cell.key for cell in searched})
    assert {(cell.epochs, cell.split, cell.seed) for cell in searched} == {(100, 0, 0)}
    linear = {(cell.batch_size, cell.dataset, cell.method) for cell in searched if cell.kernel == "linear"}
    for method in PAPER_METHODS:  # every cell of the paper's linear tables, but for the table that is not at hand
        assert len({place for place in linear if place[0] in (32, 64, 128) and place[2] == method}) == 3 * 8


def test_best_rate_of_the_first_split_is_used_on_the_others():
    part = Part(("scgd",), "linear", 32, ("bike",), splits=3)
    nlml = dict(zip(LEARNING_RATES, (-1.0, -2.0, None), strict=True))
    rows = [cell.to_row() | {"nlml_float64": nlml[cell.settings["learning_rate"]]} for cell in part.search()]
    assert part.others(rows[:2]) == []  # not before the search is finished
    others = part.others(rows)
    assert [(cell.split, dict(cell.settings)) for cell in others] == [
        (split, PAPER | {"learning_rate": LEARNING_RATES[1]}) for split in (1, 2)
    ]


def test_make_grid_counts():
    common = {"datasets": ["bike", "pol"], "splits": [0, 1, 2]}
    assert len(make_grid(methods=["scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["scgd", "scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["lagged"], learning_rates=[1e-3], **common)) == 2 * 3 * 2
    assert len(make_grid(methods=["mlp", "scgd"], batch_sizes=[32, 64], learning_rates=[1.0], **common)) == 2 * 3 * 3
    (cell,) = make_grid(methods=["scgd"], datasets=["bike"], learning_rates=[1.0], settings={"block": 5}, epochs=7)
    assert (cell.epochs, dict(cell.settings)) == (7, {"optimizer": "adadelta", "learning_rate": 1.0, "block": 5})


def test_a_grid_by_the_protocol_has_the_cells_of_the_reproduction():
    common = {"methods": ["scgd"], "datasets": ["pol"], "kernels": ["gaussian"], "batch_sizes": [16]}
    (cell,) = make_grid(learning_rates=[0.3], settings={"protocol": "paper"}, **common)
    assert cell in {found for part in PARTS for found in part.search()}
