"""Which emulated kernel a real one is nearest to, and which of their differences account for the difference of two."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from attention_check.measure.mistakes import explained_share
from attention_check.measure.split_keys import in_splits
from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import fast_exp
from fa_lib.kernels.options import as_many_heads, within
from fa_lib.kernels.polynomials import polynomial_exp
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ScoresRoundedBeforeScale
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import EXACT, SEQUENTIAL
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, TF32, Format
from fa_lib.numerics.tensor_cores import TensorCore

EXPONENTIALS = {"exact": torch.exp, "fast": fast_exp, "polynomial": polynomial_exp(3)}
PRODUCTS = {  # of a 16-bit format -> the Dot of its products
    "exact": lambda fmt: EXACT, "sequential": lambda fmt: SEQUENTIAL(FP32),
    "hopper": lambda fmt: TensorCore.of("H100", fmt), "written": ScoresRoundedBeforeScale,
}  # fmt: skip
SIXTEEN = "hopper", "written"  # keys of PRODUCTS for BF16 and FP16 alone
SPLITS = (2, 4, 8, 16)
SWEEPS = 3  # over all fields, at most
NO_OPTIONS: Mapping[str, Any] = {}
FIELDS = {  # of an Emulation: what it is, and one value in words
    "tile": ("keys summed at once", lambda x: f"tiles of {x}" if x else "attention written out"),
    "order": ("order of the tiles", lambda x: {"forward": "the first tile first", "reverse": "the last tile first"}[x]),
    "splits": ("splits of the keys", lambda x: f"{x} splits" if x > 1 else "no splits"),
    "partial": ("format of the splits' results", lambda x: f"their results in {x}"),
    "normalised": ("division by l", lambda x: {"end": "O / l at the end", "tile": "O / l at every tile"}[x]),
    "inputs": ("format of Q, K and V", lambda x: f"Q, K and V in {x or 'their own format'}"),
    "carried": ("format of O from tile to tile", lambda x: f"O in {x}"),
    "row_sum": ("format of the row sum from tile to tile", lambda x: f"l in {x}"),
    "probs": ("rounding of P", lambda x: f"P in {x}"),
    "scores": ("format of the scores", lambda x: f"S in {x}"),
    "softmax": ("format inside of softmax", lambda x: f"exponentials in {x}"),
    "exponential": ("exponential", lambda x: {"exact": "exp", "fast": "exp_u20", "polynomial": "a cubic for exp"}[x]),
    "products": (
        "sums of products",
        lambda x: {
            "exact": "products summed exactly, rounded once",
            "sequential": "products summed in FP32, one by one",
            "hopper": "products summed as a Hopper's tensor cores do",
            "written": "scores rounded before their scale",
        }[x],
    ),
}


@dataclass(frozen=True)
class Emulation:
    """A kernel in the emulator's words. Formats go by their names.

    Attributes:
        tile: keys whose products are summed before the sum is rounded; 0 is attention written out, where P is divided
            by the row sum before it is rounded, and tile, order, splits, carried and normalised say nothing.
        order: of the tiles: "forward" or "reverse".
        splits: parts of the keys that are worked on apart and merged.
        partial: format that the parts' results are rounded to before they are merged (`split_keys.in_splits`, which
            rounds nothing else but Q, K and V, so that carried, row_sum, probs and all after them say nothing then).
        normalised: O is divided by the row sum at the "end" or at every "tile" (fa1).
        inputs: that Q, K and V are rounded to first; "" is their own. carried: of O. row_sum: of l. probs: of P.
        scores: of S. softmax: of S - m, its exponential, m and the factors.
        exponential: a key of EXPONENTIALS. products: of PRODUCTS: how Q Kᵀ and P V are summed; on a "hopper" O is
            what P V begins with (`accumulate_in_mma`), unless O is divided at every tile; "written" rounds Q Kᵀ before
            it is scaled.
    """

    tile: int = 64
    order: str = "forward"
    splits: int = 1
    partial: str = "FP32"
    normalised: str = "end"
    inputs: str = ""
    carried: str = "FP32"
    row_sum: str = "FP32"
    probs: str = "BF16"
    scores: str = "FP32"
    softmax: str = "FP32"
    exponential: str = "exact"
    products: str = "exact"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        """o in float64, its values on the grid of q's format. q, k, v, options: as `kernels.reference`."""
        fmt = Format.of(q.dtype)
        load = Format.of(self.inputs or FP64)
        q, k, v = (load(each.double()) for each in (q, k, v))
        if self.partial != "FP32" and self.splits > 1:
            return _rounded_parts(q, k, v, self.splits, fmt, options)
        precision = replace(
            Precision.kernel(fmt), accumulator=self.carried, row_sum=self.row_sum, probs=self.probs, scores=self.scores,
            exponent=self.softmax, factors=self.softmax, maximum=self.softmax, products=PRODUCTS[self.products](fmt),
        )  # fmt: skip
        if self.tile == 0:
            return kernels.reference(q, k, v, precision=precision, **options)
        algorithm = Algorithm(
            "fa1" if self.normalised == "tile" else "fa2", exp=EXPONENTIALS[self.exponential], splits=self.splits,
            reverse=self.order == "reverse", accumulate_in_mma=self.products == "hopper" and self.normalised == "end",
        )  # fmt: skip
        return kernels.tiled(q, k, v, tiling=Tiling(64, self.tile), precision=precision, algorithm=algorithm, **options)

    def changes(self, other: "Emulation") -> tuple[str, ...]:
        """The fields in which another one differs."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    def taking(self, names: Iterable[str], other: "Emulation") -> "Emulation":
        """This one with some fields of another."""
        return replace(self, **{name: getattr(other, name) for name in names})


def _rounded_parts(q, k, v, splits, fmt, options):
    """`in_splits` with the options of every kernel."""
    k, v = (as_many_heads(x, q) for x in (k, v))
    mask, n_q, n_kv = options.get("mask"), q.shape[-2], k.shape[-2]
    if options.get("causal"):
        below = within(n_q, n_kv, None, 0, q.device)
        mask = below if mask is None else below & mask
    scale = options.get("scale")
    q = q if scale is None else q * (scale * q.shape[-1] ** 0.5)
    return in_splits(q, k, v, splits=splits, fmt=fmt, mask=mask)


def choices(fmt: Format, options: Mapping[str, Any] = NO_OPTIONS) -> dict[str, tuple]:
    """field of an Emulation -> its values that are tried, for inputs of a format and the options of a call."""
    formats = tuple(dict.fromkeys([FP32.name, fmt.name, BF16.name]))
    sums = tuple(dict.fromkeys([*formats, FP16.name]))
    inputs = ("", *(each.name for each in (TF32, FP16, BF16) if each.precision < fmt.precision))
    mask = options.get("mask")
    plain = (mask is None or mask.dtype == torch.bool) and not {"softcap", "sinks"} & options.keys()  # for `in_splits`
    return dict(
        tile=(64, 32, 128, 256, 512, 16, 0), order=("forward", "reverse"), splits=(1, *SPLITS),
        partial=(FP32.name, fmt.name) if plain else (FP32.name,), normalised=("end", "tile"), inputs=inputs,
        carried=sums, row_sum=sums,
        probs=tuple(dict.fromkeys([fmt.name, FP32.name, BF16.name, FP16.name, TF32.name])), scores=formats,
        softmax=formats, exponential=(*EXPONENTIALS,),
        products=tuple(key for key in PRODUCTS if key not in SIXTEEN or fmt in (BF16, FP16)),
    )  # fmt: skip


def begun(fmt: Format) -> list[Emulation]:
    """Where a search begins: kernels as they are made, and tiles, orders, splits and carried formats in all
    combinations: what one of these does to the rounding is as good as random to the others, so that they are not found
    one by one."""
    shipped, low, tiles = Emulation(probs=fmt.name), fmt.name, (64, 32, 128, 256, 512, 16)
    sums, steps = dict(carried=low, row_sum=low), dict(scores=low, softmax=low)
    carries = [
        {}, sums, sums | dict(normalised="tile"), sums | steps, sums | steps | dict(normalised="tile"),
        dict(carried=low), dict(carried=FP16.name),
    ]  # fmt: skip
    made = [
        shipped, replace(shipped, tile=512, exponential="fast"),  # torch's on CPU
        replace(shipped, tile=0, scores=low), replace(shipped, normalised="tile", **sums, **steps),
        replace(shipped, splits=8, partial=low), replace(shipped, carried=FP16.name),
    ]  # fmt: skip
    tiled = [replace(shipped, tile=t, order=o, **c) for t in tiles for o in ("forward", "reverse") for c in carries]
    parts = [replace(shipped, tile=t, splits=s, **c) for t in tiles[:3] for s in SPLITS for c in carries[:2]]
    rounded = [replace(shipped, splits=s, partial=low) for s in SPLITS]
    return list(dict.fromkeys([*made, *tiled, *parts, *rounded]))


@dataclass(frozen=True)
class Fit:
    """The Emulation that is nearest to a kernel.

    Attributes:
        emulation: it. o: its output. explained: of `mistakes.explained_share`.
    """

    emulation: Emulation
    o: Tensor
    explained: float


def nearest(
    o: Tensor, golden: Tensor, emulate: Callable[[Emulation], Tensor], tried: dict[str, tuple],
    first: Iterable[Emulation],
) -> Fit:  # fmt: skip
    """The Emulation whose output differs least from o: the best of some, then the best value of one field after the
    other, until none is better. Where two are as good, it stays with the one it had.

    Args:
        o, golden: float64, of one shape. emulate: gives that shape, too. tried: of `choices`. first: begun from.
    """

    def far(emulation):
        return (emulate(emulation) - o).square().sum().item()

    best = min(first, key=far)
    least = far(best)
    for _ in range(SWEEPS):
        before = best
        for name, values in tried.items():
            for value in values:
                other = replace(best, **{name: value})
                if other != best and (distance := far(other)) < 0.99 * least:
                    best, least = other, distance
        if best == before:
            break
    made = emulate(best)
    return Fit(best, made, explained_share(o, golden, made))


def smallest_change(
    difference: Tensor, a: Fit, b: Emulation, emulate: Callable[[Emulation], Tensor], enough: float
) -> tuple[tuple[str, ...], float]:
    """The fewest fields of A's Emulation that have to be B's for the emulated difference to be the real one.

    Every single change is tried, then every two, ..., up to all. Of sets of one size the best is taken.

    Args:
        difference: o of A - o of B. emulate: of B's side. enough: share of the squared difference.

    Returns:
        names, explained: the fields and the share of the squared difference that they explain; where none explains
        enough, the set that explains most.
    """
    names, best = a.emulation.changes(b), ((), 0.0)
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            explained = explained_share(difference, 0.0, a.o - emulate(a.emulation.taking(chosen, b)))
            if explained > best[1]:
                best = chosen, explained
        if best[1] >= enough:
            return best
    return best


def emulation_text(emulation: Mapping[str, Any]) -> str:
    """An Emulation, as a dict, in words: tiles, carried format, P, and what is not usual."""
    if emulation["splits"] > 1 and emulation["partial"] != FP32.name:
        names = ["splits", "partial"]
    elif not emulation["tile"]:
        names = ["tile", "probs", "scores", "softmax"] + ["products"] * (emulation["products"] != "exact")
    else:
        usual, always = asdict(Emulation()), ("tile", "carried", "row_sum", "probs")
        names = [name for name in FIELDS if name in always or name != "partial" and emulation[name] != usual[name]]
    if emulation["inputs"] and "inputs" not in names:
        names.append("inputs")
    return ", ".join(FIELDS[name][1](emulation[name]) for name in names)


def changed(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> str:
    """A field in which two Emulations differ, in words."""
    what, describe = FIELDS[name]
    return f"{what}: {describe(a[name])} in A, {describe(b[name])} in B"
