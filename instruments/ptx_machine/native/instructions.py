"""The instructions that are compiled, by name, and the functions that make an `Encoding` of each."""

import numpy as np
from llvmlite import ir

from ptx_machine import warpgroup
from ptx_machine.comparisons import combination
from ptx_machine.device import GPU
from ptx_machine.lanes import WARP
from ptx_machine.matrix import WHOLE, Product
from ptx_machine.memory import LOCAL, PARAMETERS, SHARED
from ptx_machine.moves import HINTS, MOVES, WAITS, bytes_read, nothing, space_of
from ptx_machine.native import atomics, copies, exchange, memory, mma, mma_whole, special_unit, wgmma
from ptx_machine.native.emitter import Emitter, NotNative, Outcome
from ptx_machine.native.encode import Encoding, Layout
from ptx_machine.native.floats import canonical
from ptx_machine.native.lanewise import compared, emit
from ptx_machine.native.vectors import lanes
from ptx_machine.operands import both, constant, whole
from ptx_machine.program import approximated, lanewise
from ptx_machine.syntax import BITS, Immediate, Instruction, Pair, Register, Symbol, parts
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
    meaning = lanewise(e.instruction, gpu)
    if meaning is None:
        raise NotNative
    to, *operands = e.instruction.operands
    write = e.result(to, meaning.gives)
    reads = [e.operand(operand, kind) for operand, kind in zip(operands, meaning.takes)]
    if approximated(e.instruction, gpu) is not None:
        if gpu.wobble is not None or meaning.gives != "f32":
            raise NotNative
        unit = special_unit.function(e.instruction)
        e.shape.append(gpu.name)
        e.build = lambda f: write(f, canonical(f.b, unit(f.b, *(read(f) for read in reads))))
        return
    e.build = lambda f: write(f, emit(f.b, e.instruction, [read(f) for read in reads]))


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
    e.slots += [e.layout.constant(into), e.layout.constant(np.zeros(WARP, np.uint32)), e.layout.special("%warpid")]
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


def _compare(e: Encoding, code: Code, gpu: GPU) -> None:
    instruction = e.instruction
    to, *operands = instruction.operands
    if isinstance(to, Pair):
        raise NotNative
    kind = instruction.types[0]
    write = e.result(to, "pred")
    reads = [e.operand(operand, kind) for operand in operands[:2]]
    joins = combination(instruction)
    third = e.operand(operands[2], "pred") if joins is not None else None
    word = next((word for word in instruction.words[2:] if word in ("and", "or", "xor")), "")

    def build(f):
        truth = compared(f.b, instruction, [read(f) for read in reads])
        if third is not None:
            truth = {"and": f.b.and_, "or": f.b.or_, "xor": f.b.xor}[word](truth, third(f))
        write(f, truth)

    e.build = build


def _move(e: Encoding, code: Code, gpu: GPU) -> None:
    to, operand = e.instruction.operands
    kind = e.instruction.types[-1]
    into, items = parts(to), parts(operand)
    if len(into) == len(items) == 1:
        write = e.result(to, kind)
        read = e.operand(operand, kind)
        e.build = lambda f: write(f, read(f))
        return
    item_kind = f"b{BITS[kind] // max(len(into), len(items))}"
    if len(into) == 1:
        write = e.result(to, kind)
        reads = [e.operand(item, item_kind) for item in items]
        e.build = lambda f: write(f, _packed(f, [read(f) for read in reads], kind, item_kind))
        return
    writes = [e.result(item, item_kind) for item in into if item is not None]
    places = [i for i, item in enumerate(into) if item is not None]
    read = e.operand(operand, kind)
    e.shape.append(str(places))

    def build(f):
        value = read(f)
        b = f.b
        for i, write in zip(places, writes):
            shifted = b.lshr(value, b.all(i * BITS[item_kind], value))
            write(f, b.trunc(shifted, lanes(ir.IntType(BITS[item_kind]))))

    e.build = build


def _packed(f: Emitter, values: list[ir.Value], kind: str, item_kind: str) -> ir.Value:
    b, wide = f.b, lanes(ir.IntType(BITS[kind]))
    total = b.all(0, wide)
    for i, value in enumerate(values):
        total = b.or_(total, b.shl(b.zext(value, wide), b.all(i * BITS[item_kind], wide)))
    return total


def _to_generic(e: Encoding, code: Code, gpu: GPU) -> None:
    base = {"shared": SHARED, "local": LOCAL, "param": PARAMETERS}.get(space_of(e.instruction), 0)
    write, back = e.result(e.instruction.operands[0], "u64"), "to" in e.instruction.words
    read = e.operand(e.instruction.operands[1], "u64")

    def build(f):
        x = read(f)
        write(f, (f.b.sub if back else f.b.add)(x, f.b.all(base, x)))

    e.build = build


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


def _atomic(e: Encoding, code: Code, gpu: GPU) -> None:
    words, kind, operands = e.instruction.words, e.instruction.types[-1], e.instruction.operands
    operation = next((word for word in words if word in atomics.ATOMIC), "")
    if len(operands) != 3 or not operation or kind not in ("s32", "u32"):
        raise NotNative
    to, at, operand = operands
    if {*words} - {"atom", "shared", operation, kind, *HINTS} or BITS[e.raw(to)] != 32:
        raise NotNative
    base = e.address(at)
    read = e.operand(operand, kind)
    e.build = lambda f: atomics.atomic(f, operation, kind[0] == "s", base, read)


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
    first, second = both(e.instruction.operands[0], e.instruction)
    for item in (first, second):
        if item is not None:
            e.raw(item)
    for item in e.instruction.operands[1:4]:
        e.operand(item, "b32")
    mode, result, inside = e.instruction.words[2], first is not None, second is not None
    e.shape.append(f"{result} {inside}")
    e.build = lambda f: exchange.shuffle(f, mode, result, inside)


def _vote(e: Encoding, code: Code, gpu: GPU) -> None:
    mode, (to, operand) = e.instruction.words[2], e.instruction.operands[:2]
    write, read = e.result(to, "b32" if mode == "ballot" else "pred"), e.operand(operand, "pred")
    e.build = lambda f: write(f, exchange.vote(f, mode, read(f)))


def _transpose(e: Encoding, code: Code, gpu: GPU) -> None:
    write, read = (made(operand, "b32") for made, operand in zip((e.result, e.operand), e.instruction.operands))
    e.build = lambda f: write(f, exchange.transpose(f, read(f)))


def _multiply(e: Encoding, code: Code, gpu: GPU) -> None:
    product = Product(e.instruction, gpu)
    e.shape.append(gpu.name)
    for operand in e.instruction.operands:
        for item in parts(operand):
            if isinstance(item, Immediate):
                e.operand(item, "b32")
            elif e.raw(Register("_", "b32") if item is None else item) not in ("b32", "f32", "u32", "s32"):
                raise NotNative
    if product.whole:
        e.build = lambda f: mma_whole.product(f, product.shape, (product.a, product.b), product.saturated)
    else:
        e.build = lambda f: mma.multiply(f, product.core, product.shape, product.a, product.gives)


TABLE = {
    "bar": _barrier, "barrier": _barrier, "bra": _branch, "setp": _compare, "mov": _move, "cvta": _to_generic,
    "ld": _load, "st": _store, "cp": _copy, "ldmatrix": _matrices, "shfl": _shuffle, "mma": _multiply, "vote": _vote,
    "ret": _end, "exit": _end, "wgmma": _warpgroup, "atom": _atomic, "movmatrix": _transpose,
    **{name: _nothing for name, step in MOVES.items() if step is nothing},
}  # fmt: skip
