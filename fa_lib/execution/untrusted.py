"""Text of a stranger's: names, messages, prints. It becomes an `Untrusted` where it comes in."""

from typing import Self


class Untrusted(str):
    """A text on one line, each control character as its escape: it moves no terminal's cursor and hides nothing.

    Args:
        text: of any kind; its str().
    """

    def __new__(cls, text: object) -> Self:
        text = str.__str__(f"{text}")  # of a class of its own, which may say anything of itself, the characters
        if not text.isprintable():
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        return super().__new__(cls, text)


def first_line(text: object) -> Untrusted:
    """The first line of a text, at most 300 characters of it."""
    return Untrusted(f"{text}".strip().split("\n")[0][:300])


def message(error: BaseException) -> Untrusted:
    """The first line of an error's own text; "" where it cannot even be printed."""
    try:
        return first_line(str(error))
    except BaseException:
        return Untrusted("")


def type_name(value: object) -> Untrusted:
    """The name of a value's class."""
    return Untrusted(type(value).__name__)
