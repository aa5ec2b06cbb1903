"""Compile the modules that `[tool.magnetar.compile]` in pyproject.toml lists, with mypyc, into build/compiled.

    python tools/compile_modules.py            # where a C compiler is; compiles nothing again that is up to date
    python tools/compile_modules.py --check    # 0: they are up to date, 1: they are not, 3: nothing can be compiled here
    MAGNETAR_COMPILE=quick python tools/...    # for tests: a third of the time, because the C compiler does not optimise

The sources are copied first, and the copy is hashed and compiled: an edit in the meantime cannot get into a compiled module
unseen. `src/magnetar/runtime/interpreter/compiled.py` decides at each start whether the result may be used.
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # this checkout's, also where another one is installed

from magnetar.runtime.interpreter.compiled import (  # noqa: E402
    SUFFIX,
    VARIABLE,
    Manifest,
    checkout_folder,
    manifest_file,
    problem,
    sources_hash,
    switched_off,
)

GROUP: Final = "magnetar"
LIBRARY: Final = f"{GROUP}__mypyc"
"""The library that all compiled modules share."""

KEPT: Final = 3
"""Folders of compiled modules that stay, this one included: processes that run may still import modules from older ones."""

LEVEL: Final = "2"
"""How much the C compiler optimises. Its memory is 700 MB, and its time four fifths of all."""

QUICK: Final = "0"
"""As `LEVEL`, for `MAGNETAR_COMPILE=quick`: the C is the same, so tests find the same faults."""

BUILDING: Final = "building-"
LEFT_S: Final = 3600
"""A folder in which something is compiled is in use no longer at that age: the compilation was killed."""

FLAGS: Final = "-DNDEBUG -fwrapv -g0 -w"
"""For the C compiler, in place of those that Python itself was compiled with: no symbols for a debugger, which take half of
the time, and no warnings about generated code."""


SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
out, level, *paths = sys.argv[1:]
extensions = mypycify(["--config-file", "pyproject.toml", *paths], opt_level=level, debug_level="0", group_name={group!r})
setup(name={group!r}, packages=[], ext_modules=extensions, script_args=["-q", "build_ext", "--build-lib", out])
"""

CANNOT: Final = 3
"""Exit code of `--check` where a tool is missing, or compiling is switched off."""


class NotCompiledError(Exception):
    """Nothing was compiled; the text says why."""


class MissingToolError(NotCompiledError):
    """A tool for compiling is missing; the text names it."""


def modules(root: Path = ROOT) -> list[str]:
    """The modules to compile, as pyproject.toml lists them."""
    listed: list[str] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["magnetar"]["compile"]["modules"]
    return listed


def path_of(root: Path, module: str) -> Path | None:
    """The source of a module, or of a package; None if there is none."""
    base = root / "src" / module.replace(".", "/")
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def imported(path: Path, package: str) -> Iterator[str]:
    """The names that a source imports from the package, at any depth: modules, and names in modules."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == package)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def closure(root: Path, listed: list[str]) -> list[str]:
    """The sources that the compiled form depends on: the modules and all that they import, directly or not.

    The compiler reads types and constants of all of them. Stubs beside them count too.

    Returns:
        Paths below the folder of the package, sorted.

    Raises:
        NotCompiledError: a listed module does not exist.
    """
    found: set[Path] = set()
    seen: set[str] = set()
    waiting = list(listed)
    for module in listed:
        if path_of(root, module) is None:
            raise NotCompiledError(f"pyproject.toml lists {module}, which does not exist")
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        path = path_of(root, name)
        if path is not None:
            found.add(path)
            if (stub := path.with_suffix(".pyi")).is_file():
                found.add(stub)
            waiting.extend(imported(path, "magnetar"))
    package = root / "src" / "magnetar"
    return sorted(path.relative_to(package).as_posix() for path in found)


def level() -> str:
    """How much the C compiler shall optimise."""
    return QUICK if os.environ.get(VARIABLE, "").lower() == "quick" else LEVEL


def key(sources: str, listed: list[str], level: str) -> str:
    """The name of the folder of the result: a hash of all that it is made of."""
    made_of = (sources, " ".join(listed), version("mypy"), SUFFIX, sys.version, FLAGS, level, SETUP)
    return hashlib.blake2b("\0".join(made_of).encode(), digest_size=16).hexdigest()


def up_to_date(root: Path = ROOT) -> bool:
    """Whether the compiled modules are there and are what would be compiled now; optimised ones are good for `quick`, too."""
    folder = checkout_folder(root / "src" / "magnetar")
    try:
        manifest = Manifest.read(manifest_file(folder))
        sources = sources_hash(root / "src" / "magnetar", manifest.files)
        good = {key(sources, modules(root), one) for one in (level(), LEVEL)}
        return manifest.folder in good and (folder / manifest.folder).is_dir()
    except (OSError, ValueError, PackageNotFoundError):
        return False


def compiler() -> str | None:
    """The command of the C compiler: the user's, the one that compiled Python, or the system's; None if there is none."""
    named = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc")
    return next((one for one in named if one and shutil.which(one.split()[0])), None)


def check_tools() -> None:
    """Look for what compiling needs.

    Raises:
        MissingToolError: something is missing; the text names it.
    """
    if compiler() is None:
        raise MissingToolError("there is no C compiler (Debian, Ubuntu: apt install gcc)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise MissingToolError("Python.h is missing (Debian, Ubuntu: apt install python3-dev)")
    for tool in ("mypy", "setuptools"):
        try:
            version(tool)
        except PackageNotFoundError:
            raise MissingToolError(f"{tool} is not installed") from None


def build(root: Path = ROOT) -> Path:
    """Compile the modules of a checkout, and write their folder and the manifest; what is up to date stays.

    Returns:
        The folder of the manifest.

    Raises:
        NotCompiledError: something is missing, or the modules cannot be compiled.
    """
    folder = checkout_folder(root / "src" / "magnetar")
    if up_to_date(root):
        return folder
    check_tools()
    listed = modules(root)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=BUILDING) as name:
        work = Path(name)
        files = closure(root, listed)
        for file in files:
            copy = work / "src" / "magnetar" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / "src" / "magnetar" / file, copy)
        shutil.copyfile(root / "pyproject.toml", work / "pyproject.toml")
        if closure(work, listed) != files:
            raise NotCompiledError("sources were changed while they were copied: try again")
        sources = sources_hash(work / "src" / "magnetar", files)
        paths = [path.relative_to(work).as_posix() for one in listed if (path := path_of(work, one)) is not None]
        (work / "setup.py").write_text(SETUP.format(group=GROUP))
        environment = os.environ | {"MYPYPATH": "src", "CFLAGS": FLAGS, "CC": compiler() or "cc", VARIABLE: "no"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [sys.executable, "setup.py", str(work / "out"), level(), *paths],
            cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            (log := folder / "log.txt").write_text(done.stdout)
            raise NotCompiledError(f"the modules cannot be compiled: {log} says why")
        manifest = Manifest(key(sources, listed, level()), sources, [LIBRARY, *listed], files)
        made = work / "out"
        for module in manifest.modules:
            assert (made / (module.replace(".", "/") + SUFFIX)).is_file(), f"{module} was not compiled"
        if not (folder / manifest.folder).exists():
            made.rename(folder / manifest.folder)
        manifest_new = work / "manifest"
        manifest_new.write_text(manifest.text())
        manifest_new.replace(manifest_file(folder))
    os.utime(folder / manifest.folder)
    _remove_old(folder)
    return folder


def _remove_old(folder: Path) -> None:
    """Keep the newest folders only, and remove what compilations left that were killed."""
    made = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(BUILDING)]
    for left in folder.glob(f"{BUILDING}*"):
        if left.stat().st_mtime < time.time() - LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    for old in sorted(made, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def main() -> int:
    """Compile and say in one line which form runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compile nothing; fail unless all is up to date")
    options = parser.parse_args()
    if wrong := problem():
        parser.error(wrong)
    if off := switched_off():
        print(f"pure Python: {off}")
        return CANNOT if options.check else 0
    try:
        if not options.check:
            build()
        elif up_to_date():
            print("compiled modules are up to date")
            return 0
        else:
            check_tools()
            print("compiled modules are missing, or were made from other sources or another list in pyproject.toml")
            return 1
    except NotCompiledError as error:
        print(f"pure Python: {error}")
        return CANNOT if options.check else 0
    print(f"{len(modules())} modules are compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
