"""The fetch sessions of one link: of the pipeline that may replicate everything, and of roles that may replicate some topics."""

from collections.abc import Callable, Iterator
from itertools import chain

from magnetar.replication.link.fetching import FetchSession
from magnetar.replication.link.link_topic import LinkTopic


class FetchSessions:
    """The sessions of one link.

    Args:
        make: makes a session.

    Attributes:
        whole: of the pipeline that may replicate everything.
    """

    def __init__(self, make: Callable[[], FetchSession]) -> None:
        self._make = make
        self.whole = make()
        self._narrow: dict[str, FetchSession] = {}
        """By role. A role is let in by an administrator, so there are few."""

    def of(self, narrow: str) -> FetchSession:
        """The session of a role that may replicate some topics only; with "", the one of the whole link."""
        if not narrow:
            return self.whole
        found = self._narrow.get(narrow)
        if found is None:
            self._narrow = {role: one for role, one in self._narrow.items() if not one.idle}
            found = self._narrow[narrow] = self._make()
        return found

    def _every(self) -> Iterator[FetchSession]:
        return chain((self.whole,), self._narrow.values())

    def changed(self, state: LinkTopic) -> bool:
        """A topic changed; whether the pipeline of the whole link has a grant for it, and need not learn of it at once.

        A role that may replicate some topics takes nothing from that pipeline: its grants keep no news back.
        """
        for one in self._narrow.values():
            one.changed(state)
        return self.whole.changed(state)

    def removed(self, topic: str) -> None:
        """A topic is gone."""
        for one in self._every():
            one.removed(topic)

    def link_changed(self) -> None:
        """The link was paused or resumed."""
        for one in self._every():
            one.link_changed()

    def disconnected(self, connection: int) -> None:
        """A connection is gone."""
        for one in self._every():
            one.disconnected(connection)

    def validate(self) -> None:
        """Check what must hold after every step."""
        for one in self._every():
            one.validate()
