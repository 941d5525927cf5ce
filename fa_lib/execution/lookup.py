"""A table's entry, for a name that the reader gave."""

from collections.abc import Mapping
from typing import Any


def lookup(argument: str, key: str, table: Mapping[str, Any]) -> Any:
    """The entry of a table, or an error that says what there is.

    Raises:
        ValueError: names the argument, the key that came and those that are accepted.
    """
    if key not in table:
        raise ValueError(f"{argument}: got {key!r}; accepted are {', '.join(table)}")
    return table[key]
