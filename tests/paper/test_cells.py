"""Cells and grids of the experiments: their keys, and which cells a grid has."""

import json

from paper.cells import OUR_METHODS, PAPER_METHODS, Cell, full_grid, make_grid
from paper.datasets import PAPER_DATASETS


def test_key_survives_the_round_trip_through_json():
    for cell in full_grid(datasets=["bike"], splits=[0]) + make_grid(methods=["mlp"], datasets=["pol"]):
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


def test_full_grid_is_the_papers_protocol():
    cells = full_grid()
    per_place = 4 * 3 + 2 * 2  # the paper's methods with three learning rates, ours with two settings
    assert len(cells) == len({cell.key for cell in cells}) == 9 * 5 * 6 * per_place
    assert {cell.dataset for cell in cells} == set(PAPER_DATASETS)
    assert {cell.split for cell in cells} == set(range(5))
    assert {cell.epochs for cell in cells} == {100}
    assert {cell.method for cell in cells} == {*PAPER_METHODS, *OUR_METHODS}
    sizes = {kernel: {cell.batch_size for cell in cells if cell.kernel == kernel} for kernel in ("linear", "gaussian")}
    assert sizes == {"linear": {32, 64, 128}, "gaussian": {16, 32, 64}}


def test_full_grid_with_one_kernel_or_peers_has_no_cell_twice():
    linear = full_grid(kernels=["linear"])
    assert len(linear) == 9 * 5 * 3 * 16
    assert {cell.batch_size for cell in linear} == {32, 64, 128}
    assert len(full_grid(methods=["mlp"])) == 9 * 5
    assert {cell.batch_size for cell in full_grid(batch_sizes=[256])} == {256}


def test_make_grid_counts():
    common = {"datasets": ["bike", "pol"], "splits": [0, 1, 2]}
    assert len(make_grid(methods=["scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["scgd", "scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["lagged"], learning_rates=[1e-3], **common)) == 2 * 3 * 2
    assert len(make_grid(methods=["mlp", "scgd"], batch_sizes=[32, 64], learning_rates=[1.0], **common)) == 2 * 3 * 3
    (cell,) = make_grid(methods=["scgd"], datasets=["bike"], learning_rates=[1.0], settings={"block": 5}, epochs=7)
    assert (cell.epochs, dict(cell.settings)) == (7, {"optimizer": "adadelta", "learning_rate": 1.0, "block": 5})
