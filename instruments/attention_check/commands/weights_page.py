"""`fa-lib explain --kernel`: the weights of a kernel, in words and on a page."""

import math
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from attention_check.commands.cli_check import write_json
from attention_check.isolation.isolated_kernel import isolated, wait
from attention_check.measure.weights import Weights, weights
from attention_check.plots.weights import weights_figure
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.report.about import circumstances
from attention_check.report.page import picture, rendered
from attention_check.report.page_files import PageFiles
from attention_check.report.weights_words import lines
from fa_lib.commands.errors import say
from fa_lib.execution.files import replacing
from fa_lib.execution.results import provenance
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import Format

SPREAD = 2.0  # standard deviation of the scores of drawn inputs: wide enough for a softcap's curve
N_KV = 128
DRAWN = [*product((64, 128, 32, 576), ((4, 2, 96), (4, 4, 96), (4, 4, N_KV), (4, 1, 1), (4, 4, 1)))]
LARGEST = 2**26  # weights of a call in a file


def explain_kernel(
    name: str, gpu: str, file: Path | None, reading: Reading, out: str, json_file: Path | None
) -> bool:  # fmt: skip
    """Print what the weights of a kernel say; write the page and the record where they are asked for. Returns whether
    they differ from attention's. Arguments as of the command."""
    ref = KernelRef.of(name, gpu)
    w, q, k = kernel_weights(ref, file, reading)
    read = lines(w)
    say("\n".join(read))
    if out:
        say(f"{write(out, ref, w, q, k)}")
    settings = dict(kernel=ref.key, file=f"{file or ''}", q=[*q.shape], k=[*k.shape])
    write_json(json_file, dict(differs=w.differs, lines=read) | provenance(settings))
    return w.differs


def kernel_weights(ref: KernelRef, file: Path | None, reading: Reading) -> tuple[Weights, Tensor, Tensor]:
    """The Weights of a kernel, and q and k: a file's, or drawn in the first shapes that the kernel takes, those with
    shared heads and fewer queries than keys before others.

    Raises:
        ValueError: the kernel takes none of them, or a file's call is too long.
    """
    with isolated(ref) as kernel:
        wait(kernel)
        if file is not None:
            call = captured(file, reading).in_four_dimensions()
            if (count := math.prod(call.q.shape[:-1]) * call.k.shape[2]) > LARGEST:
                fewer = f"save a call of at most {call.v.shape[-1]} keys"
                raise ValueError(f"{file}: has {count:,} weights; accepted are {LARGEST:,}: {fewer}")
            return weights(kernel, call.q, call.k, call.v.shape[-1], **call.options), call.q, call.k
        dtype, problems = Format.of(reading.fmt or "BF16").dtype, []
        for head_dim, (heads, kv_heads, n_q) in DRAWN:
            q, k, _ = draw("normal", 0, (1, heads, n_q, head_dim), (1, kv_heads, N_KV, head_dim))
            q, k = (SPREAD * q).to(dtype), k.to(dtype)
            try:
                return weights(kernel, q, k, **reading.options({})), q, k
            except ValueError as error:
                problems.append(error)
        raise problems[0]


def write(out: str, ref: KernelRef, w: Weights, q: Tensor, k: Tensor) -> Path:
    """Write the page, and return it."""
    files, (headline, *read) = PageFiles.of(out, f"{ref.label}_weights"), lines(w)
    shapes = {name: f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for name, x in (("q", q), ("k", k))}
    about: dict[str, Any] = {"Kernel": ref.label, **shapes, **circumstances("cpu")}
    title = (read[0] if w.differs else headline).strip()
    caption = f"{ref.label}, q {shapes['q']}, k {shapes['k']}, V: rows of the identity."
    page = rendered(
        Path(__file__).with_name("weights.html.jinja"), headline=headline, read=read, differs=w.differs, about=about,
        picture=picture(weights_figure(w, title, caption)),
    )  # fmt: skip
    with replacing(files.page) as path:
        path.write_text(page, encoding="utf-8")
    return files.page
