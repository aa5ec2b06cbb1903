"""A checkout that is not there is an error: Python would import the installed package instead, and a bench would measure that."""

import sys
from pathlib import Path

import pytest
from bench import instructions, singles


@pytest.mark.parametrize("bench", [singles, instructions])
def test_a_tree_without_sources_is_refused(
    bench: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["a-bench", "--tree", str(tmp_path)])
    monkeypatch.setattr(bench, "store", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        bench.main()  # type: ignore[attr-defined]
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last == f"a-bench: error: argument --tree: {tmp_path} has no folder src/magnetar; give the folder of a checkout"
    )
