"""`magnetar demo`."""

EXAMPLE = "magnetar demo --fast"


def demo() -> None:
    """Run the main job."""
