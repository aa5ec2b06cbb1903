"""`magnetar demo`: runs the demo of the source tree, which shows the use of the product."""

import importlib
import sys
from typing import Final

import typer
import typer.main

from magnetar.cli.source_tree.tree import source_tree

EXAMPLE = "magnetar demo --fast"

CONTEXT: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Every word goes to the example, `--help` too: its options are its own."""

NOT_HERE: Final = "the demo is part of the source tree (examples/demo): clone the repository and run `make demo` there"


def demo(context: typer.Context) -> None:
    """Send 336,776 real flights through three clusters, with kills of brokers and Spark, and prove that none is lost."""
    root = str(source_tree("examples/demo/command.py", NOT_HERE))
    if root not in sys.path:
        sys.path.insert(0, root)  # before a package `examples` that another distribution may have installed
    example = typer.main.get_command(importlib.import_module("examples.demo.command").app)
    with example.make_context("demo", context.args, parent=context.parent) as inner:
        example.invoke(inner)
