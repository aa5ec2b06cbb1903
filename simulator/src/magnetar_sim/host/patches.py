"""How planted bugs get into the real code."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from magnetar import FORM
from magnetar.runtime.interpreter.compiled import COMPILED, VARIABLE

Patches = Mapping[str, Any]
"""What is replaced with what, by the dotted name of what is replaced."""


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """For as long as the block runs these are in place.

    Raises:
        RuntimeError: compiled modules run, and would not notice them.
    """
    if patches and FORM.name == COMPILED:
        raise RuntimeError(f"planted bugs need pure Python: set {VARIABLE}=no")
    with ExitStack() as stack:
        for name, replacement in patches.items():
            stack.enter_context(patch(name, replacement))
        yield
