"""Number formats, and correct rounding of float64 values to them.

The table of formats is gfloat's (github.com/graphcore-research/gfloat). Values stay in float64: a tensor
"in BF16" is a float64 tensor whose values lie on BF16's grid. For formats of up to 24 significant bits,
rounding the float64 result of + - * / or sqrt gives the correctly rounded result in the format, because
53 >= 2 * 24 + 2 (Figueroa 1995, "When is double rounding innocuous?").
"""

import math
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import gfloat.formats
import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

# The first multi-threaded torch.exp of a process can return wrong values on CPU, off by 1e-4 relative: a race in how
# MKL picks its code (pytorch issue 188792). One single-threaded call per dtype settles the pick before that.
for _dtype in (torch.float32, torch.float64):
    torch.exp(torch.zeros(64, dtype=_dtype))

EXPONENT_FIELD = 0x7FF0000000000000  # of a float64
MODES = ("nearest", "toward_zero", "stochastic")
BIAS = 1023
SLICE = 1 << 20  # values that a thread rounds at a time
MANY = 1 << 21  # values that are worth threads
WORTH = 1 << 27  # values, in a process, that are worth the second in which numba compiles the loops


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with signed zeros and subnormals.

    Attributes:
        name: as printed, "BF16".
        exponent_bits, precision: width of the exponent field; significant bits, the implicit one included.
        emin, emax: exponents of the smallest and of the largest normal number.
        max: the largest finite value.
        has_inf: overflow gives infinity if True, and saturates to `max` if False.
        mode: how a value is rounded to it, one of MODES.
        seed: of "stochastic" rounding. The random numbers depend on it and on the values that are rounded, so that a
            kernel's result is the same on any number of threads.

    A format is callable: `BF16(x)` is `round_to(x, BF16)`.

    Raises:
        ValueError: the mode is none of MODES.
    """

    name: str
    exponent_bits: int
    precision: int
    emin: int
    emax: int
    max: float
    has_inf: bool
    mode: str = "nearest"
    seed: int = 0

    def __post_init__(self):
        _refuse_unknown(self.mode)

    @classmethod
    def of(cls, spec: "FormatLike") -> "Format":
        """Return the Format that `spec` names.

        Args:
            spec: a Format, a name ("bfloat16", "BF16", any signed gfloat name), a torch.dtype, or a pair (exponent bits
                2..10, precision 2..24) laid out as IEEE 754 does.

        Raises:
            ValueError: the name is not known, or the pair is out of range or not of whole numbers.
        """
        if isinstance(spec, Format):
            return spec
        if isinstance(spec, tuple) and len(spec) == 2:
            return _ieee(*spec)
        name = str(spec).removeprefix("torch.").lower()
        if name in _BY_NAME:
            return _BY_NAME[name]
        info = getattr(gfloat.formats, f"format_info_{name}", None)
        if isinstance(info, gfloat.FormatInfo) and info.is_signed and info.has_subnormals and info.has_nz:
            return _from_gfloat(name, info)
        raise ValueError(
            f"format: got {spec!r}; accepted are a Format, one of {sorted(_BY_NAME)}, "
            "the name of a signed floating-point format of gfloat, or (exponent_bits, precision)"
        )

    @property
    def unit_roundoff(self) -> float:
        """u = 2**-precision: the largest relative error of one rounding to nearest in the normal range."""
        return 2.0**-self.precision

    @property
    def dtype(self) -> torch.dtype | None:
        """The torch dtype whose values are this format's, or None where torch has none."""
        return _DTYPES.get(self.name)

    @cached_property
    def quantum_limits(self) -> tuple[int, int]:
        """Exponent fields of a float64 between which the spacing of the grid follows the value's exponent."""
        return (self.emin + BIAS) << 52, (self.emax + 1 + BIAS) << 52

    def ulp(self, x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """Compute the spacing of the format's grid at the values x, subnormal range included.

        Args:
            x: float64, any shape.

        Returns:
            float64 of x's shape.
        """
        if self.precision == 53:
            return torch.nextafter(x.abs(), torch.full_like(x, math.inf)) - x.abs()
        field = (x.view(torch.int64) & EXPONENT_FIELD).clamp_(*self.quantum_limits)
        return (field - ((self.precision - 1) << 52)).view(torch.float64)

    @cached_property
    def grid(self) -> tuple:
        """The format as compiled loops take it: (precision, the two quantum_limits, the largest value, the value that
        overflow gives)."""
        return (self.precision, *self.quantum_limits, self.max, math.inf if self.has_inf else self.max)

    def __call__(self, x: Any) -> Any:
        """Round x: a float64 tensor as `round_to` does, a number or numpy array to numpy's float64 of its shape."""
        if isinstance(x, Tensor):
            return round_to(x, self)
        return round_to(torch.from_numpy(np.array(x, dtype=np.float64)), self).numpy()[()]

    def round_(self, x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """Round x as `round_to(x, self)` does. The result, of x's shape, is written over x where x is contiguous, on a
        CPU, and rounded to nearest."""
        if self.mode != "nearest" or not (x.is_cpu and x.is_contiguous()):
            return self(x)
        return _nearest_of(_roundable(x), x, self)

    def __repr__(self):
        return self.name


FormatLike: TypeAlias = Format | str | torch.dtype | tuple[int, int]


def stochastic(fmt: FormatLike, seed: int) -> Format:
    """Return `fmt` with stochastic rounding, for a field of a Precision."""
    fmt = Format.of(fmt)
    return replace(fmt, name=f"{fmt} stochastic", mode="stochastic", seed=seed)


def truncated(fmt: FormatLike) -> Format:
    """Return `fmt` with rounding toward zero, for a field of a Precision."""
    fmt = Format.of(fmt)
    return replace(fmt, name=f"{fmt} truncated", mode="toward_zero")


def _refuse_unknown(mode):
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}; accepted are {', '.join(MODES)}")


def _ieee(exponent_bits, precision, name=None):
    integers = type(exponent_bits) is int and type(precision) is int
    if not (integers and 2 <= exponent_bits <= 10 and 2 <= precision <= 24):
        raise ValueError(
            f"format: got (exponent_bits={exponent_bits!r}, precision={precision!r}); accepted are 2..10 exponent "
            "bits and 2..24 significant bits, for which emulation in float64 is exact"
        )
    emax = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0 ** (1 - precision)) * 2.0**emax
    return Format(name or f"E{exponent_bits}P{precision}", exponent_bits, precision, 1 - emax, emax, largest, True)


def _from_gfloat(name, info):
    emax = math.frexp(info.max)[1] - 1
    return Format(name, info.expBits, info.precision, 1 - info.bias, emax, info.max, info.num_posinfs > 0)


BF16 = _from_gfloat("BF16", gfloat.formats.format_info_bfloat16)
FP16 = _from_gfloat("FP16", gfloat.formats.format_info_binary16)
TF32 = _ieee(8, 11, "TF32")
FP32 = _from_gfloat("FP32", gfloat.formats.format_info_binary32)
FP64 = _from_gfloat("FP64", gfloat.formats.format_info_binary64)
E4M3 = _from_gfloat("E4M3", gfloat.formats.format_info_ocp_e4m3)
E5M2 = _from_gfloat("E5M2", gfloat.formats.format_info_ocp_e5m2)
E2M1 = _from_gfloat("E2M1", gfloat.formats.format_info_ocp_e2m1)

_DTYPES = {
    "BF16": torch.bfloat16,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "E4M3": torch.float8_e4m3fn,
    "E5M2": torch.float8_e5m2,
}
_BY_NAME = {f.name.lower(): f for f in (BF16, FP16, TF32, FP32, FP64, E4M3, E5M2, E2M1)}
_BY_NAME |= {str(dtype).removeprefix("torch."): _BY_NAME[name.lower()] for name, dtype in _DTYPES.items()}


def round_to(
    x: Float64[Tensor, "*shape"], fmt: FormatLike, mode: str | None = None, generator: torch.Generator | None = None
) -> Float64[Tensor, "*shape"]:
    """Round a float64 tensor to values of a format, correctly: straight from float64, never through float32.

    Args:
        x: float64 tensor of any shape, on any device.
        fmt: a Format, or what `Format.of` takes.
        mode: "nearest" (ties to even), "toward_zero", or "stochastic" (up in magnitude with a probability
            equal to the fraction of the gap, resolved to 2**-53); None is the format's own.
        generator: torch.Generator on x's device for "stochastic"; None is torch's own, or, where the format's own mode
            is stochastic, one that its seed and the values of x determine.

    Returns:
        float64 tensor of x's shape: a new one, but x itself where fmt is FP64. Overflow gives infinity, or the
        largest finite value where the format has no infinity or the mode is "toward_zero"; infinities go in and
        out unchanged where the format has them; NaN and the sign of zero are kept.

    Raises:
        ValueError: x is not float64 or requires a gradient, or the format or mode is not known.
    """
    fmt = Format.of(fmt)
    if mode is None and fmt.mode == "stochastic" and generator is None:
        own_seed = zlib.crc32(x.contiguous().cpu().numpy().tobytes(), fmt.seed)
        generator = torch.Generator(x.device).manual_seed(own_seed)
    mode = mode or fmt.mode
    _refuse_unknown(mode)
    x = _roundable(x)
    if fmt.precision == 53:
        return x
    draw = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator) if mode == "stochastic" else None
    x = x.contiguous()
    if mode != "nearest":
        return _directed(x, draw, fmt)
    return _nearest_of(x, torch.empty_like(x), fmt) if x.is_cpu else _nearest_torch(x, fmt)


def _roundable(x: Tensor) -> Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("x: requires a gradient, and rounding has none; accepted is x.detach()")
    if x.dtype != torch.float64:
        raise ValueError(f"x: got {x.dtype}; accepted is torch.float64, the type that carries every format exactly")
    return x


_rounded, _loops = 0, None  # values, in this process; and the module, once it is imported


def _nearest_of(x, out, fmt):
    """Round x to nearest and write it to out, which may be x; both are contiguous. Many values are split for as many
    threads as torch uses. The first WORTH values of a process that has not imported numba, which takes a second, are
    rounded by torch's operations, to the same bits."""
    global _rounded, _loops
    if fmt.precision == 53:
        return x
    if _loops is None:  # even an import of what is there takes a microsecond
        _rounded += x.numel()
        if _rounded < WORTH and "fa_lib.numerics.rounding_loops" not in sys.modules:
            return _nearest_torch(x, fmt, out)
        from fa_lib.numerics import rounding_loops as _loops
    size, start, to = x.numel(), x.data_ptr(), out.data_ptr()
    if start != to and size < MANY:  # copied sooner than the other loop is compiled, which many processes never need
        start = out.copy_(x).data_ptr()
    loop = _loops.nearest_loop(start == to)
    if size < MANY or torch.get_num_threads() == 1:
        loop(start, to, size, *fmt.grid)
        return out
    slices = [(start + 8 * i, to + 8 * i, min(SLICE, size - i), *fmt.grid) for i in range(0, size, SLICE)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(loop, *zip(*slices)))
    return out


def _nearest_torch(x, fmt, out=None):
    """Round x to nearest as `rounding_loops.nearest` does, in torch's operations."""
    precision, low, high, largest, over = fmt.grid
    field = (x.view(torch.int64) & EXPONENT_FIELD).clamp_(low, high)
    c = field.add_(((53 - precision) << 52) + (1 << 51)).view(torch.float64)
    r = (x + c).sub_(c).abs_()
    return torch.copysign(r.masked_fill_(r > largest, over), x, out=out)


def _directed(x, draw, fmt):
    """Round x toward zero; or, with draws of its shape, up in magnitude where these are below the share of the gap."""
    quantum = fmt.ulp(x)
    steps = x.abs() / quantum
    count = steps.floor()
    if draw is not None:
        count = count + (draw < steps - count)
    r = count * quantum
    over = math.inf if fmt.has_inf else fmt.max
    if draw is None:
        r = torch.where((r > fmt.max) & ~x.isinf(), fmt.max, r)
    r = torch.where(r > fmt.max, over, r)
    return torch.copysign(r, x)
