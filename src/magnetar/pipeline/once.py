"""`--once`: decides when everything that was there at the start is replicated, or why it never will be."""

import time
from collections.abc import Callable, Iterable

from magnetar.core.ids import Position
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import LinkState, TopicState

Key = tuple[int, str]


class Once:
    """Watches a coordinator.

    The target of each topic is its newest position at its link's first report. A topic that a link learns of later was
    not there at the start.

    Args:
        coordinator: started.
        clock: seconds, monotonic.
        patience_ms: None: as `[replication.limits]` says.
    """

    def __init__(
        self,
        coordinator: PipelineCoordinator,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience_ms: int | None = None,
    ) -> None:
        self._coordinator, self._clock = coordinator, clock
        self._patience_ms = coordinator.pipeline.limits.patience_ms if patience_ms is None else patience_ms
        self._targets: dict[Key, Position] = {}
        self._known: set[int] = set()
        self._moved = clock()

    def left(self) -> list[str] | None:
        """None while there is work; else a line about each topic or link that could not be replicated: no line if all was."""
        with self._coordinator.reading() as pipeline_state:
            for number, state in pipeline_state.links.items():
                if state.reported and number not in self._known:
                    self._known.add(number)
                    self._targets.update({(number, name): topic.last for name, topic in state.topics.items()})
            waiting, stuck = [], []
            for (number, name), last in self._targets.items():
                state = pipeline_state.links[number]
                topic = state.topics.get(name)
                if topic is None or (topic.cursor.c >= last and topic.last >= last):
                    continue
                why = _stuck(state, topic)
                if why:
                    stuck.append(f"{state.link}, {name}: {why}")
                else:
                    waiting.append(number)
            waiting += pipeline_state.links.keys() - self._known
            if any(pipeline_state.open(pipeline_state.links[number]) for number in waiting):
                self._moved = self._clock()
        if not waiting:
            return sorted(stuck)
        if (self._clock() - self._moved) * 1000 < self._patience_ms:
            return None
        return sorted([*stuck, *self._reasons(waiting)])

    def _reasons(self, waiting: Iterable[int]) -> list[str]:
        """Why nothing moves: the troubles of whole clusters and links, or else the links that do not move."""
        lines = [f"{what}: {why}" for what, why in self._coordinator.troubles().items() if "blocked: " not in why]
        names = {link.number: str(link) for link in self._coordinator.pipeline.links}
        return lines or [f"link {names[number]}: does not move" for number in sorted(set(waiting))]


def _stuck(state: LinkState, topic: TopicState) -> str:
    """Why a topic will not move until an operator acts; "": it may."""
    if topic.blocked:
        return f"blocked: {topic.blocked}: {topic.reason}"
    if topic.paused or state.paused:
        return "paused"
    if state.blocked:
        return f"blocked: {state.blocked}: {state.reason}"
    return ""
