"""The clusters that take part in snapshots, and the links on which snapshot mode is not possible."""

from collections.abc import Collection

Route = tuple[str, str]


def refuses_snapshots(routes: Collection[Route]) -> str:
    """Why snapshot mode is not possible with these links of a topic; "" when it is.

    Args:
        routes: all links (source, destination) of the topic.
    """
    for source, destination in sorted(routes):
        if (destination, source) not in routes:
            return (
                f"snapshot mode needs links in both directions, but none leads from {destination} to {source}: "
                f"{destination} could never answer a snapshot of {source}; add that link or use exact mode"
            )
    return ""


def partners(routes: Collection[Route], here: str) -> frozenset[str]:
    """Clusters that can answer this one: linked in both directions."""
    return frozenset(other for source, other in routes if source == here and (other, here) in routes)


def audience(routes: Collection[Route], here: str) -> frozenset[str]:
    """Clusters that get the entries written here."""
    return frozenset(other for source, other in routes if source == here)


def sources(routes: Collection[Route], here: str) -> frozenset[str]:
    """Clusters whose entries can come here."""
    return frozenset(source for source, other in routes if other == here)
