"""Differences of the gateway's replies from those of vLLM's server that are right, each with its reason."""

ALL = {}


def apply(endpoint, fields, expected, found):
    """Changes what vLLM's server said into what the gateway must say. Returns the names of what was changed."""
    return [name for name, change in ALL.items() if change(endpoint, fields, expected, found)]
