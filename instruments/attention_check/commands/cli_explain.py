"""`fa-lib explain`, `shrink`, `compare` and `blame`: where an output's error comes from."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from attention_check.commands.cli_check import (
    ALLOW_LARGE,
    CAUSAL,
    DEVICE,
    FILE_LAYOUT,
    GPU,
    KERNEL_NAMES,
    SCALE,
    SOFTCAP,
    WINDOW,
    reading_of,
    write_json,
)
from fa_lib.commands.errors import exit_on_error, say

app = typer.Typer()


@app.command()
def explain(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="q, k, v and o; o_ref, cu_seqlens, lse, dO, dq, dk, dv if there are any: .safetensors, .npz or .pt"
        ),
    ] = None,
    kernel: Annotated[
        str, typer.Option(help=f"measure its weights on the file's q and k, or on drawn ones: {KERNEL_NAMES}")
    ] = "",
    gpu: GPU = "",
    fmt: Annotated[
        str, typer.Option("--format", help="of q, k and v where the file stores them in a wider one; of drawn ones")
    ] = "",
    out: Annotated[str, typer.Option(help="folder for a picture of the weights of --kernel")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the findings, with versions")] = None,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="1 where anything is more than rounding, 3 where some was not judged"),
    ] = False,
    layout: FILE_LAYOUT = "bhsd",
    causal: CAUSAL = None,
    scale: SCALE = None,
    softcap: SOFTCAP = None,
    window: WINDOW = "",
    allow_large: ALLOW_LARGE = False,
) -> None:
    """Rounding or bug, and why? One of four words for an output: ROUNDING, CONVENTION, PRECISION or BUG.

    The options are what you believe of the call. No kernel is needed: the tensors may come from a GPU, a phone, another
    language. With --kernel, the weights that it gives to its keys are measured, and compared with attention's.
    """
    with exit_on_error(json_file):
        reading = reading_of(fmt, layout, causal, scale, softcap, window, allow_large)
        if kernel:
            from attention_check.commands.kernel_weights import explain_kernel

            found, read = explain_kernel(kernel, gpu, file, reading, out)
            write_json(json_file, dict(kernel=kernel, differs=found.differs, lines=read))
            raise typer.Exit(int(exit_code and found.differs))
        if file is None or gpu or out:
            raise ValueError("kernel: got none; accepted is one with --gpu, --out, or without a file of q, k, v and o")
        from attention_check.explain.explain import explain_call, read
        from attention_check.explain.explain_words import lines, nearer
        from attention_check.explain.verdict import finite
        from fa_lib.execution.results import provenance

        found = {name: explain_call(each) for name, each in read(file, reading).items()}
        say("\n".join(line for name, each in found.items() for line in lines(each, name)))
        if len(found) == 2:
            say(nearer(found))
        records = {name: finite(asdict(each)) for name, each in found.items()}
        write_json(json_file, records | provenance(dict(file=f"{file}")))
    if exit_code and not all(each.is_rounding for each in found.values()):
        raise typer.Exit(1)
    if exit_code and any(each.not_judged for each in found.values()):
        raise typer.Exit(3)


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
) -> None:  # fmt: skip
    """Which line loses the digits? Runs a GPU kernel without a GPU and splits its error by source lines.

    Beside every number of the kernel a second one is carried in float64 that lacks the rounding errors of one line.
    What an output changes by is what this line adds to the error. No line of the kernel is changed.
    """
    with exit_on_error():
        from attention_check.gpu.blame import blame as find
        from attention_check.report.blame_words import lines
        from fa_lib.kernels.inputs import draw
        from fa_lib.kernels.kernel_ref import KernelRef
        from fa_lib.numerics.formats import Format

        ref = KernelRef.of(kernel)
        if fmt not in ("BF16", "FP16"):
            raise ValueError(f"--format: got {fmt}; accepted are BF16 and FP16")
        drawn = draw(distribution, seed, (1, heads, n_q or n, head_dim), (1, heads, n, head_dim))
        q, k, v = (x.to(Format.of(fmt).dtype) for x in drawn)
        found = find(ref, q, k, v, gpu=gpu, **(dict(causal=True) if causal else {}))
        say("\n".join(lines(found)))


@app.command()
def shrink(
    file: Annotated[Path, typer.Argument(help="a captured call, as a Probe saves it: .safetensors, .npz or .pt")],
    kernel: Annotated[str, typer.Option(help=f"built-in (every_step), {KERNEL_NAMES}")],
    out: Annotated[
        Path | None, typer.Option(help="file for the test; test_<function>.py in this folder where none is named")
    ] = None,
    device: DEVICE = "cpu",
    layout: FILE_LAYOUT = "bhsd",
    causal: CAUSAL = None,
    scale: SCALE = None,
    softcap: SOFTCAP = None,
    window: WINDOW = "",
    allow_large: ALLOW_LARGE = False,
) -> None:
    """Make a captured call at which a kernel fails as small as it still fails, and write it as a pytest file.

    A kernel fails where it raises, where its output is not finite, or further from the golden value than a right
    kernel's may be. Heads, queries, keys and head_dim are cut. The file holds the tensors and needs torch alone.
    """
    with exit_on_error():
        from attention_check.explain import shrink as shrinking
        from attention_check.isolation.isolated_kernel import all_isolated
        from fa_lib.kernels.kernel_ref import KernelRef

        with all_isolated([KernelRef.of(kernel)]) as (subject,):
            reading = reading_of("", layout, causal, scale, softcap, window, allow_large)
            found = shrinking.shrink(subject, file, device, reading=reading)
        out = out or Path(f"test_{subject.function}.py")
        shrinking.write(found, out, device)
        say(f"{shrinking.failure_sentence(found)}\nLeft: {shrinking.sizes_sentence(found)}\n{out}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help=f"a kernel: built-in (flash), {KERNEL_NAMES}")],
    b: Annotated[str, typer.Argument(help="another, or the same with --decode")],
    tensors: Annotated[Path | None, typer.Option(help="file with captured q, k and v; else they are drawn")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="B gets one query at a time, A the whole, causally")] = False,
    fmt: Annotated[
        str, typer.Option("--format", help="of the inputs: FP16, FP32, or BF16, which drawn ones have")
    ] = "",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="keys of drawn inputs, of 2 heads of head_dim 64")] = 1024,
    distribution: Annotated[
        str, typer.Option(help="of drawn inputs: normal, uniform, peaked, 'repeated maxima', ...")
    ] = "normal",
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the numbers, with versions")] = None,
    device: DEVICE = "cpu",
    layout: FILE_LAYOUT = "bhsd",
    causal: CAUSAL = None,
    scale: SCALE = None,
    softcap: SOFTCAP = None,
    window: WINDOW = "",
    allow_large: ALLOW_LARGE = False,
) -> None:
    """Why do two kernels disagree? Their errors, their difference, and what has the error of a wrong one.

    For a trainer against a rollout, or prefill against decode: fa-lib compare flash flash --decode. A kernel that takes
    (batch, sequence, heads, head_dim) is named NAME@bshd.
    """
    with exit_on_error(json_file):
        from attention_check.explain import compare as comparing
        from attention_check.isolation.isolated_kernel import all_isolated
        from fa_lib.kernels.kernel_ref import KernelRef

        reading = reading_of(fmt, layout, causal, scale, softcap, window, allow_large)
        question = comparing.ComparisonInputs(
            tensors, reading, fmt or "BF16", distribution, n, decode=decode, device=device
        )
        with all_isolated([KernelRef.of(a), KernelRef.of(b)]) as (first, second):
            found = comparing.compare(first, second, question)
        write_json(json_file, found.record())
        say("\n".join(comparing.comparison_lines(found)))
