"""`fa-lib blame`: which source line of a GPU kernel loses the digits."""

from pathlib import Path
from typing import Annotated

import typer

from fa_lib.commands.errors import exit_on_error, say

app = typer.Typer()


@app.command()
def blame(
    kernel: Annotated[
        str, typer.Argument(help='"fa2", or a function that launches Triton or CUDA kernels: path/to/file.py:function')
    ],
    gpu: Annotated[str, typer.Option(help="the GPU whose arithmetic it is: A100, L40S, H100, H200, B200")] = "A100",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="number of keys")] = 256,
    n_q: Annotated[int | None, typer.Option(min=1, help="number of queries; as many as keys")] = None,
    heads: Annotated[int, typer.Option(min=1, help="number of heads")] = 1,
    head_dim: Annotated[int, typer.Option(min=1, help="numbers of a query, a key and a value")] = 64,
    fmt: Annotated[str, typer.Option("--format", help="of q, k and v: BF16 or FP16")] = "BF16",
    distribution: Annotated[str, typer.Option(help="of the inputs: uniform, normal, outliers, sink, ...")] = "normal",
    causal: Annotated[bool, typer.Option("--causal", help="with a causal mask")] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the inputs")] = 0,
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="lines and formats to round them to, as 38=FP32 or 38=exact,41=FP32; may be given again"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file for an HTML page with the source and its heat")] = None,
) -> None:  # fmt: skip
    """Which line loses the digits? Runs a GPU kernel without a GPU and splits its error by source lines.

    Beside every number of the kernel a second one is carried in float64 that lacks the rounding errors of one line.
    What an output changes by is what this line adds to the error. No line of the kernel is changed.
    """
    with exit_on_error():
        from attention_check.commands.blame_page import change_text, changes_of, lines
        from attention_check.gpu.blame import blame as find
        from attention_check.gpu.blame import what_if as ask
        from fa_lib.kernels.inputs import draw
        from fa_lib.kernels.kernel_ref import KernelRef
        from fa_lib.numerics.formats import Format

        ref = KernelRef.of(kernel)
        dtype = Format.of(fmt).dtype
        if fmt not in ("BF16", "FP16"):
            raise ValueError(f"--format: got {fmt}; accepted are BF16 and FP16")
        q, k, v = draw(distribution, seed, (1, heads, n_q or n, head_dim), (1, heads, n, head_dim))
        q, k, v = (x.to(dtype) for x in (q, k, v))
        options: dict = dict(causal=True) if causal else {}
        found = find(ref, q, k, v, gpu=gpu, **options)
        say("\n".join(lines(found)))
        changes = [changes_of(each, found) for each in what_if or ()]
        answers = ask(ref, q, k, v, [change for change, _ in changes], gpu=gpu, **options) if changes else []
        answered = [change_text(words, float(error.norm() / found.size)) for (_, words), error in zip(changes, answers)]
        for each in answered:
            say(each)
        if out is not None:
            from attention_check.commands.blame_page import write

            shape = f"{heads} {'head' if heads == 1 else 'heads'}, {n_q or n} queries, {n} keys, head_dim {head_dim}"
            mask = ", causal" if causal else ""
            inputs = f"{distribution}, {fmt}, seed {seed}"
            about = dict(kernel=ref.label, GPU=found.gpu, call=f"{shape}{mask}", inputs=inputs)
            write(out, found, about, answered)
            say(f"{out}")
