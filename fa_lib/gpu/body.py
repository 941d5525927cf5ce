"""What stands between a kernel's braces: declarations, labels, instructions."""

import re
from dataclasses import dataclass, field

from fa_lib.gpu.syntax import (
    BITS,
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)
from fa_lib.gpu.tokens import Tokens

SPECIAL = re.compile(r"%(n?tid|n?ctaid|laneid|n?warpid|n?smid|gridid|clock|lanemask_|globaltimer|envreg|pm|dynamic|"
                     r"total_smem|aggr_smem|cluster|is_explicit|reserved)")  # fmt: skip


@dataclass
class _Scope:
    """Names that are declared in { }: of registers, with their types; `first` ones of %r<8> are made when used."""

    number: int
    registers: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)  # prefix: how many, type


class Body:
    """Reads what stands between a kernel's braces."""

    def __init__(self, tokens: Tokens, files: dict[str, str]):
        self.tokens, self.files = tokens, files
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.labels: dict[str, int] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.scopes: list[_Scope] = []
        self.number, self.source = 0, None

    def read(self) -> None:
        tokens = self.tokens
        tokens.take("{")
        self.open()
        while self.scopes:
            word = tokens.next
            if word in ("{", "}", ";"):
                tokens.take()
                if word == "{":
                    self.open()
                elif word == "}":
                    self.scopes.pop()
            elif word == ".reg":
                self.registers()
            elif word in (".shared", ".local"):
                self.variables.append(tokens.variable())
            elif word == ".loc":
                _, file, line, *_ = tokens.rest_of_line()
                self.source = self.files.get(file, file), int(line)
            elif word in (".pragma", ".param"):
                tokens.skip_to(";")
            elif tokens.tokens[tokens.at + 1].text == ":" and not word.startswith("@"):
                self.label()
            else:
                self.instructions.append(self.instruction())

    def open(self) -> None:
        self.scopes.append(_Scope(self.number))
        self.number += 1

    def label(self) -> None:
        name = self.tokens.take()
        self.tokens.take(":")
        if self.tokens.next == ".branchtargets":
            self.tokens.take()
            self.tables[name] = tuple(self.tokens.listed(self.tokens.take, ";"))
        else:
            self.labels[name] = len(self.instructions)

    def registers(self) -> None:
        self.tokens.take(".reg")
        kind = self.tokens.take().lstrip(".")
        if kind not in BITS:
            self.tokens.at -= 1
            self.tokens.refuse(f"the type of a register: {', '.join(BITS)}")

        def one():
            name = self.tokens.take()
            if self.tokens.next == "<":
                self.tokens.take()
                self.scopes[-1].ranges[name] = self.tokens.number(), kind
                self.tokens.take(">")
            else:
                self.scopes[-1].registers[name] = kind

        self.tokens.listed(one, ";")

    def register(self, name: str) -> Register | None:
        """The register of that name in the innermost scope that has one."""
        prefix = name.rstrip("0123456789")
        for scope in reversed(self.scopes):
            kind = scope.registers.get(name)
            if kind is None and prefix != name and prefix in scope.ranges:
                count, kind_of_all = scope.ranges[prefix]
                kind = kind_of_all if int(name[len(prefix) :]) < count else None
            if kind is not None:
                return Register(name if scope.number == 0 else f"{name}@{scope.number}", kind)
        return None

    def instruction(self) -> Instruction:
        tokens, guard = self.tokens, None
        line = tokens.tokens[tokens.at].line
        if tokens.next == "@":
            tokens.take()
            false = tokens.next == "!" and bool(tokens.take())
            found = self.register(tokens.take())
            if found is None:
                tokens.at -= 1
                tokens.refuse("a predicate that was declared")
            guard = found, false
        words = tuple(word for word in tokens.take().split(".") if word)
        operands = tokens.listed(self.operand, ";")
        return Instruction(words, (*operands,), guard, line, self.source)

    def operand(self) -> Operand:
        tokens, word = self.tokens, self.tokens.next
        if word == "{":
            tokens.take()
            return Vector((*tokens.listed(self.operand, "}"),))
        if word == "(":
            tokens.take()
            return Vector((*tokens.listed(self.operand, ")"),))
        if word == "[":
            return self.address()
        if word == "!":
            tokens.take()
            found = self.register(tokens.take())
            if found is None:
                tokens.at -= 1
                tokens.refuse("a predicate that was declared")
            return Negated(found)
        first = self.simple()
        if tokens.next == "|":
            tokens.take()
            return Pair(first, self.simple())
        return first

    def simple(self) -> Register | Special | Immediate | Symbol | None:
        """A register, a constant, or a name with what is added to it."""
        word = self.tokens.next
        if word == "-" or word[:1].isdigit():
            if word[:2] in ("0f", "0F"):
                return Immediate(int(self.tokens.take()[2:], 16), "f32")
            if word[:2] in ("0d", "0D"):
                return Immediate(int(self.tokens.take()[2:], 16), "f64")
            return Immediate(self.tokens.number())
        self.tokens.take()
        if word == "_":
            return None
        found = self.register(word)
        if found is not None:
            return found
        if SPECIAL.match(word):
            return Special(word)
        return Symbol(word, self.added())

    def added(self) -> int:
        """The number behind a plus, 0 if there is none."""
        if self.tokens.next not in ("+", "-"):
            return 0
        sign = -1 if self.tokens.take() == "-" else 1
        return sign * self.tokens.number()

    def address(self) -> Address:
        self.tokens.take("[")
        base, offset = self.simple(), 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        else:
            offset = self.added()
        if self.tokens.next == ",":  # of a tensor's coordinates: no machine here runs it, and the instruction says so
            self.tokens.take()
            self.operand()
        self.tokens.take("]")
        if not isinstance(base, (Register, Symbol, Immediate)):
            self.tokens.refuse("the address of a register or a name")
        return Address(base, offset)
