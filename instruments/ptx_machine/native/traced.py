"""The functions of numpy's lanewise instructions on LLVM's lanes: a `Traced` goes through one in the place of an array
(32,), and emits what numpy would do. NotNative is raised where a function does what is not here."""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numpy.lib.mixins import NDArrayOperatorsMixin

from ptx_machine.float64_carrier import odd_single
from ptx_machine.native.vectors import I32, I64, POINTER, Builder, NotNative, convert_halves, element, lanes

BOOL = np.dtype(bool)
EXPONENT, FRACTION = 0x7FF, (1 << 52) - 1  # of float64


def traced(run: Callable[..., "Traced"], operands: "list[Traced]") -> "Traced":
    """Emit the result of a function of operands."""
    try:
        return run(*operands)
    except (AttributeError, TypeError):  # it treats them as numbers, or as arrays of other shapes
        raise NotNative from None


class Traced(NDArrayOperatorsMixin):
    """Numbers of a dtype, one for each lane, that a function of LLVM has.

    Attributes:
        b: the function's builder. value: a vector. dtype: as an array has it.
    """

    __iter__ = None

    def __init__(self, b: Builder, value: ir.Value, dtype: np.dtype):
        self.b, self.value, self.dtype, self.shape = b, value, dtype, (value.type.count,)
        if dtype == np.float16:
            convert_halves()

    def __bool__(self):
        raise NotNative

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        if method != "__call__" or options or ufunc not in {*OPERATIONS, *COMPOSED}:
            raise NotNative
        if ufunc in COMPOSED:
            return COMPOSED[ufunc](*operands)
        dtype = _common(*operands)
        x = [self.vector(each, dtype) for each in operands]
        result = OPERATIONS[ufunc](self.b, dtype.kind, *x)
        return Traced(self.b, result, dtype if result.type == x[0].type else BOOL)

    def __array_function__(self, function, types, operands, options):
        if options or function not in FUNCTIONS:
            raise NotNative
        return FUNCTIONS[function](*operands)

    def view(self, dtype) -> "Traced":
        """Take the bits as those of another type."""
        dtype = np.dtype(dtype)
        if dtype.itemsize != self.dtype.itemsize:
            raise NotNative
        return Traced(self.b, self.b.bitcast(self.value, lanes(element(dtype), *self.shape)), dtype)

    def astype(self, dtype) -> "Traced":
        """Convert to another type."""
        b, dtype = self.b, np.dtype(dtype)
        kind, (of, to) = lanes(element(dtype), *self.shape), (self.dtype.kind, dtype.kind)
        more = dtype.itemsize - self.dtype.itemsize
        if of == to and more == 0:
            return self
        if to == "b":
            return self != 0
        if of == to == "f":
            if abs(more) > 4:  # between float64 and float16; what was rounded to odd first is rounded once
                return (odd_single(self) if more < 0 else self.astype(np.float32)).astype(dtype)
            emit = b.fpext if more > 0 else b.fptrunc
        elif to == "f":
            emit = b.sitofp if of == "i" else b.uitofp
        elif of == "f":
            emit = b.fptosi if to == "i" else b.fptoui
        elif of == "b" or more > 0:
            emit = b.sext if of == "i" else b.zext
        else:
            emit = b.trunc if more < 0 else b.bitcast
        return Traced(b, emit(self.value, kind), dtype)

    def vector(self, x, dtype: np.dtype) -> ir.Value:
        """Return the vector of a Traced, or of a number or an array, as a type."""
        if isinstance(x, Traced):
            return x.astype(dtype).value
        numbers = np.broadcast_to(np.asarray(x).astype(dtype), self.shape).tolist()
        return ir.Constant(lanes(element(dtype), *self.shape), [ir.Constant(element(dtype), each) for each in numbers])

    def fused(self, x: "Traced", y: "Traced") -> "Traced":
        """Emit `floats.fused`."""
        return Traced(self.b, self.b.intrinsic("fma", [self.value, x.value, y.value]), self.dtype)

    def __getitem__(self, places: np.ndarray) -> "Traced":
        order = ir.Constant(lanes(I32, len(places)), [I32(int(place)) for place in places])
        return Traced(self.b, self.b.shuffle_vector(self.value, self.value, order), self.dtype)

    def looked_up(self, results) -> "Traced":
        """Emit `lanes.looked_up`; results: an array that lasts as long as the process, or a Traced."""
        b, kind = self.b, element(results.dtype)
        if isinstance(results, Traced):
            base = b.room(results.value.type)
            b.put(results.value, base)
        else:
            base = b.inttoptr(I64(results.ctypes.data), POINTER)
        places = self if self.dtype.kind == "i" else self.astype(np.int64)
        found = ir.Constant(lanes(kind, *self.shape), ir.Undefined)
        for lane in range(*self.shape):
            pointer = b.gep(base, [b.extract_element(places.value, I32(lane))], source_etype=kind)
            found = b.insert_element(found, b.get(pointer, kind, results.dtype.itemsize), I32(lane))
        return Traced(b, found, results.dtype)


def _common(*operands) -> np.dtype:
    """The dtype that numpy gives operands before it computes with them."""
    return np.result_type(*(x.dtype if isinstance(x, Traced) else x for x in operands))


def _where(condition, x, y) -> Traced:
    one, dtype = next(each for each in (condition, x, y) if isinstance(each, Traced)), _common(x, y)
    chosen = one.b.select(one.vector(condition, BOOL), one.vector(x, dtype), one.vector(y, dtype))
    return Traced(one.b, chosen, dtype)


def _of_kinds(whole: str, floating: str):
    return lambda b, kind, *x: getattr(b, floating if kind == "f" else whole)(*x)


def _compared(word: str):
    def emit(b, kind, x, y):
        if kind == "f":
            return (b.fcmp_unordered if word == "!=" else b.fcmp_ordered)(word, x, y)
        return (b.icmp_signed if kind == "i" else b.icmp_unsigned)(word, x, y)

    return emit


def _picked(word: str):
    """The smaller or larger one; of a number and NaN, NaN."""

    def emit(b, kind, x, y):
        first = _compared(word)(b, kind, x, y)
        return b.select(b.or_(first, b.is_nan(x)) if kind == "f" else first, x, y)

    return emit


def _shifted(left: bool):
    """Shifted by the width or more, no bit is left but the sign's."""

    def emit(b, kind, x, n):
        shift = b.shl if left else b.ashr if kind == "i" else b.lshr
        if isinstance(n, ir.Constant):
            return shift(x, n)
        bits = x.type.element.width
        too_far = b.icmp_unsigned(">=", n, b.all(bits, n))
        shifted = shift(x, b.select(too_far, b.all(bits - 1, n), n))
        return shifted if kind == "i" and not left else b.select(too_far, b.all(0, x), shifted)

    return emit


def _size(b, kind, x):
    if kind == "f":
        return b.intrinsic("fabs", [x])
    return b.select(b.icmp_signed("<", x, b.all(0, x)), b.neg(x), x) if kind == "i" else x


OPERATIONS = {  # of the builder, the kind of the dtype, and vectors
    np.add: _of_kinds("add", "fadd"), np.subtract: _of_kinds("sub", "fsub"), np.multiply: _of_kinds("mul", "fmul"),
    np.divide: _of_kinds("", "fdiv"), np.negative: _of_kinds("neg", "fneg"), np.absolute: _size,
    np.left_shift: _shifted(True), np.right_shift: _shifted(False), np.invert: lambda b, kind, x: b.not_(x),
    **dict.fromkeys((np.bitwise_and, np.logical_and), lambda b, kind, x, y: b.and_(x, y)),
    **dict.fromkeys((np.bitwise_or, np.logical_or), lambda b, kind, x, y: b.or_(x, y)),
    **dict.fromkeys((np.bitwise_xor, np.logical_xor), lambda b, kind, x, y: b.xor(x, y)),
    np.equal: _compared("=="), np.not_equal: _compared("!="), np.less: _compared("<"), np.less_equal: _compared("<="),
    np.greater: _compared(">"), np.greater_equal: _compared(">="), np.minimum: _picked("<"), np.maximum: _picked(">"),
    np.isnan: lambda b, kind, x: b.is_nan(x),
    np.copysign: lambda b, kind, x, y: b.intrinsic("copysign", [x, y]),
    np.bitwise_count: lambda b, kind, x: b.intrinsic("ctpop", [x]),  # as wide as x
    **{ufunc: lambda b, kind, x, name=ufunc.__name__: b.intrinsic(name, [x])
       for ufunc in (np.sqrt, np.rint, np.trunc, np.floor, np.ceil)},
}  # fmt: skip


def _floor_divide(x: Traced, y: Traced) -> Traced:
    """In 64 bits, where no quotient of shorter numbers overflows."""
    if x.dtype.itemsize == 8:
        raise NotNative
    b, wide = x.b, np.dtype(f"{x.dtype.kind}8")
    a, c = x.astype(wide), y.astype(wide)
    if wide.kind == "u":
        return Traced(b, b.udiv(a.value, c.value), wide).astype(x.dtype)
    q = Traced(b, b.sdiv(a.value, c.value), wide)
    return np.where((q * c != a) & ((a < 0) != (c < 0)), q - 1, q).astype(x.dtype)


def _frexp(x: Traced) -> tuple[Traced, Traced]:
    """Of normal numbers of float64."""
    bits = x.view(np.int64)
    return (bits & FRACTION | 1022 << 52).view(np.float64), (bits >> 52 & EXPONENT) - 1022


def _nextafter(x: Traced, to) -> Traced:
    """Of numbers that are not `to`; 0 has the sign of `to`, where that is not 0."""
    bits = x.view(f"i{x.dtype.itemsize}")
    return np.where((x < to) != (bits < 0), bits + 1, bits - 1).view(x.dtype)


COMPOSED = {
    np.isfinite: lambda x: abs(x) < np.inf,
    np.isinf: lambda x: abs(x) == np.inf,
    np.signbit: lambda x: x.view(f"i{x.dtype.itemsize}") < 0,
    np.ldexp: lambda x, n: x * (n.astype(np.int64) + 1023 << 52).view(np.float64),  # 2^n is a normal number of float64
    np.frexp: _frexp, np.nextafter: _nextafter, np.floor_divide: _floor_divide,
}  # fmt: skip
FUNCTIONS = {np.where: _where, np.clip: lambda x, low, high: np.minimum(np.maximum(x, low), high)}
