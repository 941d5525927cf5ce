"""Two judges of attention kernels that are in use, on calls of flash-attention's own tests: forward and backward."""

from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_check.isolation.calls import KernelError, with_kernel_errors
from benchmarks.mutants.skeleton import repeated, visible
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.rule import ALLOWED
from fa_lib.kernels.variants import Call, by_key

DTYPES = (torch.bfloat16, torch.float16)
CALLS = by_key(  # lengths and head_dims of tests/test_flash_attn.py, with fewer heads
    Call(f"{'causal ' if causal else ''}{n_q} x {n_kv}, d {d}{', window' if window else ''}", n_q, n_kv, heads,
         kv_heads, d, options=dict(causal=causal) | (dict(window=window) if window else {}))
    for n_q, n_kv, heads, kv_heads, d, window in (
        (113, 203, 2, 2, 64, None), (128, 217, 2, 1, 96, None), (108, 256, 2, 2, 128, (33, 47)),
        (1023, 1024, 1, 1, 64, None),
    )
    for causal in (False, True)
)  # fmt: skip


def condemned(fn, seed: int) -> dict[str, list[str]]:
    """What each of JUDGES fails a kernel for: tensor, call and dtype. A call that it refuses is not counted."""
    found = {judge: [] for judge in JUDGES}
    for key in CALLS:
        for dtype in DTYPES:
            given, dO, right, plain = _known(key, dtype, seed)
            try:
                results = _results(with_kernel_errors(fn), given, dO, CALLS[key].options)
            except KernelError:
                continue
            for judge, agrees in JUDGES.items():
                for name, x in results.items():
                    if not agrees(name, x, right[name], plain[name]):
                        found[judge].append(f"{name}, {key}, {dtype}")
    return found


def close(name, x, right, plain):
    """torch.testing.assert_close with its defaults, to torch's attention in FP32, rounded to the dtype."""
    try:
        torch.testing.assert_close(x, right)
    except AssertionError:
        return False
    return True


def within_twice(name, x, right, plain):
    """flash-attention's rule: the largest difference to attention in FP32, rounded to the dtype, is at most twice (of
    gradients three times) that of attention in the dtype; and, as its later tests have it, twice what adding and
    taking off 0.3 costs."""
    spare = 2 * (right + 0.3 - 0.3 - right).abs().max().item()
    error, allowed = ((each - right).abs().max().item() for each in (x, plain))
    return error <= ALLOWED[name] * allowed + spare


JUDGES = {"assert_close": close, "rule_of_two": within_twice}


@lru_cache(maxsize=len(CALLS) * len(DTYPES))
def _known(key, dtype, seed):
    """q, k, v and dO in a dtype; what torch makes of them in FP32, rounded to it; and what it makes in it, unfused."""
    call = CALLS[key]
    given = draw("normal", seed, *call.shapes(call.head_dim))
    dO = draw("normal", seed + 1, given[0].shape)[0]
    given, dO = [x.to(dtype) for x in given], dO.to(dtype)
    seen = visible(call.n_q, call.n_kv, call.options["causal"], call.options.get("window"))

    def upcast(q, k, v):
        wide = (x.float() for x in (q, repeated(k, call.heads), repeated(v, call.heads)))
        return scaled_dot_product_attention(*wide, attn_mask=seen).to(dtype)

    def unfused(q, k, v):
        k, v = repeated(k / call.head_dim**0.5, call.heads), repeated(v, call.heads)
        return torch.softmax((q @ k.mT).masked_fill(~seen, -torch.inf), -1) @ v

    return given, dO, _results(upcast, given, dO, {}), _results(unfused, given, dO, {})


def _results(fn, given, dO, options):
    """o, dq, dk, dv under their names; o alone where the kernel has no gradients."""
    given = [x.clone().requires_grad_() for x in given]
    o = fn(*given, **options)
    grads = torch.autograd.grad(o, given, dO) if o.requires_grad else ()
    return dict(zip(ALLOWED, [o.detach(), *grads]))
