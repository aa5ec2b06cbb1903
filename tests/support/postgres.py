"""A PostgreSQL server of one test, from Debian's package; it serves a socket in its folder and no port."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

USER = "postgres"


def _programs() -> Path | None:
    """Where initdb and postgres are."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


class Postgres:
    """Started on creation.

    Args:
        folder: for its data; short, since the name of a socket is.
    """

    def __init__(self, folder: Path) -> None:
        programs = _programs()
        if programs is None:
            pytest.skip("no PostgreSQL server on this machine (Debian's package postgresql)")
        self._user = None
        if os.geteuid() == 0:
            # PostgreSQL does not run as root.
            try:
                entry = pwd.getpwnam(USER)
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            self._user = USER
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        self._folder = folder
        self._programs = programs
        self.url = f"postgresql+psycopg://{USER}@/postgres?host={folder}"
        self._run("initdb", "-D", "data", "-U", USER, "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def _run(self, program: str, *arguments: str) -> None:
        # With files as outputs: a server that inherits a pipe keeps it open.
        with (self._folder.parent / f"{program}.out").open("wb") as out:
            done = subprocess.run(
                [self._programs / program, *arguments],
                cwd=self._folder,
                stdout=out,
                stderr=out,
                user=self._user,
                timeout=60,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )
        assert done.returncode == 0, (self._folder.parent / f"{program}.out").read_text()[-2000:]

    def close(self) -> None:
        """Stop it."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")
