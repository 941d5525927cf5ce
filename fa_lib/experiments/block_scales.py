"""Block scales: the error of attention when Q, K, V and P, or a cache of K and V, are stored in FP8 or FP4."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.quantized_attention import OPERANDS, Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP64
from fa_lib.numerics.metrics import deviation, over_baseline

TILING = Tiling(64, 64)
SHIFT, EVERY = 8.0, 16  # of "shifted K"
RAISED = 8  # P without a scale is multiplied by 2**8, out of E4M3's subnormals, as FlashAttention-3 has it


@dataclass(frozen=True)
class Recipe:
    """A way to quantise attention, all of it or a part.

    Attributes:
        label: as figures show it. whole: the Quantization of all parts.
    """

    label: str
    whole: Quantization

    @property
    def parts(self) -> dict[str, Quantization]:
        """part -> its Quantization, the rest in BF16: "all"; "cache", K and V by the scheme of K; each of OPERANDS."""
        whole, parts = self.whole, {"all": self.whole}
        if whole.k is not None:
            parts["cache"] = Quantization.cache(whole.k, smooth=whole.smooth, rotate=whole.rotate)
        return parts | {name: whole.only(name) for name in OPERANDS}


_of = Quantization.of
RECIPES = {
    "fp8_tensor": Recipe("FP8, one scale", _of("FP8_TENSOR")),
    "fp8_tensor_smoothed": Recipe("FP8, one scale, K smoothed", _of("FP8_TENSOR", smooth=True)),
    "fp8_tensor_rotated": Recipe("FP8, one scale, rotated", _of("FP8_TENSOR", rotate=True)),
    "fp8_head": Recipe("FP8, a scale a head", _of("FP8_HEAD")),
    "fp8_block": Recipe("FP8, a scale a block of keys", _of("FP8_BLOCK")),
    "fp8_token": Recipe("FP8, a scale a token", _of("FP8_TOKEN")),
    "mxfp8": Recipe("MXFP8, scale rounded down (OCP)", _of("MXFP8")),
    "mxfp8_up": Recipe("MXFP8, scale rounded up", _of("MXFP8_UP")),
    "mxfp8_e5m2": Recipe("MXFP8 of E5M2", _of("MXFP8_E5M2")),
    "mxfp4": Recipe("MXFP4", _of("MXFP4")),
    "nvfp4": Recipe("NVFP4", _of("NVFP4")),
    "nvfp4_two_level": Recipe("NVFP4, two-level P", _of("NVFP4", "NVFP4_TWO_LEVEL")),
    "nvfp4_smoothed": Recipe("NVFP4, two-level P, K smoothed", _of("NVFP4", "NVFP4_TWO_LEVEL", smooth=True)),
}
KINDS = ("normal", "outliers", "sink", "shifted K")  # of `problem`


def problem(kind: str, seed: int, n: int, *, rows: int, head_dim: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw Q, K and V in BF16, as a model hands them over.

    Args:
        seed: of `inputs.draw`. n: keys. rows: queries of each head.
        kind: a name of `inputs.DISTRIBUTIONS`; or "shifted K": normal, and every sixteenth channel of K has the mean 8.
            (That some channels of K lie far from zero in every token is what smoothing is for: arXiv 2410.02367.)
            The key of "sink", 3 in every channel, is added to a drawn key: without that it lies on the grid of every
            scale that is a power of two, as no key of a model does.

    Returns:
        q: float64 (1, heads, rows, head_dim). k, v: float64 (1, heads, n, head_dim). All on BF16's grid.
    """
    distribution = "normal" if kind == "shifted K" else kind
    q, k, v = draw(distribution, seed, (1, heads, rows, head_dim), (1, heads, n, head_dim))
    k = k.clone()
    if kind == "shifted K":
        k[..., ::EVERY] += SHIFT
    elif kind == "sink":
        k[..., 0, :] += draw("normal", seed, (1, heads, rows, head_dim), (1, heads, n, head_dim))[1][..., 0, :]
    return BF16(q), BF16(k), BF16(v)


def losses(q: Tensor, k: Tensor, v: Tensor, parts: dict[str, Sequence[str]], **options) -> list[dict]:
    """Measure recipes' errors on tensors, in tiles of 64 keys, beside the same kernel in BF16 (`Precision.kernel`).

    Args:
        q: (batch, heads, n_q, head_dim). k, v: (batch, heads, n_kv, head_dim). BF16, or values on its grid; n_kv is a
            multiple of 64.
        parts: key of RECIPES -> the parts, of its `Recipe.parts`, that are quantised, one kernel for each.
        options: of the kernels: causal, scale, mask.

    Returns:
        rows: recipe; part; max and relative, of the Deviation from the golden value of these tensors; times_max and
        times_rmse, over BF16's. The first row is BF16's own: recipe "bf16", part "all".

    Raises:
        ValueError: there is no such recipe, or it has no such part.
    """
    q, k, v = (x.double() for x in (q, k, v))
    golden = kernels.golden(q, k, v, inputs=FP64, **options)
    chosen = [(key, name) for key, names in parts.items() for name in names]
    quantizations = [lookup("part", name, lookup("recipe", key, RECIPES).parts) for key, name in chosen]
    base, rows = None, []
    for (key, name), quantization in zip([("bf16", "all"), *chosen], [Quantization(), *quantizations]):
        unscaled = quantization.p is not None and quantization.p.per == "none"
        algorithm = Algorithm("fa2", p_exponent_offset=RAISED if unscaled else 0)
        o = attention(q, k, v, quantization, tiling=TILING, algorithm=algorithm, **options)
        d = deviation(o, golden, BF16)
        base = base or d
        times = dict(times_max=over_baseline(d.max, base.max), times_rmse=over_baseline(d.rmse, base.rmse))
        rows.append(dict(recipe=key, part=name, max=d.max, relative=d.relative) | times)
    return rows


def block_scales(
    kind: str, seed: int, n: int, parts: dict[str, Sequence[str]], *, rows: int = 128, head_dim: int = 64,
    heads: int = 2,
) -> list[dict]:  # fmt: skip
    """A cell: `losses` of one draw.

    Args:
        kind, seed, n, rows, head_dim, heads: as of `problem`. parts: as of `losses`.

    Returns:
        rows of `losses`.
    """
    return losses(*problem(kind, seed, n, rows=rows, head_dim=head_dim, heads=heads), parts)
