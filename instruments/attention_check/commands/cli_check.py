"""`fa-lib check`: a kernel, captured tensors, a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fa_lib.commands.errors import EXIT_CODES, exit_on_error

if TYPE_CHECKING:
    from attention_check.probe.named_tensors import Reading

app = typer.Typer(no_args_is_help=True, help=f"Judge a kernel, captured tensors, or a model.\n\n{EXIT_CODES}")


def write_json(file: Path | None, record: dict) -> None:
    """Write a record to a file, if there is one."""
    import json

    from fa_lib.execution.files import replacing

    if file is not None:
        with replacing(file) as path:
            path.write_text(json.dumps(record, indent=1) + "\n")


def _judged(report, json_file, exit_code):
    """Print a report's judgement, write its record, and end with the exit code that it asks for.

    Raises:
        typer.Exit: always, with the code.
    """
    from attention_check.judge.findings import Severity, Verdict
    from attention_check.report.sentences import judgement_lines
    from fa_lib.execution.untrusted import Untrusted

    judgement = report.judgement
    write_json(json_file, report.record)
    verdicts = {Verdict.PASSES: "green", Verdict.FAILS: "red", Verdict.NOT_JUDGED: "yellow"}
    groups = {Severity.FAILS: "red", Severity.PASSES: "green"}
    first, *lines = judgement_lines(judgement, lambda group, text: typer.style(text, fg=groups.get(group), bold=True))
    first = typer.style(first, fg=verdicts[judgement.verdict], bold=True)
    typer.echo("\n".join([first, *lines, "", Untrusted(report.page)]))
    codes = {Verdict.PASSES: 0, Verdict.FAILS: 1, Verdict.NOT_JUDGED: 3}
    raise typer.Exit(codes[judgement.verdict] if exit_code else 0)


KERNEL_NAMES = "gallery:KEY, path/to/file.py:function, package.module:function, or gpu:H100:NAME"
OUT = Annotated[str, typer.Option(help="folder for the page and its tables; build/reports here where none is named")]
JSON = Annotated[Path | None, typer.Option("--json", help="file for the findings, with settings and versions")]
EXIT_CODE = Annotated[
    bool, typer.Option("--exit-code", help="exit with 1 where it fails, with 3 where nothing was judged")
]
GPU = Annotated[
    str,
    typer.Option(
        help="A100, L40S, H100, H200, B200: kernels run as that GPU computes; H100~1: its approximations changed"
    ),
]
LAYOUT = Annotated[
    str,
    typer.Option(
        help="of the kernel's tensors: bhsd; bshd (batch, sequence, heads, head_dim); varlen, paged: as flash-attn's"
    ),
]
DEVICE = Annotated[str, typer.Option(help="cpu, or cuda")]
FILE_LAYOUT = Annotated[
    str, typer.Option("--layout", help="of the file's tensors: bhsd; bshd (batch, sequence, heads, head_dim)")
]
CAUSAL = Annotated[
    bool | None,
    typer.Option(
        "--causal/--no-causal", help="whether the call is causal; else as the file says, which it may not contradict"
    ),
]
SCALE = Annotated[
    float | None, typer.Option(help="of the call's scores; 1 / sqrt(head_dim) if neither this nor the file says")
]
SOFTCAP = Annotated[float | None, typer.Option(help="of the call's scores; else as the file says")]
WINDOW = Annotated[str, typer.Option(help="keys that a row sees to the left and right, as 128,0; -1 for no limit")]
ALLOW_LARGE = Annotated[bool, typer.Option("--allow-large", help="read files of more than 2 GiB of tensors")]


def reading_of(
    fmt: str, layout: str, causal: bool | None, scale: float | None, softcap: float | None, window: str,
    allow_large: bool,
) -> "Reading":  # fmt: skip
    """Make the Reading of a file's tensors from the command line's options.

    Args:
        fmt: the format to round to; "" leaves them. window: "left,right", keys; "" for none. Others: as of `Reading`.

    Raises:
        ValueError: the window is no pair of whole numbers, or another argument does not fit.
    """
    from attention_check.probe.named_tensors import Reading

    sides = None
    if window:
        try:
            left, right = (None if int(side) < 0 else int(side) for side in window.split(","))
        except ValueError:
            raise ValueError(f"window: got {window!r}; accepted are two whole numbers, as 128,0") from None
        sides = (left, right)
    return Reading(fmt, layout, causal, scale, sides, softcap, allow_large)


@app.command("kernel")
def check_kernel(
    kernel: Annotated[str, typer.Argument(help=f"built-in (flash), {KERNEL_NAMES}")],
    quick: Annotated[bool, typer.Option("--quick", help="a first look: fewer lengths, shapes and relations")] = False,
    out: OUT = "",
    json_file: JSON = None,
    exit_code: EXIT_CODE = False,
    device: DEVICE = "cpu",
    layout: LAYOUT = "bhsd",
    timeout: Annotated[float, typer.Option(help="seconds that a call may take, in the kernel's own process")] = 60.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="of the drawn inputs; else a new one each time, which the record names")
    ] = None,
    gpu: GPU = "",
    arithmetic: Annotated[
        str,
        typer.Option(
            help="of a kernel that rounds Q, K, V and P to 8 bits or fewer: FP8_HEAD, FP8_TOKEN, MXFP8, NVFP4"
        ),
    ] = "",
) -> None:
    """Judge a kernel: a function f(q, k, v, causal=..., scale=...) on tensors (batch, heads, sequence, head_dim).

    `check tensors FILE --kernel NAME` judges a kernel on captured tensors.

    Its options may be called causal or is_causal; scale, softmax_scale, sm_scale or scaling; mask, attn_mask,
    attention_mask or attn_bias; window or window_size; softcap, logit_softcap or logits_soft_cap; sinks or s_aux. Where
    it does not take one, the verdict says so.

    It is called as a black box, and judged on the options it has: its error over lengths, shapes and masks, the sums
    that it keeps from tile to tile, inputs that make trouble, bias, determinism. With --gpu no GPU is needed: what
    Triton compiles is executed on the CPU, as that GPU computes; the kernel `fa2` then is FlashAttention-2's own.
    """
    with exit_on_error(json_file):
        from attention_check.isolation.isolated_kernel import isolated
        from attention_check.report.page_files import PageFiles
        from fa_lib.kernels.kernel_ref import KernelRef

        ref = KernelRef.of(kernel, gpu, layout)
        PageFiles.of(out, ref.label).clear()
        with isolated(ref, timeout) as subject:  # it begins while the rest is imported
            from attention_check.commands import reports

            depth = "quick" if quick else "report"
            report = reports.check_kernel(subject, depth, out, device, seed=seed, arithmetic=arithmetic)
        _judged(report, json_file, exit_code)


@app.command("tensors")
def check_tensors(
    file: Annotated[Path, typer.Argument(help=".safetensors, .npz or .pt, with tensors named q, k and v")],
    fmt: Annotated[str, typer.Option("--format", help="round the tensors to it first: BF16, FP16 or FP32")] = "",
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="kernels to compute, the first is judged; else the one that ran, or flash; repeatable"),
    ] = None,
    out: OUT = "",
    json_file: JSON = None,
    exit_code: EXIT_CODE = False,
    device: DEVICE = "cpu",
    layout: FILE_LAYOUT = "bhsd",
    causal: CAUSAL = None,
    scale: SCALE = None,
    softcap: SOFTCAP = None,
    window: WINDOW = "",
    allow_large: ALLOW_LARGE = False,
) -> None:
    """Judge captured Q, K and V: which heads are risky, how far kernels are on them, and was what ran right?

    Every tensor of the file is used, or refused: o (the output that is judged), mask, causal, scale, softcap, window,
    sinks, dO, under the names that torch and flash-attn give them, too. Nothing is loaded by pickle.
    """
    with exit_on_error(json_file):
        from attention_check.commands import captured_reports
        from fa_lib.kernels.kernel_ref import KernelRef

        names = dict(names=[*map(KernelRef.of, kernel)]) if kernel else {}
        reading = reading_of(fmt, layout, causal, scale, softcap, window, allow_large)
        _judged(captured_reports.check_tensors(file, reading, out, device=device, **names), json_file, exit_code)


@app.command("model")
def check_model(
    function: Annotated[
        str,
        typer.Argument(
            help="path/to/file.py:function or package.module:function; called without arguments, runs the model"
        ),
    ],
    save: Annotated[Path | None, typer.Option(help=".safetensors file for the worst call's tensors")] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="kernels to compute in addition to the model's own; else flash; repeatable")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="it is a decoder: no row may see later keys")] = False,
    out: OUT = "",
    json_file: JSON = None,
    exit_code: EXIT_CODE = False,
) -> None:
    """Judge a model's attention: every scaled_dot_product_attention call of a run, against the golden value.

    What the model computes has the same bits as without. Try `fa-lib check model examples.check_a_model:run`.
    """
    with exit_on_error(json_file):
        from contextlib import redirect_stdout

        from attention_check.commands import captured_reports
        from fa_lib.execution.reader_modules import module_name
        from fa_lib.kernels.kernel_ref import KernelRef

        names = dict(names=[*map(KernelRef.of, kernel)]) if kernel else {}
        function = module_name(function, "function")
        with redirect_stdout(sys.stderr):  # stdout is the judgement's
            report = captured_reports.check_model(function, out, save, causal=causal, **names)
        _judged(report, json_file, exit_code)
