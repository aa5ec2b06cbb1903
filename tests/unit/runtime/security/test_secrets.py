"""Files of secrets are read again when they change, also when only their permissions do."""

from pathlib import Path

from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import read_token
from magnetar.runtime.security.secrets import Watch


def test_a_file_that_was_refused_is_read_when_it_is_private_again(tmp_path: Path) -> None:
    """What the refusal asks for, `chmod 600`, changes neither the file's bytes nor its time."""
    path, read = tmp_path / "token", list[str]()
    path.touch(0o600)
    path.write_text("one")

    def reload() -> None:
        read.append("")
        read[-1] = read_token(path)

    watch = Watch([str(path)], reload, "the token")
    watch.look()
    assert read == []
    path.chmod(0o644)
    watch.look()
    assert read == [""], ConfigError("it is refused")
    path.chmod(0o600)
    watch.look()
    watch.look()
    assert read == ["", "one"]
