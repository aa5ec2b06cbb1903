"""Commands that error messages print, to solve the problem that they report.

Users copy them into a shell. So every word is quoted for a shell, and every command names the cluster that it talks to.
`tests/clients/test_hints.py` runs them.
"""

import shlex


def command(*words: str, admin_url: str = "") -> str:
    """A command line of `magnetar`.

    Args:
        words: of the command, its arguments and options.
        admin_url: of the broker that it is for; "": the command takes none, or the user's configuration names the cluster.
    """
    return shlex.join(["magnetar", *words, *(("--admin-url", admin_url) if admin_url else ())])
