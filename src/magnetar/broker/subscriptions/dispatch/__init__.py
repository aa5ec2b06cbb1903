"""Dispatch: which message goes to which consumer next, one module a subscription type."""
