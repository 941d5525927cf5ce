"""Special registers, which the machine fills: %tid.x, %laneid."""

from functools import cache
from typing import TypeAlias

import numpy as np

from ptx_machine.lanes import WARP, Lanes, raw
from ptx_machine.syntax import Register

Size: TypeAlias = tuple[int, int, int]
SPECIAL_REGISTERS = {
    name: Register(name, "u64" if name == "%gridid" else "u32") for name in (
        *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
        "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid",
        *(f"%lanemask_{word}" for word in ("eq", "lt", "le", "gt", "ge")),
    )
}  # fmt: skip


@cache
def special_registers(warp: int, size: Size, grid: Size) -> dict[Register, Lanes]:
    """Return the bits (32,) of a warp's special registers that are the same in all blocks."""
    thread = np.arange(WARP, dtype=np.uint32) + WARP * warp
    x, y, _ = size
    lane = np.arange(WARP, dtype=np.uint32)
    bit = np.uint32(1) << lane
    own = dict(x=thread % x, y=thread // x % y, z=thread // (x * y))
    values: dict[str, object] = {f"%tid.{axis}": value for axis, value in own.items()}
    for name, triple in (("ntid", size), ("nctaid", grid)):
        values |= {f"%{name}.{axis}": value for axis, value in zip("xyz", triple)}
    warps = -(-int(np.prod(size)) // WARP)
    values |= {"%laneid": lane, "%warpid": warp, "%nwarpid": warps, "%smid": 0, "%nsmid": 1}
    values |= {"%lanemask_eq": bit, "%lanemask_lt": bit - 1, "%lanemask_le": bit | (bit - 1)}
    values |= {"%lanemask_gt": ~(bit | (bit - 1)), "%lanemask_ge": ~(bit - 1), "%gridid": 0}
    own = {SPECIAL_REGISTERS[name]: np.asarray(value) for name, value in values.items()}
    return {register: np.broadcast_to(value.astype(raw(register.type)), WARP) for register, value in own.items()}
