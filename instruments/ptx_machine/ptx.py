"""PTX text into instructions: `parse`. The language is that of NVIDIA's "Parallel Thread Execution ISA", 7.0 to 9.x.

Statements outside of kernels that say nothing about arithmetic (.file, .section, .visible, .pragma) are passed over.
"""

from dataclasses import replace
from functools import lru_cache

from ptx_machine.body import Body
from ptx_machine.syntax import BITS, Entry, Parameter
from ptx_machine.tokens import Tokens

NEWLINE_ENDS = (".version", ".target", ".address_size", ".file", ".loc")


@lru_cache(maxsize=4)  # kernels that were compiled together share a text
def parse(text: str) -> dict[str, Entry]:
    """Return the kernels of a PTX text, by name.

    Raises:
        ValueError: it is no PTX; with the line.
    """
    return _Reader(text).kernels()


class _Reader(Tokens):
    def __init__(self, text: str):
        super().__init__(text)
        self.files = {  # of .file, by number; Triton says them last
            number: path.strip('"') for word, number, path in zip(self.words, self.words[1:], self.words[2:])
            if word == ".file"
        }  # fmt: skip

    def kernels(self) -> dict[str, Entry]:
        says, entries, variables = set(), {}, []
        while self.next:
            word = self.next
            if word in NEWLINE_ENDS:
                says.add(word)
                self.rest_of_line()
            elif word == ".section":
                self.take()
                self.take()
                self.skip("{", "}")
            elif word in (".global", ".const", ".shared"):
                variables.append(self.variable())
            elif word == ".entry":
                entry = self.entry()
                entries[entry.name] = entry
            elif word == ".func":
                self.function()
            elif word in (".visible", ".weak", ".extern", ".common", ";"):
                self.take()
            elif word in (".pragma", ".alias"):
                self.skip_to(";")
            else:
                self.refuse("a directive of PTX")
        if not {".version", ".target"} <= says:
            raise ValueError("PTX: got a text without .version and .target; accepted is one of nvcc -ptx or Triton")
        return {name: replace(each, variables=(*variables, *each.variables)) for name, each in entries.items()}

    def function(self) -> None:
        """Pass over a device function: no machine here runs one."""
        self.take(".func")
        if self.next == "(":
            self.skip("(", ")")
        while self.next not in ("{", ";"):
            self.take()
        if self.next == "{":
            self.skip("{", "}")

    def entry(self) -> Entry:
        self.take(".entry")
        name, parameters, most = self.take(), [], None
        if self.next == "(":
            self.take()
            self.listed(lambda: parameters.append(self.parameter(parameters)), ")")
        while self.next != "{":
            word = self.take()
            if word in (".maxntid", ".reqntid"):
                most = tuple(int(each) for each in self.rest_of_line() if each != ",")
        body = Body(self, self.files)
        body.read()
        return Entry(name, (*parameters,), (*body.variables,), (*body.instructions,), body.labels, body.tables, most)

    def parameter(self, before: list[Parameter]) -> Parameter:
        self.take(".param")
        kind, align = "b8", 0
        while self.next.startswith("."):
            word = self.take()
            if word == ".align" and kind == "b8":  # behind .ptr it speaks of what the pointer points to
                align = self.number()
            elif word == ".align":
                self.number()
            elif word[1:] in BITS:
                kind = word[1:]
        name, width, count = self.take(), BITS[kind] // 8, 1
        structure = self.next == "["
        if structure:
            self.take()
            count = self.count()
            self.take("]")
        align = align or width
        start = before[-1].offset + before[-1].size if before else 0
        return Parameter(name, None if structure else kind, -(-start // align) * align, width * count)
