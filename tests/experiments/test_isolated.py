"""Experiments in a process of their own."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import filelock  # noqa: F401  (it refuses forks of two threads at once)

from shardwise.experiments import Crash, run_isolated


def test_what_kernels_print_is_not_seen(capfd):
    def noisy():
        os.write(1, b"Intel oneMKL ERROR")
        os.write(2, b"warning")
        return "done"

    assert run_isolated(noisy) == "done"
    assert capfd.readouterr() == ("", "")


def test_a_crash_is_an_answer():
    assert run_isolated(os.abort) == Crash("SIGABRT")


def test_threads_may_isolate_at_once():
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run_isolated, partial(pow, 2, n)) for n in range(40)]
        assert [found.result() for found in running] == [2**n for n in range(40)]
