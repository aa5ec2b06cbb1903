"""Generate the modules and type stubs of the .proto files: `pulsar.proto` and `bookkeeper.proto` (development only).

`make proto` runs it; `--check` fails when the committed files are not what a .proto gives.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent.parent / "src"


@dataclass(frozen=True)
class Source:
    """A .proto file.

    Attributes:
        path: the file.
        root: the folder that its registered name is relative to. A process has one register of all messages, which refuses a
            second file of the same name.
    """

    path: Path
    root: Path


PULSAR = Source(SOURCES / "magnetar" / "wire" / "pulsar.proto", SOURCES / "magnetar" / "wire")

BOOKKEEPER = Source(SOURCES / "magnetar" / "bookkeeper" / "protocol" / "bookkeeper.proto", SOURCES)
"""With the path of its package: a program that uses the client may have a `bookkeeper.proto` of its own."""


def generate(source: Source, target: Path) -> None:
    """Write the generated module and its stub below `target`, which stands for `source.root`."""
    # protoc finds its plugin for type stubs on the PATH, where a virtual environment that is not activated is not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    arguments = [
        "protoc",
        f"-I{source.root}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--mypy_out=readable_stubs:{target}",
        str(source.path),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see the lines above")


def main() -> None:
    """Regenerate in place, or compare with what is committed."""
    for source in (PULSAR, BOOKKEEPER):
        if "--check" not in sys.argv:
            generate(source, source.root)
            continue
        with tempfile.TemporaryDirectory() as folder:
            generate(source, Path(folder))
            for path in Path(folder).rglob("*.py*"):
                committed = source.root / path.relative_to(folder)
                if not committed.is_file() or path.read_bytes() != committed.read_bytes():
                    raise SystemExit(f"{path.name} is not what {source.path.name} gives: run `make proto`")


if __name__ == "__main__":
    main()
