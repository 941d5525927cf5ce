# Any: the stubs that a type checker brings along know no columns and no axes, and would object to both.
from typing import Any

def __getattr__(name: str) -> Any: ...
