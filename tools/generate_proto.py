"""Generate `magnetar/wire/pulsar_pb2.py` and its type stub from `pulsar.proto` (development only).

`make proto` runs it; `--check` fails when the committed files are not what the .proto gives.
"""

import os
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

WIRE = Path(__file__).resolve().parent.parent / "src" / "magnetar" / "wire"


def generate(target: Path) -> None:
    """Write the generated module and its stub into `target`."""
    # protoc finds its plugin for type stubs on the PATH, where a virtual environment that is not activated is not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    arguments = [
        "protoc",
        f"-I{WIRE}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--mypy_out=readable_stubs:{target}",
        str(WIRE / "pulsar.proto"),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see the lines above")


def main() -> None:
    """Regenerate in place, or compare with what is committed."""
    if "--check" not in sys.argv:
        generate(WIRE)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for path in Path(folder).iterdir():
            if path.read_bytes() != (WIRE / path.name).read_bytes():
                raise SystemExit(f"{path.name} is not what pulsar.proto gives: run `make proto`")


if __name__ == "__main__":
    main()
