"""A model that is named by the function that runs it."""

import importlib
from collections.abc import Callable

from fa_lib.execution.untrusted import message, type_name


def function_of(name: str) -> Callable:
    """The function that "package.module:function" names."""
    accepted = "accepted is package.module:function, a function without arguments that runs the model"
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"function: got {name!r}; {accepted}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        where = "modules are looked for in the current folder and on PYTHONPATH"
        raised = f"{type_name(error)}: {message(error)}"
        raise ValueError(f"function: got {name!r}; it cannot be had: {raised} ({where})") from error
    if not callable(found):
        raise ValueError(f"function: got {name!r}, a {type(found).__name__}; {accepted}")
    return found
