"""The loop of a warp, until it comes to an instruction that is not native: `int64 advance(instructions, warp, memory)`.

The rule is that of `Warp.run`: of the lanes that do not wait, those whose instruction is first in the text
execute it.
"""

from llvmlite import ir

from ptx_machine.lanes import WARP
from ptx_machine.native.emitter import FIRST_SLOT, FUNCTION, GUARD, SENSE, SLOTS, TOGETHER, TYPE, Outcome
from ptx_machine.native.encode import NOWHERE, Field
from ptx_machine.native.vectors import I8, I32, I64, POINTER, Builder, lanes

MOST = 1 << 22  # steps at a time: Ctrl-C is heard between them
AFTER = (1 << 64) - 1  # behind every instruction


def advance(module: ir.Module) -> ir.Function:
    """Add the function `advance` to a module. It returns the number of steps, and changes the fields of the warp, whose
    memory it gets."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER, POINTER, POINTER]), "advance")
    code, registers, memory = function.args  # a warp's memory: its registers lie behind its fields
    entry, top, step, run, passed, branched, waits, ended, leave = (
        function.append_basic_block(name) for name in "entry top step run passed branched waits ended leave".split()
    )
    b = Builder(entry)
    at_place, alive_place, blocked_place, held_place = (
        b.at(registers, field) for field in (Field.AT, Field.ALIVE, Field.BLOCKED, Field.HELD)
    )
    steps, here_place, mask_place = b.room(I64), b.room(lanes(I8)), b.room(lanes(I8))
    now, split = b.room(I64), b.room(I8)
    b.put(I64(0), steps)
    b.branch(top)

    def place(mask, at):
        b.put(b.select(mask, b.splat(at), b.get(at_place, lanes(I64))), at_place)

    b.position_at_end(top)  # who goes on, and where they stand
    alive, held = b.masked(alive_place), b.masked(held_place)
    free = b.and_(alive, b.not_(b.masked(blocked_place)))
    first = b.and_(free, b.not_(held))
    candidates = b.select(b.any(first), first, free)
    positions = b.get(at_place, lanes(I64))
    lowest = b.intrinsic("vector.reduce.umin", [b.select(candidates, positions, b.all(AFTER, positions))], I64)
    lanes_here = b.and_(free, b.icmp_unsigned("==", positions, b.splat(lowest)))
    b.keep(lanes_here, here_place)
    b.put(lowest, now)
    others = b.any(b.and_(free, b.not_(lanes_here)))
    b.put(b.zext(b.or_(others, b.any(held)), I8), split)  # 0: all that can go on go together
    with b.if_then(b.not_(b.any(free)), likely=False):
        b.ret(b.get(steps, I64, 8))
    b.branch(step)

    b.position_at_end(step)
    at, here, together = b.get(now, I64, 8), b.masked(here_place), b.icmp_unsigned("==", b.get(split, I8), I8(0))
    slots = b.at(code, b.mul(at, I64(8 * SLOTS)))
    target = b.get(b.at(slots, 8 * FUNCTION), TYPE.as_pointer(), 8)
    few = b.icmp_unsigned("<", b.get(steps, I64, 8), I64(MOST))
    with b.if_then(b.not_(b.and_(few, b.icmp_unsigned("!=", b.ptrtoint(target, I64), I64(0)))), likely=False):
        b.branch(leave)
    true = b.masked(b.at(registers, b.get(b.at(slots, 8 * GUARD), I64, 8)))
    sense = b.splat(b.icmp_unsigned("!=", b.get(b.at(slots, 8 * SENSE), I64, 8), I64(0)))
    mask = b.and_(here, b.xor(true, b.not_(sense)))
    b.keep(mask, mask_place)
    b.cbranch(b.any(mask), run, passed)

    b.position_at_end(run)
    of_all = b.icmp_unsigned("!=", b.get(b.at(slots, 8 * TOGETHER), I64, 8), I64(0))
    absent = b.any(b.and_(b.masked(alive_place), b.not_(mask)))
    with b.if_then(b.and_(of_all, absent), likely=False):
        b.branch(leave)
    full = b.icmp_unsigned("==", b.bitcast(mask, I32), I32((1 << WARP) - 1))
    outcome = b.call(target, [registers, slots, mask_place, full, memory])
    with b.if_then(b.icmp_unsigned("==", outcome, I64(Outcome.NOT_DONE)), likely=False):
        b.branch(leave)
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    b.keep(b.and_(b.masked(held_place), b.not_(mask)), held_place)
    switch = b.switch(outcome, passed)
    for case, block in ((Outcome.BRANCH, branched), (Outcome.BARRIER, waits), (Outcome.END, ended)):
        switch.add_case(I64(case), block)

    b.position_at_end(passed)  # all that stood here stand behind it
    b.put(b.add(at, I64(1)), now)
    with b.if_then(together):
        b.branch(step)
    place(here, b.add(at, I64(1)))
    b.branch(top)

    b.position_at_end(branched)  # those of the mask stand at the target, the others of here behind the branch
    goal = b.get(b.at(slots, 8 * FIRST_SLOT), I64, 8)
    with b.if_then(b.and_(together, b.icmp_unsigned("==", b.bitcast(mask, I32), b.bitcast(here, I32)))):
        b.put(goal, now)
        b.branch(step)
    place(here, b.add(at, I64(1)))
    place(mask, goal)
    b.branch(top)

    b.position_at_end(waits)  # all lanes came together
    place(mask, b.add(at, I64(1)))
    b.put(b.get(b.at(slots, 8 * FIRST_SLOT), I64, 8), b.at(registers, Field.BARRIER), 8)
    b.ret(b.get(steps, I64, 8))

    b.position_at_end(ended)  # those of the mask have ended, the others of here stand behind it
    place(here, b.add(at, I64(1)))
    b.keep(b.and_(b.masked(alive_place), b.not_(mask)), alive_place)
    b.branch(top)

    b.position_at_end(leave)
    place(b.masked(here_place), b.get(now, I64, 8))
    b.ret(b.get(steps, I64, 8))
    return function


def turns(module: ir.Module, one: ir.Function) -> ir.Function:
    """Add the function `turns` to a module: `int64 turns(instructions, warps, memory, first, count, size, counts,
    releases)`. Warps take turns, in their order from `first` on, each of `size` bytes of memory, until one comes to an
    instruction that is not native: it returns its number, or `count`. Where all that have not ended have come to one
    barrier, and `releases` is set, they go on, from the first one.

    counts: two numbers, to which it adds the steps, and how often a warp did some and then waited or ended.
    """
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] * 3 + [I64] * 3 + [POINTER, ir.IntType(1)]), "turns")
    code, warps, memory, first, count, size, counts, releases = function.args
    b, again = Builder(function.append_basic_block()), function.append_basic_block()
    number, mixed = b.room(I64), b.room(ir.IntType(1))
    before = b.get(counts, I64, 8)
    with b.if_then(b.icmp_unsigned(">=", first, count), likely=False):
        b.ret(count)
    b.branch(again)

    def add(value, place):
        b.put(b.add(b.get(place, I64, 8), value), place, 8)

    b.position_at_end(again)
    b.put(I64(NOWHERE), number)
    b.put(ir.IntType(1)(0), mixed)
    with b.counted(count, first) as index:
        warp = b.at(warps, b.mul(index, size))
        barrier_place = b.at(warp, Field.BARRIER)
        with b.if_then(b.icmp_signed("==", b.get(barrier_place, I64, 8), I64(NOWHERE))):
            steps = b.call(one, [code, warp, memory])
            add(steps, counts)
            free = b.and_(b.masked(b.at(warp, Field.ALIVE)), b.not_(b.masked(b.at(warp, Field.BLOCKED))))
            comes = b.icmp_signed("!=", b.get(barrier_place, I64, 8), I64(NOWHERE))
            with b.if_then(b.not_(b.or_(comes, b.not_(b.any(free))))):
                b.ret(index)
            add(b.zext(b.icmp_signed(">", steps, I64(0)), I64), b.at(counts, 8))
        # at a barrier, or it has ended; else it waits for what only numpy knows of
        here, alive, known = b.get(barrier_place, I64, 8), b.any(b.masked(b.at(warp, Field.ALIVE))), b.get(number, I64)
        fits = b.or_(b.icmp_signed("==", known, I64(NOWHERE)), b.icmp_signed("==", known, here))
        other = b.and_(alive, b.not_(b.and_(b.icmp_signed("!=", here, I64(NOWHERE)), fits)))
        b.put(b.or_(b.get(mixed, ir.IntType(1)), other), mixed)
        b.put(b.select(alive, here, known), number)
    one_barrier = b.and_(b.not_(b.get(mixed, ir.IntType(1))), b.icmp_signed("!=", b.get(number, I64), I64(NOWHERE)))
    few = b.icmp_unsigned("<", b.sub(b.get(counts, I64, 8), before), I64(MOST))
    seen = b.icmp_unsigned("==", first, I64(0))  # else the warps before were not looked at
    with b.if_then(b.not_(b.and_(b.and_(one_barrier, releases), b.and_(few, seen)))):
        b.ret(count)
    with b.counted(count) as index:
        b.put(I64(NOWHERE), b.at(b.at(warps, b.mul(index, size)), Field.BARRIER), 8)
    b.branch(again)
    return function
