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
    entry, top, step, run, ask, call, finished, next_instruction, set_places, leave, out = (
        function.append_basic_block(name) for name in "entry top step run ask call done moved apart leave out".split()
    )
    b = Builder(entry)
    at_place, alive_place, blocked_place, held_place = (
        b.at(registers, field) for field in (Field.AT, Field.ALIVE, Field.BLOCKED, Field.HELD)
    )
    steps, here_place, mask_place = b.room(I64), b.room(lanes(I8)), b.room(lanes(I8))
    now, split = b.room(I64), b.room(I8)
    b.put(I64(0), steps)
    b.branch(top)

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
    b.cbranch(b.any(free), step, out)

    b.position_at_end(step)
    at = b.get(now, I64, 8)
    slots = b.at(code, b.mul(at, I64(8 * SLOTS)))
    target = b.get(b.at(slots, 8 * FUNCTION), TYPE.as_pointer(), 8)
    steps_left = b.icmp_unsigned("<", b.get(steps, I64, 8), I64(MOST))
    native = b.icmp_unsigned("!=", b.ptrtoint(target, I64), I64(0))
    b.cbranch(b.and_(steps_left, native), run, leave)

    b.position_at_end(run)
    lanes_now = b.masked(here_place)
    guard = b.get(b.at(slots, 8 * GUARD), I64, 8)
    guarded, ready = function.append_basic_block("guarded"), function.append_basic_block("ready")
    b.cbranch(b.icmp_signed(">=", guard, I64(0)), guarded, ready)
    b.position_at_end(guarded)
    true = b.masked(b.at(registers, guard))
    sense = b.splat(b.icmp_unsigned("!=", b.get(b.at(slots, 8 * SENSE), I64, 8), I64(0)))
    passing = b.and_(lanes_now, b.xor(true, b.not_(sense)))
    b.branch(ready)
    b.position_at_end(ready)
    mask = b.phi(lanes_now.type)
    mask.add_incoming(lanes_now, run)
    mask.add_incoming(passing, guarded)
    b.keep(mask, mask_place)
    b.cbranch(b.any(mask), ask, next_instruction)  # nobody: they pass it

    b.position_at_end(ask)
    together = b.icmp_unsigned("!=", b.get(b.at(slots, 8 * TOGETHER), I64, 8), I64(0))
    absent = b.any(b.and_(b.masked(alive_place), b.not_(mask)))
    b.cbranch(b.and_(together, absent), leave, call)

    b.position_at_end(call)
    full = b.icmp_unsigned("==", b.bitcast(mask, I32), I32((1 << WARP) - 1))
    outcome = b.call(target, [registers, slots, mask_place, full, memory])
    switch = b.switch(outcome, leave)
    switch.add_case(I64(Outcome.DONE), finished)
    branched, waits, ended = (function.append_basic_block(name) for name in ("branched", "waits", "ended"))
    switch.add_case(I64(Outcome.BRANCH), branched)
    switch.add_case(I64(Outcome.BARRIER), waits)
    switch.add_case(I64(Outcome.END), ended)

    b.position_at_end(finished)
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    _unhold(b, held_place, mask)
    b.branch(next_instruction)

    b.position_at_end(next_instruction)  # all that stood here stand behind it
    after = b.add(at, I64(1))
    b.put(after, now)
    b.cbranch(b.icmp_unsigned("==", b.get(split, I8), I8(0)), step, set_places)
    b.position_at_end(set_places)
    _place(b, at_place, b.masked(here_place), after)
    b.branch(top)

    b.position_at_end(branched)  # those of the mask stand at the target, the others of here behind the branch
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    _unhold(b, held_place, mask)
    goal = b.get(b.at(slots, 8 * FIRST_SLOT), I64, 8)
    everyone = b.icmp_unsigned("==", b.bitcast(mask, I32), b.bitcast(lanes_now, I32))
    quick = b.and_(everyone, b.icmp_unsigned("==", b.get(split, I8), I8(0)))
    straight, set_both = function.append_basic_block("straight"), function.append_basic_block("parted")
    b.cbranch(quick, straight, set_both)
    b.position_at_end(straight)
    b.put(goal, now)
    b.branch(step)
    b.position_at_end(set_both)
    _place(b, at_place, lanes_now, b.add(at, I64(1)))
    _place(b, at_place, mask, goal)
    b.branch(top)

    b.position_at_end(waits)  # all lanes came together, so none is held
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    b.put(b.splat(b.add(at, I64(1))), at_place)
    b.put(b.get(b.at(slots, 8 * FIRST_SLOT), I64, 8), b.at(registers, Field.BARRIER), 8)
    b.branch(out)

    b.position_at_end(ended)  # those of the mask have ended, the others of here stand behind it
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    _unhold(b, held_place, mask)
    _place(b, at_place, lanes_now, b.add(at, I64(1)))
    b.keep(b.and_(b.masked(alive_place), b.not_(mask)), alive_place)
    b.branch(top)

    b.position_at_end(leave)
    _place(b, at_place, b.masked(here_place), b.get(now, I64, 8))
    b.branch(out)
    b.position_at_end(out)
    b.ret(b.get(steps, I64, 8))
    return function


def _place(b: Builder, at_place: ir.Value, mask: ir.Value, at: ir.Value) -> None:
    old = b.get(at_place, lanes(I64))
    b.put(b.select(mask, b.splat(at), old), at_place)


def _unhold(b: Builder, held_place: ir.Value, mask: ir.Value) -> None:
    b.keep(b.and_(b.masked(held_place), b.not_(mask)), held_place)


def turns(module: ir.Module, one: ir.Function) -> ir.Function:
    """Add the function `turns` to a module: `int64 turns(instructions, warps, memory, first, count, size, counts,
    releases)`. Warps take turns, in their order from `first` on, each of `size` bytes of memory, until one comes to an
    instruction that is not native: it returns its number, or `count`. Where all that have not ended have come to one
    barrier, and `releases` is set, they go on, from the first one.

    counts: two numbers, to which it adds the steps, and how often a warp did some and then waited or ended.
    """
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] * 3 + [I64] * 3 + [POINTER, ir.IntType(1)]), "turns")
    code, warps, memory, first, count, size, counts, releases = function.args
    entry, top, turn, ran, come, waiting, next_one, whole, release, clear, cleared, out = (
        function.append_basic_block(name)
        for name in "entry top turn ran come waiting next whole release clear cleared out".split()
    )
    b = Builder(entry)
    number, w, mixed = b.room(I64), b.room(I64), b.room(I64)
    before = b.get(counts, I64, 8)
    b.put(first, w)
    b.put(I64(NOWHERE), number)
    b.put(I64(0), mixed)
    b.branch(top)

    b.position_at_end(top)
    index = b.get(w, I64, 8)
    warp = b.at(warps, b.mul(index, size))
    barrier_place = b.at(warp, Field.BARRIER)
    b.cbranch(b.icmp_unsigned("<", index, count), turn, whole)
    b.position_at_end(turn)
    b.cbranch(b.icmp_signed("==", b.get(barrier_place, I64, 8), I64(NOWHERE)), ran, waiting)

    b.position_at_end(ran)
    steps = b.call(one, [code, warp, memory])
    b.put(b.add(b.get(counts, I64, 8), steps), counts, 8)
    free = b.and_(b.masked(b.at(warp, Field.ALIVE)), b.not_(b.masked(b.at(warp, Field.BLOCKED))))
    stops = b.or_(b.icmp_signed("!=", b.get(barrier_place, I64, 8), I64(NOWHERE)), b.not_(b.any(free)))
    b.cbranch(stops, come, out)
    b.position_at_end(come)
    progress = b.at(counts, 8)
    moved = b.zext(b.icmp_signed(">", steps, I64(0)), I64)
    b.put(b.add(b.get(progress, I64, 8), moved), progress, 8)
    b.branch(waiting)

    b.position_at_end(waiting)  # at a barrier, or it has ended; else it waits for what only numpy knows of
    here, alive = b.get(barrier_place, I64, 8), b.any(b.masked(b.at(warp, Field.ALIVE)))
    known = b.get(number, I64, 8)
    fits = b.or_(b.icmp_signed("==", known, I64(NOWHERE)), b.icmp_signed("==", known, here))
    good = b.or_(b.not_(alive), b.and_(b.icmp_signed("!=", here, I64(NOWHERE)), fits))
    b.put(b.or_(b.get(mixed, I64, 8), b.zext(b.not_(good), I64)), mixed, 8)
    b.put(b.select(b.and_(alive, good), here, known), number, 8)
    b.branch(next_one)
    b.position_at_end(next_one)
    b.put(b.add(index, I64(1)), w, 8)
    b.branch(top)

    b.position_at_end(whole)
    together = b.icmp_signed("==", b.get(mixed, I64, 8), I64(0))
    together = b.and_(together, b.icmp_signed("!=", b.get(number, I64, 8), I64(NOWHERE)))
    together = b.and_(together, b.icmp_unsigned("==", first, I64(0)))  # else the warps before were not looked at
    few = b.icmp_unsigned("<", b.sub(b.get(counts, I64, 8), before), I64(MOST))
    b.cbranch(b.and_(b.and_(together, releases), few), release, out)
    b.position_at_end(release)
    b.put(I64(0), w, 8)
    b.put(I64(NOWHERE), number, 8)
    b.branch(clear)
    b.position_at_end(clear)
    one_of_all = b.get(w, I64, 8)
    b.put(I64(NOWHERE), b.at(b.at(warps, b.mul(one_of_all, size)), Field.BARRIER), 8)
    behind = b.add(one_of_all, I64(1))
    b.put(behind, w, 8)
    b.cbranch(b.icmp_unsigned("<", behind, count), clear, cleared)
    b.position_at_end(cleared)
    b.put(I64(0), w, 8)
    b.branch(top)

    b.position_at_end(out)
    b.ret(b.get(w, I64, 8))
    return function
