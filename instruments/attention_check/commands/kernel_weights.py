"""`fa-lib explain --kernel`: the weights of a kernel, in words and as a picture."""

import math
from itertools import product
from pathlib import Path

from attention_check.isolation.isolated_kernel import all_isolated
from attention_check.measure.weights import Weights, weights
from attention_check.plots.weights import weights_figure
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.report.page_files import save_picture
from attention_check.report.weights_words import lines
from fa_lib.commands.errors import say
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import Format

SPREAD = 2.0  # standard deviation of the scores of drawn inputs: wide enough for a softcap's curve
N_Q, N_KV = 200, 264  # rows and keys past blocks of 128, and a last block that is not full
LARGEST = 2**23  # weights of a file's call, some 100 bytes of memory each
SHAPES = [*product((64, 128, 32, 576), ((6, 2, N_Q), (4, 4, N_Q), (4, 4, N_KV), (4, 1, 1), (4, 4, 1)))]


def explain_kernel(name: str, gpu: str, file: Path | None, reading: Reading, out: str) -> tuple[Weights, list[str]]:
    """Print what the weights of a kernel say, and draw them in the folder `out`, if there is one. q and k are a file's,
    or drawn in the first SHAPES that it takes. Returns the Weights, and the lines."""
    with all_isolated([KernelRef.of(name, gpu)]) as (kernel,):
        w = _of_file(kernel, file, reading) if file else of_drawn(kernel, reading)
    read = lines(w)
    say("\n".join(read))
    if out:
        say(f"{save_picture(weights_figure(w, kernel.label), out, f'{kernel.label}_weights')}")
    return w, read


def _of_file(kernel, file, reading):
    call = captured(file, reading).in_four_dimensions()
    if (count := math.prod(call.q.shape[:3]) * call.k.shape[2]) > LARGEST:
        few = f"save a call of at most {call.v.shape[-1]} keys and {call.q.shape[-1]} queries"
        raise ValueError(f"{file}: has {count:,} weights; accepted are {LARGEST:,}: {few}")
    return weights(kernel, call.q, call.k, call.v.shape[-1], **call.options)


def of_drawn(kernel: KernelRef, reading: Reading) -> Weights:
    """The Weights of a kernel on q and k that are drawn, in the first SHAPES that it takes.

    Raises:
        ValueError: it takes none, or the reading is of a file.
    """
    if reading.layout != "bhsd" or reading.allow_large:
        raise ValueError("layout, allow_large: got one for drawn inputs; accepted is a file with it")
    problems = []
    for head_dim, (heads, kv_heads, n_q) in SHAPES:
        q, k, _ = draw("normal", 0, (1, heads, n_q, head_dim), (1, kv_heads, N_KV, head_dim))
        q, k = (x.to(Format.of(reading.fmt or "BF16").dtype) for x in (SPREAD * q, k))
        try:
            return weights(kernel, q, k, **reading.options({}))
        except ValueError as error:
            problems.append(error)
    raise problems[0]
