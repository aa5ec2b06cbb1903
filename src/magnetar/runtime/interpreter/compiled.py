"""Which form of the package runs: some modules compiled, or pure Python.

`tools/compile_modules.py` compiles the modules that `[tool.magnetar.compile]` in pyproject.toml lists, and writes a manifest.
This module is imported before every other one of the package. It reads the sources that the compiled modules were made from (the
modules themselves, and every module of the package that these import) and compares their hash with the one in the manifest. Only
when they are equal does `import` find the compiled modules. So a compiled module is never older than a source, whatever
happened to the sources: an edit, `git pull`, another branch, a file that was copied with its old time.

The manifest of a checkout is `build/compiled/`, so each worktree has its own; that of a wheel is `magnetar/_compiled/`. Compiled
modules are in a folder that is named by all that they were made of. A process keeps the folder that it
found when it started. See docs/decisions/0057-compiled-modules.md.
"""

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

VARIABLE: Final = "MAGNETAR_COMPILE"
"""Set to `no`, pure Python runs (and `make setup` does not compile). For `quick` see `tools/compile_modules.py`."""

OFF: Final = frozenset({"no", "0", "false", "off"})
"""Values that mean `no`: variables of this kind are set to 0 as often."""

ON: Final = frozenset({"", "yes", "1", "true", "on", "quick"})
"""Values with which compiled modules run."""

SUFFIX: Final = importlib.machinery.EXTENSION_SUFFIXES[0]
"""The end of a compiled module's file name. It names version and kind of this Python, and the machine's processor."""

COMPILED: Final = "compiled"
PURE: Final = "pure Python"

PACKAGE: Final = Path(__file__).parents[2]


def manifest_file(folder: Path) -> Path:
    """The manifest for this Python in a folder of compiled modules."""
    return folder / f"manifest{SUFFIX}.txt"


def checkout_folder(package: Path = PACKAGE) -> Path:
    """The folder of the compiled modules of a checkout."""
    return package.parents[1] / "build" / "compiled"


def sources_hash(root: Path, names: Iterable[str]) -> str:
    """The hash of the names and contents of sources.

    Args:
        root: the folder of the package `magnetar`.
        names: paths below it.

    Raises:
        OSError: one of them cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    for name in names:
        content = (root / name).read_bytes()
        found.update(b"%d %d " % (len(name), len(content)))
        found.update(name.encode())
        found.update(content)
    return found.hexdigest()


class Manifest:
    """The record of one compilation.

    Args:
        folder: name of the folder of the compiled modules, in the folder of the manifest.
        sources: hash of the sources.
        modules: names of the compiled modules, and of the library that they share.
        files: the sources, as paths below the folder of the package.
    """

    def __init__(self, folder: str, sources: str, modules: Sequence[str], files: Sequence[str]) -> None:
        self.folder = folder
        self.sources = sources
        self.modules = tuple(modules)
        self.files = tuple(files)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read a manifest.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        folder, sources, modules, files = path.read_text().splitlines()
        return cls(folder, sources, modules.split(), files.split())

    def text(self) -> str:
        """As the file has it: four lines."""
        return "\n".join((self.folder, self.sources, " ".join(self.modules), " ".join(self.files))) + "\n"


class CompiledFinder:
    """Finds the compiled modules, and leaves all others to the next finders.

    It has the one method that the import system needs. `importlib.abc.MetaPathFinder` would cost each start 20 ms.

    Args:
        files: name of a module -> its file.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the import system asks."""
        file = self._files.get(fullname)
        if file is None:
            return None
        loader = importlib.machinery.ExtensionFileLoader(fullname, file)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=file)
        spec.has_location = True
        return spec


class Form:
    """The form in which the package runs.

    Attributes:
        name: `COMPILED` or `PURE`.
        reason: why it is not compiled; "" if it is.
        modules: names of the compiled modules.
        stale: whether there are compiled modules that cannot be used: a broker says so when it starts.
    """

    def __init__(self, reason: str, modules: Sequence[str] = (), *, stale: bool = False) -> None:
        self.name = PURE if reason else COMPILED
        self.reason = reason
        self.modules = tuple(modules)
        self.stale = stale

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else f"{len(self.modules)} modules {self.name}"


def switched_off() -> str:
    """The setting that switches compiled modules off, as `MAGNETAR_COMPILE=no`; "": they are not switched off."""
    value = os.environ.get(VARIABLE, "")
    return f"{VARIABLE}={value}" if value.lower() in OFF else ""


def problem() -> str:
    """The mistake in the setting, with what would be right; "": there is none. A setting with a mistake has no effect."""
    value = os.environ.get(VARIABLE, "")
    return "" if value.lower() in OFF | ON else f"{VARIABLE}={value}: it should be yes, no or quick"


def chosen(package: Path, folders: Sequence[Path]) -> tuple[Form, CompiledFinder | None]:
    """Decide which form runs.

    Args:
        package: the folder of the sources.
        folders: folders that may have compiled modules; the first with a manifest for this Python counts.

    Returns:
        The form, and the finder that is needed for it.
    """
    if off := switched_off():
        return Form(off), None
    folder = next((folder for folder in folders if manifest_file(folder).is_file()), None)
    if folder is None:
        return Form("no modules are compiled here"), None
    try:
        manifest = Manifest.read(manifest_file(folder))
        current = sources_hash(package, manifest.files) == manifest.sources
    except (OSError, ValueError):
        current = False
    if not current:
        return Form("sources are not the ones that were compiled; `make setup` compiles them", stale=True), None
    files = {name: str(folder / manifest.folder / (name.replace(".", os.sep) + SUFFIX)) for name in manifest.modules}
    if not all(map(os.path.exists, files.values())):
        return Form("compiled modules are missing; `make setup` compiles them", stale=True), None
    return Form("", [name for name in manifest.modules if "." in name]), CompiledFinder(files)


def install() -> Form:
    """Decide for this process, before any other module of the package is imported."""
    folders = [PACKAGE / "_compiled"]
    if PACKAGE.parent.name == "src":
        folders.append(checkout_folder())
    form, finder = chosen(PACKAGE, folders)
    if finder is not None:
        sys.meta_path.insert(0, finder)
    return form
