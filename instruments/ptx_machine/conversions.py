"""cvt: from one type to another. The text: PTX ISA, "Data Movement and Conversion Instructions: cvt"."""

import numpy as np
import torch

from fa_lib.numerics.formats import E4M3, E5M2, round_to
from ptx_machine.float64_carrier import ROUNDINGS, bits_of, carried, clamped, numbers
from ptx_machine.lanes import DTYPES, FLOATS, Lanewise, refuse
from ptx_machine.syntax import BITS, Instruction

WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
EIGHT = {"e4m3x2": E4M3, "e5m2x2": E5M2}
KNOWN = {"cvt", *ROUNDINGS, *WHOLE, "rna", "ftz", "sat", "relu", "satfinite", *BITS}


def convert(instruction: Instruction) -> Lanewise:
    """Make the function of cvt."""
    words = instruction.words
    if unknown := {*words} - KNOWN:
        raise refuse(instruction, f"{', '.join(sorted(unknown))} is not modelled")
    gives, *_ = types = instruction.types
    mode = next((word for word in words if word in ROUNDINGS), "rn")
    if gives in EIGHT:
        return _to_eight(instruction, gives, types[1])
    if types[-1] in EIGHT:
        return _from_eight(instruction, types[-1])
    if gives in ("f16x2", "bf16x2"):
        return _packed(instruction, gives, mode)
    if gives == "tf32":
        return _to_tf32(instruction)
    kind = types[1]
    if gives in FLOATS and kind in FLOATS:
        return Lanewise((kind,), gives, _float_to_float(instruction, kind, gives, mode))
    if gives in FLOATS:
        return Lanewise((kind,), gives, _whole_to_float(instruction, gives, mode))
    if kind in FLOATS:
        return Lanewise((kind,), gives, _float_to_whole(instruction, kind, gives))
    return Lanewise((kind,), gives, _whole_to_whole(instruction, gives))


def limits(kind: str) -> tuple[int, int]:
    """Return the lowest and the highest whole number of a type."""
    bits = BITS[kind]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _float_to_float(instruction: Instruction, kind: str, gives: str, mode: str):
    words = instruction.words
    to_whole = next((WHOLE[word] for word in words if word in WHOLE), None)
    ftz = "ftz" in words
    if (kind, gives) == ("bf16", "f32") and {*words} <= {"cvt", kind, gives}:  # a shift on a GPU, of NaN too
        return lambda a: (a.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def run(a):
        x = (carried if kind == "f16" else numbers)(a, kind, ftz and kind == "f32")
        x = clamped(x if to_whole is None else to_whole(x), words)
        if gives == "f64":
            return x.astype(np.float64)
        y = bits_of(x, gives, mode, ftz and gives == "f32")
        if (kind, gives) != ("f64", "f32"):
            return y
        with np.errstate(invalid="ignore"):  # NaN keeps its upper bits, as a processor's conversion has it
            return np.where(np.isnan(a), a.astype(np.float32).view(np.uint32), y.view(np.uint32)).view(np.float32)

    return run


def _whole_to_float(instruction: Instruction, gives: str, mode: str):
    """Whole numbers of 64 bits may need more than float64's 53: one bit then stands for all lower ones that are set."""

    def run(a):
        if gives == "f64":
            if mode != "rn":
                raise refuse(instruction, "FP64 is modelled to nearest alone")
            return a.astype(np.float64)
        if a.dtype.itemsize < 8:
            return bits_of(a.astype(np.float64), gives, mode)
        size = np.where(a < 0, -a, a).astype(np.uint64)
        low = size & np.uint64(0x7FF)
        shortened = (size & ~np.uint64(0x7FF)) | np.where(low != 0, np.uint64(0x800), np.uint64(0))
        large = size >= np.uint64(1 << 53)
        x = np.where(large, shortened, size).astype(np.float64)
        return bits_of(np.where(a < 0, -x, x), gives, mode)

    return run


def _float_to_whole(instruction: Instruction, kind: str, gives: str):
    """Beyond the limits the limit. NaN is 0; as 64 bits it is 2^63, as an H100 has it."""
    to_whole = next((WHOLE[word] for word in instruction.words if word in WHOLE), None)
    if to_whole is None:
        raise refuse(instruction, f"accepted are {', '.join(WHOLE)}")
    ftz, (low, high), dtype = "ftz" in instruction.words, limits(gives), DTYPES[gives]

    def run(a):
        x = to_whole(a if kind == "f64" else carried(a, kind, ftz))
        inside = (x >= low) & (x <= high - (high >> 53))
        y = np.where(inside, x, 0.0).astype(np.int64 if gives[0] == "s" else np.uint64).astype(dtype)
        nan = np.array(1 << 63 if BITS[gives] == 64 else 0, np.uint64).astype(dtype)
        return np.where(np.isnan(x), nan, np.where(x < low, dtype.type(low), np.where(inside, y, dtype.type(high))))

    return run


def _whole_to_whole(instruction: Instruction, gives: str):
    (low, high), dtype, sat = limits(gives), DTYPES[gives], "sat" in instruction.words
    return lambda a: np.array([min(max(int(x), low), high) for x in a], dtype) if sat else a.astype(dtype)


def _packed(instruction: Instruction, gives: str, mode: str) -> Lanewise:
    """Convert two FP32 numbers to a pair, the first into its upper half."""
    if instruction.types[1:] != ("f32",):
        raise refuse(instruction, "pairs are made of f32 alone")
    single, words = gives[:-2], instruction.words

    def half(x):
        y = clamped(x, words)
        if "satfinite" in words:
            largest = 65504.0 if single == "f16" else float(torch.finfo(torch.bfloat16).max)
            y = np.where(np.isnan(y), y, np.clip(y, -largest, largest))
        return bits_of(y, single, mode).view(np.uint16).astype(np.uint32)

    return Lanewise(("f32", "f32"), gives, lambda a, b: (half(a) << np.uint32(16)) | half(b))


def _to_tf32(instruction: Instruction) -> Lanewise:
    """rna: to nearest, ties away from zero; rn: ties to even."""
    words = instruction.words

    def run(a):
        bits = a.view(np.uint32)
        if "rna" in words:
            up = bits + np.uint32(0x1000)
        else:
            up = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        cut = np.where(np.isinf(a), bits, up & np.uint32(0xFFFFE000))
        return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), cut)

    if not {"rna", "rn"} & {*words} or {"satfinite", "relu"} & {*words}:
        raise refuse(instruction, "accepted are rn and rna")
    return Lanewise(("f32",), "tf32", run)


def _to_eight(instruction: Instruction, gives: str, kind: str) -> Lanewise:
    """Convert two numbers to a pair of 8 bits each, the first into its upper half; numbers beyond the largest become
    the largest, and NaN 0x7f."""
    fmt, tops = EIGHT[gives], {"e4m3x2": 0x7E, "e5m2x2": 0x7B}
    if "satfinite" not in instruction.words:
        raise refuse(instruction, "accepted is satfinite")
    dtype = torch.float8_e4m3fn if fmt is E4M3 else torch.float8_e5m2

    def byte(x):
        y = np.where(x > 0, x, 0.0) if "relu" in instruction.words else x
        rounded = round_to(torch.from_numpy(np.where(np.isnan(y), 0.0, np.clip(y, -fmt.max, fmt.max))), fmt)
        code = rounded.to(dtype).view(torch.uint8).numpy()
        code = np.minimum(code & 0x7F, tops[gives]) | (code & 0x80)
        return np.where(np.isnan(x), np.uint8(0x7F), code).astype(np.uint16)

    def run(a, b=None):
        if b is None:  # a packed pair of f16
            low, high = ((a >> s & 0xFFFF).astype(np.uint16).view(np.float16) for s in (np.uint32(0), np.uint32(16)))
        else:
            high, low = a, b
        return (byte(high.astype(np.float64)) << np.uint16(8)) | byte(low.astype(np.float64))

    return Lanewise(("f32", "f32") if kind == "f32" else (kind,), gives, run)


def _from_eight(instruction: Instruction, kind: str) -> Lanewise:
    if instruction.types[0] != "f16x2":
        raise refuse(instruction, "accepted is f16x2 of it")

    def half(code):
        return bits_of(carried(code.astype(np.uint8), kind[:4]), "f16").view(np.uint16).astype(np.uint32)

    return Lanewise((kind,), "f16x2", lambda a: (half(a >> np.uint16(8)) << np.uint32(16)) | half(a))
