"""The words of a PTX text: `Tokens`, and how lists, brackets and variables are read."""

import re
from collections.abc import Callable
from typing import NoReturn

from ptx_machine.syntax import BITS, Variable

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
LOC = re.compile(r"^(\s*\.loc[^/\n]*)//(.*@\[.*)$", re.MULTILINE)  # Triton names the calls around a line in a comment
CALL = re.compile(r"@\[ ([^\s:]+):(\d+):\d+")
INLINED = "inlined"
FLOATS = ("0f", "0F", "0d", "0D")  # before the bits of a float
TOKEN = re.compile(
    r'"[^"\n]*"'
    r"|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+\.\d*|\d+U?"  # numbers
    r"|[.]reg(?=[.])|[.]?[A-Za-z_$%][\w$]*(?:(?:\.|::)\w[\w$]*)*\.?"  # names; nvcc ends some with a dot,
    # and asm in CUDA's headers joins .reg to a type
    r"|\S"
)


def _calls(match: re.Match) -> str:
    """Turn such a comment into words: INLINED, then the file and the line of each call, the innermost first."""
    return f"{match[1]} {INLINED} " + " ".join(f'"{file}" {line}' for file, line in CALL.findall(match[2]))


class Tokens:
    """The words of a PTX text, read one after the other. Each method raises a ValueError, with the line, where the text
    is no PTX."""

    def __init__(self, text: str):
        blank = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), LOC.sub(_calls, text))
        self.words, self.lines, self.at = [], [], 0  # the lines of the words, from 1
        for number, line in enumerate(blank.split("\n"), 1):
            found = TOKEN.findall(line)
            self.words += found
            self.lines += [number] * len(found)
        self.words += ["", ""]  # the end
        self.lines += [self.lines[-1] if self.lines else 1] * 2

    @property
    def next(self) -> str:
        """The next word; "" at the end."""
        return self.words[self.at]

    @property
    def second(self) -> str:
        """The word behind the next one; "" at the end."""
        return self.words[self.at + 1]

    @property
    def line(self) -> int:
        """The line of the next word."""
        return self.lines[self.at]

    def take(self, *accepted: str) -> str:
        """Read the next word, which must be one of `accepted`, if there are any."""
        word = self.next
        if not word or (accepted and word not in accepted):
            self.refuse(" or ".join(accepted) or "more")
        self.at += 1
        return word

    def refuse(self, accepted: str) -> NoReturn:
        """Raise the ValueError of the next word; accepted: what may come there."""
        raise ValueError(f"PTX, line {self.line}: got {self.next or 'the end of the text'!r}; accepted is {accepted}")

    def rest_of_line(self) -> list[str]:
        """Read the remaining words of the line."""
        first, line = self.at, self.line
        while self.next and self.line == line:
            self.at += 1
        return self.words[first : self.at]

    def skip(self, opening: str, closing: str) -> None:
        """Skip a bracketed part, whose opening bracket is next."""
        depth = 0
        while True:
            word = self.take()
            depth += (word == opening) - (word == closing)
            if depth == 0:
                return

    def skip_to(self, *ends: str) -> None:
        """Skip to one of these words, and read it."""
        while self.take() not in ends:
            pass

    def count(self) -> int:
        """Read the size of an array or the number of registers, which is not negative."""
        at, count = self.at, self.number()
        if count < 0:
            self.at = at
            self.refuse("a whole number from 0")
        return count

    def number(self) -> int:
        """Read a whole number, or the bits of a float (0f3F800000)."""
        sign = -1 if self.next == "-" and self.take() else 1
        word = self.take()
        try:
            return int(word[2:], 16) if word[:2] in FLOATS else sign * int(word.rstrip("U"), 0)
        except ValueError:
            self.at -= 1
            self.refuse("a whole number")

    def listed(self, one: Callable[[], object], closing: str) -> list:
        """Read a list, "one, one, ... closing", by calls of `one`, and return their results."""
        items = []
        while self.next != closing:
            items.append(one())
            if self.next != closing:
                self.take(",")
        self.take(closing)
        return items

    def variable(self) -> Variable:
        """Read the declaration of a variable."""
        space, align, kind = self.take().lstrip("."), 0, "b8"
        while self.next.startswith("."):
            word = self.take()
            if word == ".align":
                align = self.number()
            elif word[1:] in BITS:
                kind = word[1:]
        name, width, size = self.take(), BITS[kind] // 8, 1
        count: int | None = 1
        while self.next == "[":
            self.take()
            size = None if self.next == "]" else self.count()
            count = None if size is None or count is None else count * size
            self.take("]")
        data = None
        if self.next == "=":
            self.take()
            values = self.listed(self.number, "}") if self.next == "{" and self.take() else [self.number()]
            data = b"".join((value % (1 << 8 * width)).to_bytes(width, "little") for value in values)
        self.take(";")
        return Variable(name, space, align or width, None if count is None else count * width, data)
