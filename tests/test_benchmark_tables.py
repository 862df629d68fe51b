"""The benchmark of tables: its peers on a table with text and gaps, and its page."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.tables import OURS, measure, page


def make_frame(rows):
    random = np.random.default_rng(0)
    size, town = random.normal(size=rows), random.choice(["a", "b", "c"], rows)
    frame = pd.DataFrame({"size": size, "town": town, "y": size + (town == "a") + 0.1 * random.normal(size=rows)})
    frame.loc[::7, "size"] = np.nan
    frame.loc[::11, "town"] = None
    return frame


@pytest.mark.parametrize("method", ["linear", "linear+t"])
def test_peers_take_text_and_gaps(method):
    frame = make_frame(200)
    found = measure(method, frame[:150], frame[150:], "y", "", 0)
    assert "error" not in found, found
    assert found["scores"]["r_squared"] > 0.4
    numbers = frame.drop(columns="town")
    assert "error" not in measure(method, numbers[:150], numbers[150:], "y", "", 0)


def test_the_page_has_paired_errors_and_what_failed():
    def line(method, split, rmse):
        scores = {"rmse": rmse, "nlpd": 1.0, "crps": 0.5, "coverage": {"0.9": 0.9}}
        common = {"table": "babies", "split": split, "method": method, "effort": "low", "rows": 100, "most_rows": None}
        return common | {"scores": scores, "cpu_seconds": 1.0, "commit": "abc"}

    lines = [line(OURS, 0, 2.0), line(OURS, 1, 4.0), line("linear", 0, 3.0), line("linear", 1, 5.5)]
    lines.append(line("linear", 2, 100.0))  # a split that ours does not have is not compared
    lines.append(line("catboost", 0, 1.0) | {"most_rows": 50})  # a trial
    lines.append({"table": "babies", "split": 0, "method": "lightgbm", "most_rows": None, "error": "ValueError: no"})
    text = "\n".join(page(lines))
    # Means 3 and 4.25; differences 1 and 1.5, whose standard error is 0.25.
    assert "| babies | 100 | **3** | 4.25 ± 0.25 |" in text
    assert "- lightgbm on babies, split 0: ValueError: no" in text
    assert "catboost" not in text
