"""`python -m examples.cluster`, which `make cluster` runs."""

from examples.cluster.command import app
from magnetar.cli import end_with, explained

if __name__ == "__main__":
    end_with(lambda: explained(lambda: app(prog_name="python -m examples.cluster")))
