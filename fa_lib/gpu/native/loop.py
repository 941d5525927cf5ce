"""The loop of a warp, until it comes to an instruction that is not native: `int64 advance(instructions, warp, memory)`.

The rule is that of `block.Warp.run`: of the lanes that do not wait, those whose instruction is first in the text
execute it.
"""

from enum import IntEnum

from llvmlite import ir

from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.native.emitter import FIRST_SLOT, FUNCTION, GUARD, SENSE, SLOTS, TOGETHER, TYPE, Outcome
from fa_lib.gpu.native.vectors import I8, I32, I64, POINTER, Builder, lanes

MOST = 1 << 22  # steps at a time: Ctrl-C is heard between them
AFTER = (1 << 64) - 1  # behind every instruction
NOWHERE = -1


class State(IntEnum):
    """The fields of a warp, 64 bits each: pointers to its arrays; and the number of the barrier that it has come to,
    or NOWHERE."""

    REGISTERS, AT, ALIVE, BLOCKED, HELD, BARRIER = range(6)


def advance(module: ir.Module) -> ir.Function:
    """Add the function `advance` to a module. It returns the number of steps, and changes `at` and `held` of the
    warp."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER, POINTER, POINTER]), "advance")
    code, warp, memory = function.args
    entry, top, step, run, ask, call, finished, next_instruction, set_places, leave, out = (
        function.append_basic_block(name) for name in "entry top step run ask call done moved apart leave out".split()
    )
    b = Builder(entry)
    registers, at_place, alive_place, blocked_place, held_place = (
        b.get(b.at(warp, 8 * field), POINTER, 8) for field in State if field != State.BARRIER
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
    branched, waits = function.append_basic_block("branched"), function.append_basic_block("waits")
    switch.add_case(I64(Outcome.BRANCH), branched)
    switch.add_case(I64(Outcome.BARRIER), waits)

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
    b.put(b.get(b.at(slots, 8 * FIRST_SLOT), I64, 8), b.at(warp, 8 * State.BARRIER), 8)
    b.branch(out)

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
