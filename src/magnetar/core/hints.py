"""Commands that messages print: the way out of what they tell of.

They are copied into a shell, so every word is quoted as a shell needs it, and every one of them is complete: it says which
cluster it speaks to. `tests/clients/test_hints.py` runs them.
"""

import shlex


def command(*words: str, admin_url: str = "") -> str:
    """A command line of `magnetar`.

    Args:
        words: of the command, its arguments and options.
        admin_url: of the broker that it is for; "": the command takes none, or the user's configuration names the cluster.
    """
    return shlex.join(["magnetar", *words, *(("--admin-url", admin_url) if admin_url else ())])
