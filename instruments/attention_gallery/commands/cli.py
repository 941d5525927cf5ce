"""`fa-lib dev gallery`: judge the kernels of other projects."""

from typing import Annotated

import typer

from fa_lib.commands.errors import exit_on_error


def add_commands(app: typer.Typer, dev: typer.Typer) -> None:
    """Add the gallery's command to `fa-lib dev`. app: `fa-lib`, which gets none."""
    dev.command()(gallery)


def gallery(
    names: Annotated[list[str] | None, typer.Argument(help="kernels, as ggml_decode; all where none is named")] = None,
    list_: Annotated[bool, typer.Option("--list", help="print the kernels, and which of them can run here")] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="by a short plan: five kernels, three with --gpu, or those named; unpublished"),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="kernels at a time")] = 2,
    gpu: Annotated[bool, typer.Option("--gpu", help="GPU kernels, on this CPU in a GPU's arithmetic")] = False,
) -> None:
    """Judge the attention kernels that other projects ship: llama.cpp, ONNX Runtime, JAX and more.

    What is done is not done again. All of them together renew data/gallery of the checkout. Judge one with all its
    tables by `fa-lib check kernel gallery:KEY`.
    """
    with exit_on_error(kept="kernels that are judged are kept in build/: the same command resumes"):
        if list_:
            from attention_gallery import catalogue

            typer.echo(catalogue.listing())
            return
        from attention_gallery.commands import pages

        pages.make(names or (), quick, jobs, say=typer.echo, simulated=gpu)
