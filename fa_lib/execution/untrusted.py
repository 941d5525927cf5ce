"""Texts that others wrote: names, messages, prints. They become an `Untrusted` before they are shown."""

from typing import Self


class Untrusted(str):
    """A text on one line, each control character as its escape: it moves no terminal's cursor and hides nothing.

    Args:
        text: of any kind; its str().
    """

    def __new__(cls, text: object) -> Self:
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in f"{text}")
        return super().__new__(cls, "".join(escaped))


def first_line(text: object) -> Untrusted:
    """The first line of a text, at most 300 characters of it."""
    return Untrusted(f"{text}".strip().split("\n")[0][:300])


def message(error: BaseException) -> Untrusted:
    """The first line of an error's own text; "" where it cannot even be printed."""
    try:
        return first_line(str(error))
    except BaseException:
        return Untrusted("")
