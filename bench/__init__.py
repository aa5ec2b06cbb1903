"""Benchmarks: generators, and the runners whose results are kept in `bench/results/`."""

import signal
import sys


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


# `python -m bench.NAME` imports this package before it has found the program's file; until then argv[0] is "-m". A bench ends at
# SIGTERM as it does at Ctrl-C, so that its brokers, its pipeline and its folders go with it. In a process that imports a part of
# a bench, such as a test, SIGTERM keeps its effect.
if sys.argv[0] == "-m":
    signal.signal(signal.SIGTERM, _end)
