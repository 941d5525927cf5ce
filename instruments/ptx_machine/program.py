"""A kernel of PTX as steps that a warp takes, for a GPU: every instruction is looked up before anything runs. What
makes a step raises a ValueError for an instruction that is not modelled."""

from collections.abc import Mapping

from ptx_machine import control, exchange, tensor_memory, warpgroup
from ptx_machine.approximate import wobbling
from ptx_machine.atomics import atomic
from ptx_machine.comparisons import SELECTIONS
from ptx_machine.contraction import contracted
from ptx_machine.conversions import convert
from ptx_machine.device import GPU
from ptx_machine.floats import FLOATS as FLOAT_MEANINGS
from ptx_machine.integers import INTEGERS
from ptx_machine.lanes import FLOATS, Lanes, Lanewise, Meanings, refuse
from ptx_machine.memory_barriers import memory_barrier
from ptx_machine.moves import MOVES, REGISTER_MOVES, nothing
from ptx_machine.operands import Addresses, source, targets
from ptx_machine.special_unit import measured
from ptx_machine.syntax import Address, Entry, Instruction, Operand, Symbol, Variable, parts
from ptx_machine.tensor_maps import bulk_copy
from ptx_machine.warp import Code, Step

PREDICATES = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a != b, "not": lambda a: ~a}
OTHERS: dict[str, Meanings] = {"cvt": convert, "movmatrix": exchange.transpose, **SELECTIONS, **REGISTER_MOVES}
STEPS = {  # of an instruction and the addresses of names
    "bar": control.barrier, "barrier": control.barrier, "nanosleep": control.sleep, "trap": control.trap,
    "ret": control.end, "exit": control.end, "call": control.call, "mbarrier": memory_barrier, "atom": atomic,
    "red": atomic, **exchange.EXCHANGES, **MOVES,
}  # fmt: skip
ON_GPU = {"mma": exchange.multiply, "wgmma": warpgroup.multiply, "tcgen05": tensor_memory.fifth}  # and the GPU
BRANCHES = {"bra": control.branch, "brx": control.branch_by_table}
MOST_UNKNOWN = 12  # named in an error


def approximated(instruction: Instruction, gpu: GPU) -> Lanewise | None:
    """Return the Lanewise of an approximate instruction that a GPU has otherwise than rounded correctly: its own, as
    measured, or with a wobble; None of another instruction or GPU."""
    return measured(instruction, gpu.name) if gpu.wobble is None else wobbling(instruction, gpu.wobble)


def lanewise(instruction: Instruction, gpu: GPU) -> tuple[Lanewise, ...]:
    """Return the results of an instruction that uses only each thread's own values; (): it is of another kind.

    Raises:
        ValueError: it is of this kind, and not modelled.
    """
    name, types = instruction.name, instruction.types
    approximate = approximated(instruction, gpu)
    if approximate is not None:
        return (approximate,)
    if name in PREDICATES and types[-1:] == ("pred",):
        return (Lanewise(("pred",) * (1 if name == "not" else 2), "pred", PREDICATES[name]),)
    arithmetic = FLOAT_MEANINGS if types and types[-1] in FLOATS else INTEGERS
    table: Mapping[str, Meanings] = OTHERS if name in OTHERS else arithmetic
    if name not in table:
        return ()
    if not types and table is INTEGERS:
        raise refuse(instruction, "its type is not modelled")
    results = table[name](instruction)
    return results if isinstance(results, tuple) else (results,)


def _aligned(start: int, align: int) -> int:
    return -(-start // align) * align


def _place(variables: list[Variable], start: int, names: dict[str, int]) -> int:
    """Give variables addresses from `start` on, and return the address behind them."""
    for variable in variables:
        names[variable.name] = _aligned(start, variable.align)
        start = names[variable.name] + (variable.size or 0)
    return start


def ready(entry: Entry, gpu: GPU, addresses: Mapping[str, int]) -> tuple[Code, Addresses]:
    """Look up the steps of a kernel for a GPU, and the addresses of its variables.

    Args:
        entry: the kernel. gpu: the GPU. addresses: name -> address, of global and const variables.

    Returns:
        (the Code; name -> address, also of parameters, shared and local variables).

    Raises:
        ValueError: the kernel has instructions that are not modelled: all of them, with lines.
    """
    entry = contracted(entry)
    names = dict(addresses) | {variable.name: variable.offset for variable in entry.parameters}
    sized = {space: [variable for variable in entry.variables if variable.space == space and variable.size is not None]
             for space in ("shared", "local")}  # fmt: skip
    unsized = [variable for variable in entry.variables if variable.space == "shared" and variable.size is None]
    local = _place(sized["local"], 0, names)
    dynamic = _aligned(_place(sized["shared"], 0, names), max((16, *(variable.align for variable in unsized))))
    names |= {variable.name: dynamic for variable in unsized}  # all of them begin there
    last = entry.instructions[-1].line if entry.instructions else 0
    instructions = (*entry.instructions, Instruction(("ret",), (), None, last))
    steps: list[Step] = []
    unknown: dict[str, list[str]] = {}
    for instruction in instructions:
        try:
            steps.append(step(instruction, entry, names, gpu))
        except (LookupError, StopIteration):
            unknown.setdefault(f"{instruction}: its words are not modelled", []).append(str(instruction.line))
        except ValueError as error:
            unknown.setdefault(str(error), []).append(str(instruction.line))
    if unknown:
        reasons = [f"{reason} (line {', '.join(lines[:3])})" for reason, lines in [*unknown.items()][:MOST_UNKNOWN]]
        ending = f"; and {len(unknown) - MOST_UNKNOWN} more" if len(unknown) > MOST_UNKNOWN else ""
        raise ValueError(f"{entry.name}: instructions that are not modelled: {'; '.join(reasons)}{ending}")
    members = tuple(exchange.members(instruction, names) for instruction in instructions)
    return Code(entry.name, instructions, (*steps,), members, entry.labels, local, dynamic), names


def step(instruction: Instruction, entry: Entry, names: Addresses, gpu: GPU) -> Step:
    """Return the step that a warp takes for an instruction."""
    name = instruction.name
    if name in BRANCHES:
        return BRANCHES[name](instruction, entry)
    if name in ON_GPU:
        return ON_GPU[name](instruction, names, gpu)
    if instruction.words[:3] == ("cp", "async", "bulk"):
        return bulk_copy(instruction, names)
    if name in ("ld", "st") and "param" in instruction.words and not _own(instruction, names):
        return nothing(instruction, names)  # of a call, which is a Fault itself
    if name in STEPS:
        return STEPS[name](instruction, names)
    results = lanewise(instruction, gpu)
    if not results:
        raise refuse(instruction, "it is not modelled")
    return everywhere(instruction, results, names)


def _own(instruction: Instruction, names: Addresses) -> bool:
    """Return whether an address is of the kernel's own parameters, and not of those of a function that it calls."""
    bases = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
    return not any(isinstance(base, Symbol) and base.name not in names for base in bases)


def everywhere(instruction: Instruction, results: tuple[Lanewise, ...], names: Addresses) -> Step:
    """Make the step of a lanewise instruction.

    Raises:
        ValueError: it has another number of operands.
    """
    into, operands = targets(instruction.operands[0], instruction), operands_of(instruction)
    takes = results[0].takes
    if len(operands) != len(takes) or len(into) > len(results):
        raise refuse(instruction, f"got {len(operands)} operands; accepted are {len(takes)}")
    values = [source(operand, kind, instruction, names) for operand, kind in zip(operands, takes)]

    def take(warp, mask: Lanes):
        x = [value(warp) for value in values]
        warp.write_each(into, [result.run(*x) for _, result in zip(into, results)], mask)

    return take


def operands_of(instruction: Instruction) -> list[Operand]:
    """Return an instruction's operands without its results, those of a vector one after the other."""
    return [part for operand in instruction.operands[1:] for part in parts(operand)]
