"""The wheel with compiled modules, those of `make setup`: `MAGNETAR_WHEEL=compiled python -m hatchling build -t wheel`.

That is `make wheel COMPILED=yes`. Otherwise the wheel is pure Python and fits every machine.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles, and adds manifest and compiled modules as `magnetar/_compiled`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """As hatchling calls it before a wheel is built; an editable one has the checkout's own compiled modules.

        Raises:
            NotCompiledError: the modules cannot be compiled; the text says why.
        """
        if os.environ.get("MAGNETAR_WHEEL", "pure") != "compiled" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "tools"))
        import compile_modules

        folder = compile_modules.build()

        # The checkout's: `compile_modules` puts it in front.
        from magnetar.runtime.interpreter.compiled import Manifest, manifest_file

        manifest = Manifest.read(manifest_file(folder))
        for path in (manifest_file(folder), folder / manifest.folder):
            build_data["force_include"][str(path)] = f"magnetar/_compiled/{path.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
