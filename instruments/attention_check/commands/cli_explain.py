"""`fa-lib explain`: is an output rounding or a bug, from its tensors alone."""

from pathlib import Path
from typing import Annotated

import typer

from attention_check.commands.cli_check import ALLOW_LARGE, CAUSAL, FILE_LAYOUT, SCALE, SOFTCAP, WINDOW, reading_of
from fa_lib.commands.errors import exit_on_error, say

app = typer.Typer()


@app.command()
def explain(
    file: Annotated[
        Path,
        typer.Argument(
            help="q, k, v and o; o_ref, cu_seqlens, lse, dO, dq, dk, dv if there are any: .safetensors, .npz or .pt"
        ),
    ],
    fmt: Annotated[str, typer.Option("--format", help="of q, k and v where the file stores them in a wider one")] = "",
    out: Annotated[
        str, typer.Option(help="folder for a page, the worst rows, a script that reads them and text for an issue")
    ] = "",
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
    language.
    """
    with exit_on_error(json_file):
        import json

        from attention_check.explain.explain import explain_call, read
        from attention_check.explain.explain_words import lines, nearer
        from attention_check.explain.verdict import record
        from fa_lib.execution.files import replacing
        from fa_lib.execution.results import provenance

        reading = reading_of(fmt, layout, causal, scale, softcap, window, allow_large)
        calls = read(file, reading)
        found = {name: explain_call(each) for name, each in calls.items()}
        say("\n".join(line for name, each in found.items() for line in lines(each, name)))
        if len(found) == 2:
            say(nearer(found))
        if out:
            from attention_check.commands.explained_page import ExplainedFiles

            for name, each in found.items():
                files = ExplainedFiles.of(out, file.stem if name == "o" else f"{file.stem}.{name}")
                files.write(calls[name], each, name, file.name)
                say(f"{files.page}")
        if json_file is not None:
            with replacing(json_file) as path:
                records = {name: record(each) for name, each in found.items()}
                path.write_text(json.dumps(records | provenance(dict(file=f"{file}")), indent=1) + "\n")
    if exit_code and not all(each.is_rounding for each in found.values()):
        raise typer.Exit(1)
    if exit_code and any(each.not_judged for each in found.values()):
        raise typer.Exit(3)
