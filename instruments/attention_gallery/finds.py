"""Shipped kernels with large errors, and two proofs of each error's cause: an emulation that rounds the step in
question has the same errors, and the kernel has small errors on the same values in another type. Of torch's gradients
the second is the emulation with that step in FP32.

The kernels are the gallery's, so their libraries have to be installed (`make gallery`); torch's gradients and the
emulations need none. Each cell of FINDS measures n keys, with `queries` rows of Q in each of `heads` heads of head_dim
64, on inputs of `draw(distribution, seed, ...)`, and returns rows of `error_rows`: of the kernel, of the emulation, and
of the control, "changed".

The emulations take q (..., n_q, head_dim), k and v (..., n_kv, head_dim), and return o, float64 (..., n_q, head_dim).
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attention_gallery.ggml import flash_attn_ext
from attention_gallery.openvino_kernels import openvino_sdpa
from attention_gallery.pallas import decode_in_splits
from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import baseline_for, rounds_scores_twice
from fa_lib.kernels.shipped import torch_cpu
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, Format
from fa_lib.numerics.metrics import deviation, over_baseline


def ggml(n: int, queries: int, distribution: str, seed: int, threads: int = 2, heads: int = 8) -> list[dict]:
    """A cell: measure ggml's flash attention on CPU, K and V in FP16, as llama.cpp decodes.

    Emulated, below 64 queries, where ggml goes key by key: `key_by_key`. With one query ggml divides the keys among its
    threads; with more, the queries. Changed: the same values of V stored in FP32.
    """
    q, k, v = draw_in_format(distribution, seed, FP16, queries, n, heads)
    ours = dict(kernel=flash_attn_ext(threads=threads, precise=True)(q, k, v))
    if queries < 64:
        ours["emulated"] = key_by_key(q, k, v, parts=threads if queries == 1 else 1)
        ours["changed"] = flash_attn_ext(threads=threads, precise=True, v_type="FP32")(q, k, v)
    return error_rows(ours, FP16, q, k, v)


def ringattention(n: int, distribution: str, seed: int) -> list[dict]:
    """A cell: measure ringattention in BF16 with float32_logits=False, in chunks of 512 keys.

    There are as many queries as keys. Emulated: FlashAttention-2 with every step in BF16, in tiles of 512. Changed:
    float32_logits=True.
    """
    q, k, v = draw_in_format(distribution, seed, BF16, n, n, 1)
    low, high = (kernels.get(f"attention_gallery:{key}") for key in ("ring_16_bit_logits", "ring_fp32_logits"))
    emulated = kernels.tiled(q, k, v, tiling=Tiling(64, 512), precision=Precision.uniform(BF16), algorithm="fa2")
    return error_rows(dict(kernel=low(q, k, v), emulated=emulated, changed=high(q, k, v)), BF16, q, k, v)


def pallas_decode(n: int, splits: int, distribution: str, seed: int, queries: int = 128) -> list[dict]:
    """A cell: measure JAX's Pallas kernel for decoding on GPUs, in BF16, run by Pallas's interpreter: one query a call,
    blocks of 128 keys, and the keys in `splits` parts.

    Emulated: `in_parts`. Changed: the same values of Q, K and V in FP32.
    """
    q, k, v = draw_in_format(distribution, seed, BF16, queries, n, 1)
    emulated = in_parts(q, k, v, BF16, splits, block=min(128, n // splits))
    decode = decode_in_splits(splits)
    wide = decode(*(x.float() for x in (q, k, v)))
    return error_rows(dict(kernel=decode(q, k, v), emulated=emulated, changed=wide), BF16, q, k, v)


def openvino(n: int, distribution: str, seed: int, queries: int = 64, heads: int = 2) -> list[dict]:
    """A cell: measure OpenVINO's ScaledDotProductAttention in FP16, on a processor with instructions for BF16 and none
    for FP16, where OpenVINO computes it in BF16.

    Emulated: `in_bf16`. Changed: the same values of Q, K and V in FP32.
    """
    q, k, v = draw_in_format(distribution, seed, FP16, queries, n, heads)
    wide = openvino_sdpa(q.float(), k.float(), v.float())
    return error_rows(dict(kernel=openvino_sdpa(q, k, v), emulated=in_bf16(q, k, v), changed=wide), FP16, q, k, v)


def torch_backward(n: int, queries: int, distribution: str, seed: int) -> list[dict]:
    """A cell: measure the gradients of torch's flash kernel in BF16, for a normal dO. Rows also have tensor ("dq",
    "dk", "dv") and same, the share of values that are the kernel's, bit for bit.

    Emulated: `shipped.torch_cpu`, tile by tile, every gradient's sum rounded to BF16 after each tile. Changed: the same
    emulation with these sums in FP32.
    """
    q, k, v = (x.double() for x in draw_in_format(distribution, seed, BF16, queries, n, 1))
    dO = BF16(draw("normal", seed + 1000, q.shape)[0])

    def gradients(kernel):
        x = [tensor.requires_grad_() for tensor in (q.clone(), k.clone(), v.clone())]
        return dict(zip(("dq", "dk", "dv"), torch.autograd.grad(kernel(*x), x, dO)))

    shipped = torch_cpu(BF16, queries)
    wide = shipped | dict(precision=replace(shipped["precision"], grad_sums=FP32))
    sides = dict(
        kernel=gradients(lambda *x: kernels.flash(*(tensor.bfloat16() for tensor in x)).double()),
        emulated=gradients(lambda *x: kernels.tiled(*x, **shipped)),
        changed=gradients(lambda *x: kernels.tiled(*x, **wide)),
    )
    golden = gradients(lambda *x: kernels.reference(*x, precision=Precision.uniform(FP64)))
    baseline = gradients(lambda *x: kernels.reference(*x, precision=rounds_scores_twice(BF16)))
    rows = []
    for tensor in golden:
        values = {who: of_side[tensor] for who, of_side in sides.items()}
        for row in _errors(values, golden[tensor], baseline[tensor], BF16):
            same = (values[row["who"]] == values["kernel"]).double().mean().item()
            rows.append(dict(tensor=tensor) | row | dict(same=same))
    return rows


FINDS = {find.__name__: find for find in (ggml, ringattention, pallas_decode, openvino, torch_backward)}


def draw_in_format(distribution: str, seed: int, fmt: Format, n_q: int, n_kv: int, heads: int) -> list[Tensor]:
    """Draw Q (1, heads, n_q, 64), K and V (1, heads, n_kv, 64) on the grid and in the dtype of a format."""
    return [fmt(x).to(fmt.dtype) for x in draw(distribution, seed, (1, heads, n_q, 64), (1, heads, n_kv, 64))]


def error_rows(outputs: dict[str, Tensor], fmt: Format, q: Tensor, k: Tensor, v: Tensor) -> list[dict]:
    """Compare outputs, who -> o, with the golden value of q, k and v in a format, and their errors with those of the
    first one, the kernel's: rows of who; max, of the Deviation; times_max, over Baseline's; relative, the error's root
    mean square over the golden value's; alike, the correlation of its errors with the kernel's."""
    return _errors(outputs, kernels.golden(q, k, v, inputs=fmt), baseline_for(fmt)(q, k, v), fmt)


def _errors(outputs, golden, baseline, fmt):
    """`error_rows` beside a golden value and Baseline's."""
    limit = deviation(baseline, golden, fmt).max
    own, rows = (next(iter(outputs.values())).double() - golden).flatten(), []
    for who, o in outputs.items():
        d, alike = deviation(o, golden, fmt), float(np.corrcoef(own, (o.double() - golden).flatten())[0, 1])
        rows.append(dict(who=who, max=d.max, times_max=over_baseline(d.max, limit), relative=d.relative, alike=alike))
    return rows


def key_by_key(q: Tensor, k: Tensor, v: Tensor, *, accumulator: Format = FP16, parts: int = 1) -> Tensor:
    """Compute attention as ggml's CPU kernel does below 64 queries: online softmax over single keys, O carried in
    `accumulator`, the scores, P and the row sum in FP32. (ggml-cpu/ops.cpp.) The keys are cut into `parts`, one a
    thread, which are merged at the end."""
    of_parts = []
    for S, v_part in zip(scores(q, k).chunk(parts, -1), v.double().chunk(parts, -2)):
        m = S.new_full((*S.shape[:-1], 1), -math.inf)  # (..., n_q, 1)
        l, O = torch.zeros_like(m), S.new_zeros(*S.shape[:-1], v.shape[-1])  # (..., n_q, 1), (..., n_q, head_dim)
        for s, v_j in zip(S.split(1, -1), v_part.split(1, -2)):
            m_new = torch.maximum(m, s)
            a, P = FP32(torch.exp(m - m_new)), FP32(torch.exp(s - m_new))
            O = torch.where(m_new > m, accumulator(O * a), O)
            O, l, m = accumulator(O + P * v_j), FP32(FP32(l * a) + P), m_new  # a fused multiply-add: one rounding
        of_parts.append((m, l, O))
    m, l, O = map(torch.stack, zip(*of_parts))
    weights = torch.exp(m - m.amax(0))
    return (O * weights).sum(0) / (l * weights).sum(0)


def in_parts(q: Tensor, k: Tensor, v: Tensor, fmt: Format, parts: int, *, block: int = 128) -> Tensor:
    """Compute attention as JAX's Pallas kernel for decoding does: each part's O, not divided by its row sum, is rounded
    to `fmt`; so are the parts' weights, the weighted sums of O and of the row sums, and their quotient. The keys are
    cut into `parts`; block: keys of a tile of a part."""
    of_parts = []
    for S, v_part in zip(scores(q, k).chunk(parts, -1), v.double().chunk(parts, -2)):
        m = S.new_full((*S.shape[:-1], 1), torch.finfo(torch.float32).min)  # (..., n_q, 1)
        l, O = torch.zeros_like(m), S.new_zeros(*S.shape[:-1], v.shape[-1])  # (..., n_q, 1), (..., n_q, head_dim)
        for S_j, v_j in zip(S.split(block, -1), v_part.split(block, -2)):
            m_new = torch.maximum(m, S_j.amax(-1, keepdim=True))
            a, P = FP32(torch.exp(FP32(m - m_new))), FP32(torch.exp(FP32(S_j - m_new)))
            l = FP32(FP32(a * l) + FP32(P.sum(-1, keepdim=True)))
            O, m = FP32(FP32(a * O) + FP32(fmt(P) @ v_j)), m_new
        of_parts.append((m, l, fmt(O)))
    m, l, O = map(torch.stack, zip(*of_parts))
    weights = FP32(torch.exp(m - m.amax(0)))
    return fmt(fmt((O * fmt(weights)).sum(0)) / fmt(FP32((l * weights).sum(0))))


def up_where_odd(x: Tensor) -> Tensor:
    """Round x, of any shape, to BF16 as `ov::bfloat16` does; the result is float64. Half an ulp is added where the last
    bit of BF16 is 1, and nothing where it is 0; then the further bits are cut off. (Rounding to nearest, ties to even,
    adds 0x7fff and that last bit.)"""
    bits = x.float().view(torch.int32)
    return (bits + ((bits & 0x10000) >> 1) & -0x10000).view(torch.float32).double()


def in_bf16(q: Tensor, k: Tensor, v: Tensor, into: Callable[[Tensor], Tensor] = up_where_odd) -> Tensor:
    """Compute attention as OpenVINO's CPU plugin does in BF16 from inputs of another format: Q, K and V are converted,
    scores are in FP32, P is divided by its sum and rounded to BF16, and O is rounded to BF16 once. into: the conversion
    of a float64 tensor to BF16."""
    q, k, v = (into(x.double()) for x in (q, k, v))
    return BF16(BF16(torch.softmax(scores(q, k), -1)) @ v)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Compute S = Q Kᵀ / sqrt(head_dim), float64 (..., n_q, n_kv), the product and the scaling rounded to FP32."""
    scale = np.float32(q.shape[-1] ** -0.5).item()
    return FP32(FP32(q.double() @ k.double().mT) * scale)
