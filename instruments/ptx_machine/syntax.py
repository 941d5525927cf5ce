"""PTX as data: kernels, instructions and their operands. `ptx.parse` makes them of text."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

LIBRARIES = (  # whose lines are not the kernel's own: of a line in one of them, the call counts
    "/cutlass/", "/cute/", "/triton/language/", "/cuda_", "/crt/", "/cccl/", "/libcudacxx/", "/nvidia/cu",
)  # fmt: skip
BITS = {  # of a value of each type; a predicate has one
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"b128": 128, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "tf32": 32, "f32": 32, "f32x2": 64, "f64": 64},
    **dict.fromkeys(("e4m3x2", "e5m2x2"), 16),
    **dict.fromkeys(("e4m3", "e5m2"), 8),
}


class Register(NamedTuple):
    """A register of every thread. Names are unique in a kernel: one declared in an inner scope has its scope's
    number."""

    name: str
    type: str


class Immediate(NamedTuple):
    """A constant.

    Attributes:
        value: a whole number, or the bits of a float. type: "int", "f32" or "f64".
    """

    value: int
    type: str = "int"


class Symbol(NamedTuple):
    """The address of a parameter, a variable or a label, with bytes added."""

    name: str
    offset: int = 0


class Address(NamedTuple):
    """[base + offset], in bytes; or [base + offset, {a, b, ...}], of a tensor map and coordinates in its tensor."""

    base: "Register | Symbol | Immediate"
    offset: int = 0
    coordinates: tuple["Operand", ...] = ()


class Vector(NamedTuple):
    """{a, b, ...}, or a | b of two results."""

    items: tuple["Operand", ...]


class Negated(NamedTuple):
    """A predicate with !, or a float with its sign changed (`contraction` makes such operands)."""

    register: Register


Operand: TypeAlias = Register | Immediate | Symbol | Address | Vector | Negated | None  # None: "_"


def parts(operand: Operand) -> tuple[Operand, ...]:
    """Return a and b of {a, b} and of a | b; of any other operand, the operand."""
    return operand.items if isinstance(operand, Vector) else (operand,)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        words: of its name: ("mma", "sync", "aligned", "m16n8k16", ...). operands: in the order of the text.
        guard: (predicate, whether it must be false): other threads skip the instruction; None: all execute it.
        line: of the PTX text, from 1.
        places: (file, line) that it was compiled from, then those of the calls that were inlined around it, the
            innermost first; () where the text does not say.
    """

    words: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    line: int
    places: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Its first word."""
        return self.words[0]

    @property
    def types(self) -> tuple[str, ...]:
        """The types among its words, in their order: ("f16", "f32") of cvt.rn.f16.f32."""
        return tuple(word for word in self.words if word in BITS)

    @property
    def frames(self) -> tuple[tuple[str, int], ...]:
        """`places` without those in libraries, unless there are no others."""
        own = tuple(place for place in self.places if not any(library in place[0] for library in LIBRARIES))
        return own or self.places[-1:]

    def __str__(self):
        return ".".join(self.words)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: of the parameter. type: of PTX; None for a structure.
        offset: of its first byte, in all parameters. size: in bytes.
    """

    name: str
    type: str | None
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A named piece of memory.

    Attributes:
        name: of the variable. space: "shared", "local", "global" or "const". align: in bytes.
        size: in bytes; None for shared memory whose size the launch gives.
        data: initial bytes of global and const memory; None: zeros.
    """

    name: str
    space: str
    align: int
    size: int | None
    data: bytes | None = None


@dataclass(frozen=True)
class Entry:
    """A kernel.

    Attributes:
        name, parameters, variables, instructions: of the kernel.
        labels: label -> number of the instruction behind it.
        tables: name of a list of brx.idx -> its labels.
        most: the most threads of a block (x, y, z) that it was compiled for; None: the text has no limit.
    """

    name: str
    parameters: tuple[Parameter, ...]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    most: tuple[int, ...] | None = None

    @property
    def parameter_bytes(self) -> int:
        """The size of all parameters."""
        return max((each.offset + each.size for each in self.parameters), default=0)
