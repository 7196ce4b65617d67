"""Experiments in a process of their own."""

import os

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
