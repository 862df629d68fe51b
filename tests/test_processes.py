"""Jobs side by side, in threads and in processes."""

import threading

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from finitegp.processes import beside, in_parallel, in_threads, in_turn, one_thread


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


@pytest.mark.parametrize("allowed", [False, True])
def test_a_job_beside_a_block_has_its_result_and_its_error(allowed):
    begun = threading.Event()
    with beside(lambda: (begun.set(), threading.current_thread())[1], allowed=allowed) as result:
        assert begun.wait(timeout=20.0 if allowed else 0.0) is allowed
    assert (result() is threading.current_thread()) is not allowed
    with beside(lambda: 1 // 0, allowed=allowed) as result:
        pass
    with pytest.raises(ZeroDivisionError):
        result()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_have_one_thread_each_and_leave_the_setting(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = in_threads(lambda number: (number, torch.get_num_threads()), [(number,) for number in range(5)])
        assert found == [(number, 1) for number in range(5)]
        assert torch.get_num_threads() == threads
        with pytest.raises(ZeroDivisionError):
            in_threads(lambda number: 1 // number, [(1,), (0,)])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_one_thread_inside_and_as_many_as_before_outside():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with threadpool_limits(2, user_api="blas"):
            before = blas_threads()
            with one_thread() as had:
                assert (had, torch.get_num_threads()) == (3, 1)
                with one_thread() as again:
                    assert again == 1
                    assert in_threads(lambda number: number, [(1,), (2,)]) == [1, 2]
                assert set(blas_threads()) == {1}
            assert (blas_threads(), torch.get_num_threads()) == (before, 3)
            with pytest.raises(ZeroDivisionError), one_thread():
                1 / 0  # noqa: B018
            assert (blas_threads(), torch.get_num_threads()) == (before, 3)
    finally:
        torch.set_num_threads(threads)


def test_who_comes_while_another_has_one_thread_of_blas_leaves_it_alone():
    """Whoever leaves first, the program ends with as many threads as before."""
    entered, leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            assert torch.get_num_threads() == 1
            entered.set()
            leave.wait(timeout=20.0)

    with threadpool_limits(2, user_api="blas"):
        before, thread = blas_threads(), threading.Thread(target=other)
        with one_thread():
            thread.start()
            assert entered.wait(timeout=20.0)
        assert blas_threads() == before
        leave.set()
        thread.join()
        assert blas_threads() == before


@pytest.mark.parametrize("threads", [False, True])
def test_jobs_in_turn_go_to_the_same_workers_and_are_read_one_ahead(threads):
    seen, read, most = [[], []], [], [0]

    def jobs():
        for number in range(7):
            read.append(number)
            most[0] = max(most[0], len(read) - sum(map(len, seen)))
            yield number

    in_turn(lambda job, worker: seen[worker].append(job), jobs(), 2, threads=threads)
    assert seen == [[0, 2, 4, 6], [1, 3, 5]]
    assert most[0] <= (3 if threads else 1)  # two with the workers, and one ahead
    with pytest.raises(ZeroDivisionError):
        in_turn(lambda job, worker: 1 // job, [1, 1, 0, 1, 1], 2, threads=threads)
