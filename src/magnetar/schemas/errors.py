"""Why a schema is refused, in one line."""

from magnetar.core.errors import MagnetarError


class SchemaInvalid(MagnetarError):
    """A definition is not one of its type: cannot be parsed, too large, nested too deeply, or of an unknown type."""


class SchemaIncompatible(MagnetarError):
    """A definition is not compatible with the schemas of the topic."""


class SchemasFull(MagnetarError):
    """The topic has as many versions, or as many bytes of definitions, as are allowed."""
