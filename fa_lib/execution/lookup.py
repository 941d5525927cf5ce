"""A table's entry, for a name that the reader gave."""

from collections.abc import Mapping
from typing import Any


def lookup(argument: str, key: str, table: Mapping[str, Any]) -> Any:
    """Return the table's entry of a key. A ValueError, which names the reader's argument, the key and the accepted
    keys, says that the table lacks it."""
    if key not in table:
        raise ValueError(f"{argument}: got {key!r}; accepted are {', '.join(table)}")
    return table[key]
