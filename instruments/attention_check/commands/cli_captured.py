"""`fa-lib shrink` and `fa-lib compare`: commands for captured calls of attention."""

from pathlib import Path
from typing import Annotated

import typer

from attention_check.commands.cli_check import (
    ALLOW_LARGE,
    CAUSAL,
    FILE_LAYOUT,
    KERNEL_NAMES,
    SCALE,
    SOFTCAP,
    WINDOW,
    reading_of,
)
from fa_lib.commands.errors import exit_on_error, say

app = typer.Typer()


@app.command()
def shrink(
    file: Annotated[Path, typer.Argument(help="a captured call, as a Probe saves it: .safetensors, .npz or .pt")],
    kernel: Annotated[str, typer.Option(help=f"built-in (every_step), {KERNEL_NAMES}")],
    out: Annotated[
        Path | None, typer.Option(help="file for the test; test_<function>.py in this folder where none is named")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda")] = "cpu",
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
    device: Annotated[str, typer.Option(help="cpu, or cuda")] = "cpu",
    layout: FILE_LAYOUT = "bhsd",
    causal: CAUSAL = None,
    scale: SCALE = None,
    softcap: SOFTCAP = None,
    window: WINDOW = "",
    allow_large: ALLOW_LARGE = False,
) -> None:
    """Why do two kernels disagree? Their errors, their difference, and which change of one gives the other.

    For a trainer against a rollout, or prefill against decode: fa-lib compare flash flash --decode. A kernel that takes
    (batch, sequence, heads, head_dim) is named NAME@bshd.
    """
    with exit_on_error(json_file):
        import json

        from attention_check.explain import compare as comparing
        from attention_check.explain.compare import comparison_lines
        from attention_check.isolation.isolated_kernel import all_isolated
        from fa_lib.execution.files import replacing
        from fa_lib.kernels.kernel_ref import KernelRef

        reading = reading_of(fmt, layout, causal, scale, softcap, window, allow_large)
        question = comparing.ComparisonInputs(
            tensors, reading, fmt or "BF16", distribution, n, decode=decode, device=device
        )
        with all_isolated([KernelRef.of(a), KernelRef.of(b)]) as (first, second):
            found = comparing.compare(first, second, question)
        if json_file is not None:
            with replacing(json_file) as path:
                path.write_text(json.dumps(found.record(), indent=1) + "\n")
        say("\n".join(comparison_lines(found)))
