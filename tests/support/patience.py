"""How long tests wait for what never happens."""

from typing import Final

PATIENCE: Final = 4
"""By what deadlines are multiplied, those of single tests too: a machine that others use as well may be several times slower for
a while, and that is nobody's mistake. The deadline of a test that names none, in pyproject.toml, has it in it.
"""
