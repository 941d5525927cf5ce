"""The instructions that are compiled, by name, and the functions that make an `Encoding` of each."""

from collections.abc import Sequence

import numpy as np

from ptx_machine import warpgroup
from ptx_machine.device import GPU
from ptx_machine.exchange import shuffled
from ptx_machine.lanes import DTYPES, WARP, Lanewise
from ptx_machine.matrix import WHOLE, Product
from ptx_machine.moves import MOVES, WAITS, bytes_read, nothing, space_of
from ptx_machine.native import copies, memory, mma, wgmma
from ptx_machine.native.emitter import NotNative, Outcome
from ptx_machine.native.encode import Encoding, Layout
from ptx_machine.native.traced import traced
from ptx_machine.native.vectors import I32
from ptx_machine.operands import both, constant, targets, whole
from ptx_machine.program import approximated, lanewise, operands_of
from ptx_machine.special_registers import SPECIAL_REGISTERS
from ptx_machine.syntax import Immediate, Instruction, Operand, Register, Symbol, parts
from ptx_machine.warp import Code


def encode(instruction: Instruction, code: Code, layout: Layout, gpu: GPU) -> Encoding | None:
    """Encode an instruction of a kernel for a GPU. None: the numpy machine executes it, or refuses it."""
    e = Encoding(instruction, layout)
    try:
        TABLE.get(instruction.name, _lanewise)(e, code, gpu)
    except (NotNative, ValueError, LookupError):
        return None
    return e


def _lanewise(e: Encoding, code: Code, gpu: GPU) -> None:
    """Of any instruction whose results numpy computes by functions of lanes."""
    results = lanewise(e.instruction, gpu)
    if approximated(e.instruction, gpu) is not None:
        if gpu.wobble is not None:
            raise NotNative
        e.shape.append(gpu.name)
    _computed(e, targets(e.instruction.operands[0], e.instruction), results, operands_of(e.instruction))


def _computed(
    e: Encoding, into: list[Register | None], results: Sequence[Lanewise], operands: list[Operand], full: bool = False
) -> None:  # fmt: skip
    """Encode results that are functions of operands. full: whether only all lanes together compute them."""
    if not results:
        raise NotNative
    kept = [(result, register) for result, register in zip(results, into) if register is not None]
    e.shape.append(f"{[register is not None for register in into]}")
    writes = [e.result(register, result.gives) for result, register in kept]
    reads = [e.operand(operand, kind) for operand, kind in zip(operands, results[0].takes)]

    def build(f):
        if full:
            f.needs(f.full)
        x = [read(f) for read in reads]
        for (result, _), write in zip(kept, writes):
            y = traced(result.run, x)
            if y.dtype.itemsize != DTYPES[result.gives].itemsize:
                raise NotNative
            write(f, y.value)

    e.build = build


def _branch(e: Encoding, code: Code, gpu: GPU) -> None:
    (to,) = e.instruction.operands
    if not isinstance(to, Symbol):
        raise NotNative
    e.slots.append(code.labels[to.name])
    e.build, e.outcome = lambda f: None, Outcome.BRANCH


def _end(e: Encoding, code: Code, gpu: GPU) -> None:
    e.build, e.outcome = lambda f: None, Outcome.END


def _nothing(e: Encoding, code: Code, gpu: GPU) -> None:
    """Of what has no effect in a machine that executes in order."""
    e.build = lambda f: None


def _warpgroup(e: Encoding, code: Code, gpu: GPU) -> None:
    if e.instruction.words[1] != "mma_async":
        return _nothing(e, code, gpu)
    product = warpgroup.Product(e.instruction, e.layout.names)
    if product.kind in WHOLE:
        raise NotNative
    core = gpu.core(product.kind, product.gives, "wgmma")
    into = np.array([e.layout.register(register) for register in product.into])
    warp, zeros = e.layout.register(SPECIAL_REGISTERS["%warpid"]), e.layout.constant(np.zeros(WARP, np.uint32))
    e.slots += [e.layout.constant(into), zeros, warp]
    for register in product.left:
        e.raw(register)
    _, a, b, keeps, *_ = e.instruction.operands
    reads = [e.operand(each, "b64") for each in ((b,) if product.left else (a, b))]
    reads.append(e.operand(keeps, "pred"))
    e.shape.append(f"{gpu.name} {len(into)} {product.signs} {product.a_turned} {product.b_turned}")
    e.build = lambda f: wgmma.multiply(f, product, core, reads)


def _barrier(e: Encoding, code: Code, gpu: GPU) -> None:
    """Of all threads of a block, where a whole warp comes to it at once."""
    operands = e.instruction.operands
    if e.instruction.words[:2] == ("bar", "warp"):
        return _nothing(e, code, gpu)
    if "sync" not in e.instruction.words or "cluster" in e.instruction.words:
        raise NotNative
    if len(operands) != 1 or not isinstance(operands[0], Immediate):
        raise NotNative
    e.slots.append(int(constant(operands[0], "u32")[0]))
    e.build, e.outcome = lambda f: f.needs(f.full), Outcome.BARRIER


def _load(e: Encoding, code: Code, gpu: GPU) -> None:
    kind, space = e.instruction.types[-1], space_of(e.instruction)
    into = parts(e.instruction.operands[0])
    types = [e.raw(item) for item in into]
    base = e.address(e.instruction.operands[1])
    e.slots.append(code.local)
    e.build = lambda f: memory.load(f, space, kind, types, base)


def _store(e: Encoding, code: Code, gpu: GPU) -> None:
    kind, space = e.instruction.types[-1], space_of(e.instruction)
    base = e.address(e.instruction.operands[0])
    widths = []
    for item in parts(e.instruction.operands[1]):
        if isinstance(item, Register):
            widths.append(e.raw(item))
        else:
            e.operand(item, kind)
            widths.append(kind)
    e.slots.append(code.local)
    e.build = lambda f: memory.store(f, space, kind, widths, base)


def _copy(e: Encoding, code: Code, gpu: GPU) -> None:
    words, operands = e.instruction.words, e.instruction.operands
    if words[2] in WAITS:
        return _nothing(e, code, gpu)
    to, of = e.address(operands[0]), e.address(operands[1])
    size = whole(operands[2], e.instruction)
    count = bytes_read(e.instruction)
    if of != "b64":
        raise NotNative
    e.shape.append(f"{size} {count is not None}")
    if count is not None:
        e.operand(count, "b32")
    e.build = lambda f: copies.copy(f, size, to, counted=count is not None)


def _matrices(e: Encoding, code: Code, gpu: GPU) -> None:
    words = e.instruction.words
    into = parts(e.instruction.operands[0])
    for item in into:
        e.raw(item)
    base = e.address(e.instruction.operands[1])
    e.build = lambda f: copies.matrices(f, len(into), "trans" in words, base)


def _shuffle(e: Encoding, code: Code, gpu: GPU) -> None:
    into, operands = both(e.instruction.operands[0], e.instruction), [*e.instruction.operands[1:4]]
    _computed(e, into, shuffled(e.instruction), operands, full=True)


def _vote(e: Encoding, code: Code, gpu: GPU) -> None:
    """Bits of the lanes for ballot, else a predicate, the same in every lane."""
    mode, (to, operand) = e.instruction.words[2], e.instruction.operands[:2]
    write, read = e.result(to, "b32" if mode == "ballot" else "pred"), e.operand(operand, "pred")

    def build(f):
        b = f.b
        yes, every = (b.bitcast(mask, I32) for mask in (b.and_(read(f).value, f.mask), f.mask))
        none, all_of_them = b.icmp_unsigned("==", yes, I32(0)), b.icmp_unsigned("==", yes, every)
        found = {"ballot": yes, "any": b.not_(none), "all": all_of_them, "uni": b.or_(none, all_of_them)}[mode]
        write(f, b.splat(found))

    e.build = build


def _multiply(e: Encoding, code: Code, gpu: GPU) -> None:
    product = Product(e.instruction, gpu)
    e.shape.append(gpu.name)
    for operand in e.instruction.operands:
        for item in parts(operand):
            if isinstance(item, Immediate):
                e.operand(item, "b32")
            elif e.raw(Register("_", "b32") if item is None else item) not in ("b32", "f32", "u32", "s32"):
                raise NotNative
    e.build = lambda f: mma.multiply(f, product)


TABLE = {
    "bar": _barrier, "barrier": _barrier, "bra": _branch, "ld": _load, "st": _store, "cp": _copy,
    "ldmatrix": _matrices, "shfl": _shuffle, "mma": _multiply, "vote": _vote, "ret": _end, "exit": _end,
    "wgmma": _warpgroup,
    **{name: _nothing for name, step in MOVES.items() if step is nothing},
}  # fmt: skip
