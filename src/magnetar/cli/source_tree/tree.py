"""The location of the source tree: benchmarks and examples are not part of an installed package."""

from pathlib import Path

from magnetar.core.errors import MagnetarError


def source_tree(needed: str, otherwise: str) -> Path:
    """The folder of the project's sources.

    Args:
        needed: a file of theirs that the caller wants, from the root on.
        otherwise: the message of the error.

    Raises:
        MagnetarError: this is an installed package without them.
    """
    root = Path(__file__).resolve().parents[4]
    if not (root / needed).exists():
        raise MagnetarError(otherwise)
    return root
