"""The body of a kernel, between its braces: declarations, labels, instructions."""

import struct
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ptx_machine.special_registers import SPECIAL_REGISTERS
from ptx_machine.syntax import (
    BITS,
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
    parts,
)
from ptx_machine.tokens import INLINED, Tokens
from ptx_machine.wmma import lowered

CONSTANTS = {"_": None, "WARP_SZ": Immediate(32)}
DEEPEST = 64  # calls that are inlined into one another


@dataclass
class _Scope:
    """Registers that are declared in { }. Those of a range such as %r<8> are made when they are used.

    Attributes:
        number: of the scope in its kernel. registers: name -> type.
        ranges: prefix -> (number of registers, type).
    """

    number: int
    registers: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)


@cache
def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in name.split(".") if word)


def _scoped(name: str, number: int) -> str:
    """Return the name, unique in its kernel, of a register or label that is declared in a scope."""
    return name if number == 0 else f"{name}@{number}"


class Body:
    """Reads the body of a kernel into `instructions`, `variables`, `labels` and `tables`. Each method raises a
    ValueError, with the line, where the text is no PTX."""

    def __init__(self, tokens: Tokens, files: dict[str, str]):
        self.tokens, self.files = tokens, files
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.labels: dict[str, int] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.scopes: list[_Scope] = []
        self.known: dict[str, Register | None] = {}  # what `register` has found in the scopes as they are now
        self.branches: list[tuple[int, list[int]]] = []  # the numbers of a branch and of the scopes around it
        self.number, self.places = 0, ()
        self.calls: dict[tuple[str, ...], tuple[str, ...]] = {}  # (file, line, column) -> those of the call around it

    def read(self) -> None:
        """Read the body, from { to }."""
        tokens = self.tokens
        tokens.take("{")
        self.open()
        while self.scopes:
            word = tokens.next
            if not word:
                tokens.refuse("}")
            if word in ("{", "}", ";"):
                tokens.take()
                if word == "{":
                    self.open()
                elif word == "}":
                    self.scopes.pop()
                    self.known.clear()
            elif word == ".reg":
                self.registers()
            elif word in (".shared", ".local"):
                self.variables.append(tokens.variable())
            elif word == ".loc":
                self.location(tokens.rest_of_line())
            elif word in (".pragma", ".param"):
                tokens.skip_to(";")
            elif tokens.second == ":" and not word.startswith("@"):
                self.label()
            else:
                self.instructions.extend(lowered(self.instruction()))
        self.aim()

    def aim(self) -> None:
        """Give each branch the label of its name in the innermost scope that has one."""
        for at, scopes in self.branches:
            branch = self.instructions[at]
            (to,) = branch.operands
            if isinstance(to, Symbol):
                names = [_scoped(to.name, number) for number in reversed(scopes)]
                name = next((name for name in names if name in self.labels), to.name)
                self.instructions[at] = replace(branch, operands=(Symbol(name),))

    def location(self, words: list[str]) -> None:
        """Take a .loc: file, line, column; of an inlined function also those of its call, or, in Triton's comment, the
        names of files and the lines of all calls around it."""
        here = (*words[1:4],)
        if INLINED in words:
            calls = words[words.index(INLINED) + 1 :]
            named = {Path(path).name: path for path in self.files.values()}
            names = [name.strip('"') for name in calls[::2]]
            callers = ((named.get(name, name), int(line)) for name, line in zip(names, calls[1::2]))
            self.places = (self.files.get(here[0], here[0]), int(here[1])), *callers
            return
        if "inlined_at" in words:
            at = words.index("inlined_at")
            self.calls[here] = (*words[at + 1 : at + 4],)
        else:
            self.calls.pop(here, None)
        places, place = [], here
        while place is not None and len(places) < DEEPEST:
            file, line, _ = place
            places.append((self.files.get(file, file), int(line)))
            place = self.calls.get(place)
        self.places = (*places,)

    def open(self) -> None:
        """Begin a scope."""
        self.known.clear()
        self.scopes.append(_Scope(self.number))
        self.number += 1

    def label(self) -> None:
        """Read a label, or a list of labels of brx.idx."""
        name = self.tokens.take()
        self.tokens.take(":")
        if self.tokens.next == ".callprototype":
            self.tokens.skip_to(";")
        elif self.tokens.next == ".branchtargets":
            self.tokens.take()
            self.tables[name] = tuple(self.tokens.listed(self.tokens.take, ";"))
        elif (label := _scoped(name, self.scopes[-1].number)) in self.labels:
            self.tokens.at -= 2
            self.tokens.refuse("a label that is not there yet")
        else:
            self.labels[label] = len(self.instructions)

    def registers(self) -> None:
        """Read a declaration of registers."""
        self.known.clear()
        self.tokens.take(".reg")
        kind = self.tokens.take().lstrip(".")
        if kind not in BITS:
            self.tokens.at -= 1
            self.tokens.refuse(f"the type of a register: {', '.join(BITS)}")

        def declare():
            name = self.tokens.take()
            if self.tokens.next == "<":
                self.tokens.take()
                self.scopes[-1].ranges[name] = self.tokens.count(), kind
                self.tokens.take(">")
            else:
                self.scopes[-1].registers[name] = kind

        self.tokens.listed(declare, ";")

    def register(self, name: str) -> Register | None:
        """Find the register of a name in the innermost scope that has one; None: no scope does."""
        if name not in self.known:
            self.known[name] = self._declared(name)
        return self.known[name]

    def _declared(self, name: str) -> Register | None:
        prefix = name.rstrip("0123456789")
        for scope in reversed(self.scopes):
            kind = scope.registers.get(name)
            if kind is None and prefix != name and prefix in scope.ranges:
                count, range_kind = scope.ranges[prefix]
                kind = range_kind if int(name[len(prefix) :]) < count else None
            if kind is not None:
                return Register(_scoped(name, scope.number), kind)
        return None

    def instruction(self) -> Instruction:
        """Read an instruction."""
        tokens, guard = self.tokens, None
        line = tokens.line
        if tokens.next == "@":
            tokens.take()
            false = tokens.next == "!" and bool(tokens.take())
            guard = self.predicate(), false
        words = _words(tokens.take())
        operands = tokens.listed(self.operand, ";")
        if words[0] == "bra" and len(self.scopes) > 1:
            self.branches.append((len(self.instructions), [scope.number for scope in self.scopes]))
        return Instruction(words, (*operands,), guard, line, self.places)

    def predicate(self) -> Register:
        """Read a predicate."""
        found = self.register(self.tokens.take())
        if found is None:
            self.tokens.at -= 1
            self.tokens.refuse("a predicate that was declared")
        return found

    def operand(self) -> Operand:
        """Read an operand."""
        tokens, word = self.tokens, self.tokens.next
        if word in ("{", "("):
            tokens.take()
            return Vector((*tokens.listed(self.operand, "}" if word == "{" else ")"),))
        if word == "[":
            return self.address()
        if word == "!":
            tokens.take()
            return Negated(self.predicate())
        first = self.simple()
        if tokens.next == "|":
            tokens.take()
            return Vector((first, self.simple()))
        return first

    def simple(self) -> Register | Immediate | Symbol | None:
        """Read a register, a constant, or a name with a number added to it; None for "_"."""
        word = self.tokens.next
        if word == "-" or word[:1].isdigit():
            if word[:2] in ("0f", "0F"):
                return Immediate(int(self.tokens.take()[2:], 16), "f32")
            if word[:2] in ("0d", "0D"):
                return Immediate(int(self.tokens.take()[2:], 16), "f64")
            if "." in word:  # a decimal fraction, which people write
                return Immediate(*struct.unpack("<Q", struct.pack("<d", float(self.tokens.take()))), "f64")
            return Immediate(self.tokens.number())
        self.tokens.take()
        if word in CONSTANTS:
            return CONSTANTS[word]
        return self.register(word) or SPECIAL_REGISTERS.get(word) or Symbol(word, self.added())

    def added(self) -> int:
        """Read the number behind a plus or minus; 0 if there is none."""
        if self.tokens.next not in ("+", "-"):
            return 0
        sign = -1 if self.tokens.take() == "-" else 1
        return sign * self.tokens.number()

    def address(self) -> Address:
        """Read [base + offset]."""
        self.tokens.take("[")
        base, offset = self.simple(), 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        else:
            offset = self.added()
        coordinates: tuple[Operand, ...] = ()
        if self.tokens.next == ",":
            self.tokens.take()
            coordinates = parts(self.operand())
        self.tokens.take("]")
        if not isinstance(base, (Register, Symbol, Immediate)):
            self.tokens.refuse("the address of a register or a name")
        return Address(base, offset, coordinates)
