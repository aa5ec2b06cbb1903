"""Scripts of `tools/` as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def tool(name: str) -> ModuleType:
    """`tools/NAME.py`."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
