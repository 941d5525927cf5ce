"""What a warp does until it comes to an instruction that is not native: `int64 advance(instructions, warp, memory)`.

The same rule as `block.Warp.run`: of the lanes that can go on those that stand first in the text take the next step.
"""

from enum import IntEnum

from llvmlite import ir

from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.native.emitter import FUNCTION, GUARD, SENSE, SLOTS, TOGETHER, TYPE, Outcome
from fa_lib.gpu.native.vectors import I8, I32, I64, POINTER, Builder, lanes

MOST = 1 << 22  # steps at a time: Ctrl-C is heard between them
AFTER = (1 << 64) - 1  # behind every instruction


class State(IntEnum):
    """What a warp is, 64 bits each: where its arrays are."""

    REGISTERS, AT, ALIVE, BLOCKED, HELD = range(5)


def advance(module: ir.Module) -> ir.Function:
    """It gives the number of steps that were taken. `at` and `held` of the warp are changed."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER, POINTER, POINTER]), "advance")
    code, warp, memory = function.args
    entry, top, step, run, ask, call, done, moved, apart, leave, out = (
        function.append_basic_block(name) for name in "entry top step run ask call done moved apart leave out".split()
    )
    b = Builder(entry)
    registers, at_place, alive_place, blocked_place, held_place = (
        b.get(b.at(warp, 8 * field), POINTER, 8) for field in State
    )
    steps, here_place, mask_place = b.room(I64), b.room(lanes(I8)), b.room(lanes(I8))
    now, alone = b.room(I64), b.room(I8)
    b.put(I64(0), steps)
    b.branch(top)

    b.position_at_end(top)  # who goes on, and where they stand
    alive, held = b.masked(alive_place), b.masked(held_place)
    free = b.and_(alive, b.not_(b.masked(blocked_place)))
    first = b.and_(free, b.not_(held))
    chosen = b.select(b.any(first), first, free)
    positions = b.get(at_place, lanes(I64))
    least = b.intrinsic("vector.reduce.umin", [b.select(chosen, positions, b.all(AFTER, positions))], I64)
    here = b.and_(free, b.icmp_unsigned("==", positions, b.splat(least)))
    b.keep(here, here_place)
    b.put(least, now)
    others = b.any(b.and_(free, b.not_(here)))
    b.put(b.zext(b.or_(others, b.any(held)), I8), alone)  # 0: all that can go on go together
    b.cbranch(b.any(free), step, out)

    b.position_at_end(step)
    at = b.get(now, I64, 8)
    slots = b.at(code, b.mul(at, I64(8 * SLOTS)))
    target = b.get(b.at(slots, 8 * FUNCTION), TYPE.as_pointer(), 8)
    few = b.icmp_unsigned("<", b.get(steps, I64, 8), I64(MOST))
    native = b.icmp_unsigned("!=", b.ptrtoint(target, I64), I64(0))
    b.cbranch(b.and_(few, native), run, leave)

    b.position_at_end(run)
    here_now = b.masked(here_place)
    guard = b.get(b.at(slots, 8 * GUARD), I64, 8)
    guarded, ready = function.append_basic_block("guarded"), function.append_basic_block("ready")
    b.cbranch(b.icmp_signed(">=", guard, I64(0)), guarded, ready)
    b.position_at_end(guarded)
    true = b.masked(b.at(registers, guard))
    sense = b.splat(b.icmp_unsigned("!=", b.get(b.at(slots, 8 * SENSE), I64, 8), I64(0)))
    kept = b.and_(here_now, b.xor(true, b.not_(sense)))
    b.branch(ready)
    b.position_at_end(ready)
    mask = b.phi(here_now.type)
    mask.add_incoming(here_now, run)
    mask.add_incoming(kept, guarded)
    b.keep(mask, mask_place)
    b.cbranch(b.any(mask), ask, moved)  # nobody: they pass it

    b.position_at_end(ask)
    together = b.icmp_unsigned("!=", b.get(b.at(slots, 8 * TOGETHER), I64, 8), I64(0))
    absent = b.any(b.and_(b.masked(alive_place), b.not_(mask)))
    b.cbranch(b.and_(together, absent), leave, call)

    b.position_at_end(call)
    full = b.icmp_unsigned("==", b.bitcast(mask, I32), I32((1 << WARP) - 1))
    outcome = b.call(target, [registers, slots, mask_place, full, memory])
    switch = b.switch(outcome, leave)
    switch.add_case(I64(Outcome.DONE), done)
    branched = function.append_basic_block("branched")
    switch.add_case(I64(Outcome.BRANCH), branched)

    b.position_at_end(done)
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    _unhold(b, held_place, mask)
    b.branch(moved)

    b.position_at_end(moved)  # all that stood here stand behind it
    after = b.add(at, I64(1))
    b.put(after, now)
    b.cbranch(b.icmp_unsigned("==", b.get(alone, I8), I8(0)), step, apart)
    b.position_at_end(apart)
    _place(b, at_place, b.masked(here_place), after)
    b.branch(top)

    b.position_at_end(branched)  # those of the mask stand at the target, the others of here behind the branch
    b.put(b.add(b.get(steps, I64, 8), I64(1)), steps)
    _unhold(b, held_place, mask)
    goal = b.get(b.at(slots, 8 * (TOGETHER + 1)), I64, 8)
    everyone = b.icmp_unsigned("==", b.bitcast(mask, I32), b.bitcast(here_now, I32))
    quick = b.and_(everyone, b.icmp_unsigned("==", b.get(alone, I8), I8(0)))
    straight, parted = function.append_basic_block("straight"), function.append_basic_block("parted")
    b.cbranch(quick, straight, parted)
    b.position_at_end(straight)
    b.put(goal, now)
    b.branch(step)
    b.position_at_end(parted)
    _place(b, at_place, here_now, b.add(at, I64(1)))
    _place(b, at_place, mask, goal)
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
