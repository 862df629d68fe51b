"""Jobs side by side, in threads and in processes."""

import threading

import pytest

from finitegp.automatic.processes import in_parallel


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_the_order_of_the_jobs(workers, processes):
    found = in_parallel(pow, [(2, 3), (3, 2), (4, 1)], workers, processes=processes)
    assert list(found) == [8, 9, 4]


def test_results_come_as_jobs_end():
    """In threads too: a job can wait for what is done with the result of an earlier one."""
    told = threading.Event()
    results = in_parallel(lambda number: number or told.wait(timeout=20.0), [(1,), (0,)], 2)
    assert next(results) == 1
    told.set()
    assert next(results) is True
