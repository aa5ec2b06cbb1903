"""`python -m examples.demo`, which `make demo` runs."""

from examples.demo.command import app
from magnetar.cli import end_with, explained

if __name__ == "__main__":
    end_with(lambda: explained(lambda: app(prog_name="magnetar demo")))
