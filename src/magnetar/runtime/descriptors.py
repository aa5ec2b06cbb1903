"""How many files and sockets this process may have open."""

import contextlib


def raise_file_limit() -> None:
    """Take what the administrator allows at most: the limit that processes begin with, often 1,024, is for those that use
    select(2), and a broker needs a descriptor for each connection.
    """
    try:
        import resource
    except ImportError:  # a platform without such limits
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A kernel may have a ceiling of its own below the limit that it tells (macOS): then it stays as it is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
