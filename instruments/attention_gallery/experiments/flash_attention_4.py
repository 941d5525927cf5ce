"""FlashAttention-4's own kernels for Hopper and Blackwell, run by `ptx_machine`, compared with the emulator.

It needs the extra `gpu` and CuTe. The table is recorded in data/gpu, by `make original`.
"""

from dataclasses import replace
from typing import Any

import torch

from attention_gallery.experiments.original import distances, draw_in_format, stored, with_own_exp2
from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.shipped import fa4_cuda, fa4_hopper
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation

MODELS = {"H100": fa4_hopper, "B200": fa4_cuda}


def flash_attention_4(
    fmt: Format | str, head_dim: int, causal: bool, gpu: str, distribution: str, n: int, seed: int, heads: int = 2
) -> list[dict]:
    """A cell: compare the kernel that flash_attn.cute.flash_attn_func chooses with its model in `tiled`.

    Args:
        fmt: FP16 or BF16. gpu: of MODELS, where the kernel runs. distribution, seed: as of `inputs.draw`. n: queries
            and keys.

    Returns:
        rows: choice ("model"; "exact": with exact sums; "exact_exp2": 2^x rounded correctly; "rescaled", on a B200:
        every new maximum rescales), different, ulps, times_max and times_max_model, as of `original.original`. None
        where the project takes a kernel of two blocks together, which is not modelled.
    """
    from attention_gallery.flash_attn_4 import fa4

    fmt = Format.of(fmt)
    q, k, v = draw_in_format(fmt, distribution, seed, (1, heads, n, head_dim), (1, heads, n, head_dim))
    try:
        o = fa4(q, k, v, causal, None, gpu=gpu)
    except NotImplementedError:
        return []
    golden = kernels.golden(q, k, v, inputs=fmt, causal=causal)
    base = deviation(stored(fmt, q, k, v, causal=causal), golden).max
    described = MODELS[gpu]
    model = with_own_exp2(described(fmt, head_dim, gpu, causal=causal), gpu)
    algorithm = Algorithm.of(model["algorithm"])
    choices: dict[str, dict[str, Any]] = dict(
        model=model,
        exact=described(fmt, head_dim, causal=causal) | dict(algorithm=algorithm),
        exact_exp2=model | dict(algorithm=replace(algorithm, exp2=torch.exp2)),
    )
    if gpu == "B200":
        choices |= dict(rescaled=model | dict(algorithm=replace(algorithm, threshold=0)))
    return [
        dict(choice=key, **distances(o, kernels.tiled(q, k, v, causal=causal, **arguments), golden, fmt, base))
        for key, arguments in choices.items()
    ]
