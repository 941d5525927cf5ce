"""An attention kernel in CUDA C++, judged without a GPU by

fa-lib check kernel examples/cuda_attention.py:attention --gpu A100
"""

from functools import cache

import torch
from torch import Tensor

from ptx_machine import Kernel, compile_cuda

THREADS = 128  # of a block, which computes a row of O
SOURCE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
constexpr float LOG2_E = 1.4426950408889634f;

template <typename T>  // Q, O: (heads, n_q, d), K, V: (heads, n_kv, d), contiguous
__device__ void row_of_o(const T *Q, const T *K, const T *V, T *O, float scale, int n_q, int n_kv, int d, int causal) {
    extern __shared__ float p[];  // a score for each key, then its exponential
    __shared__ float each[THREADS];
    const int row = blockIdx.x, head = blockIdx.y, thread = threadIdx.x;
    const int seen = causal ? min(n_kv, max(0, row + 1 + n_kv - n_q)) : n_kv;  // keys; aligned bottom-right
    Q += (size_t(head) * n_q + row) * d, O += (size_t(head) * n_q + row) * d;
    K += size_t(head) * n_kv * d, V += size_t(head) * n_kv * d;

    each[thread] = -INFINITY;
    for (int key = thread; key < seen; key += THREADS) {
        float s = 0.0f;
        for (int i = 0; i < d; i++) s += float(Q[i]) * float(K[size_t(key) * d + i]);
        p[key] = s * (scale * LOG2_E);
        each[thread] = fmaxf(each[thread], p[key]);
    }
    __syncthreads();
    float m = -INFINITY, l = 0.0f;
    for (int i = 0; i < THREADS; i++) m = fmaxf(m, each[i]);
    __syncthreads();

    each[thread] = 0.0f;
    for (int key = thread; key < seen; key += THREADS) {
        p[key] = exp2f(p[key] - m);
        each[thread] += p[key];
    }
    __syncthreads();
    for (int i = 0; i < THREADS; i++) l += each[i];

    for (int i = thread; i < d; i += THREADS) {
        float o = 0.0f;
        for (int key = 0; key < seen; key++) o += p[key] * float(V[size_t(key) * d + i]);
        O[i] = T(seen ? o / l : 0.0f);
    }
}

#define KERNEL(NAME, T)                                                                                       \\
    extern "C" __global__ void NAME(const T *Q, const T *K, const T *V, T *O, float scale, int n_q, int n_kv, \\
                                    int d, int causal) { row_of_o(Q, K, V, O, scale, n_q, n_kv, d, causal); }
KERNEL(float16, __half)
KERNEL(bfloat16, __nv_bfloat16)
"""


@cache
def kernel(name: str) -> Kernel:
    return Kernel(compile_cuda(SOURCE, flags=[f"-DTHREADS={THREADS}"]), name)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """(batch, heads, n, head_dim), in BF16 or FP16; no gradients. An A100's shared memory holds 41,000 scores."""
    (batch, heads, n_q, d), n_kv = q.shape, k.shape[2]
    if q.dtype not in (torch.bfloat16, torch.float16) or k.shape[:2] != q.shape[:2] or v.shape != k.shape:
        raise ValueError("this kernel takes BF16 and FP16, as many heads of K as of Q, V of K's shape")
    q, k, v = (x.contiguous() for x in (q, k, v))
    o = torch.empty_like(q)
    grid, shared = (n_q, batch * heads), 4 * n_kv  # bytes
    scale = d**-0.5 if scale is None else scale
    kernel(f"{q.dtype}".removeprefix("torch."))(grid, (THREADS,), shared, q, k, v, o, scale, n_q, n_kv, d, int(causal))
    return o
