"""`fa-lib dev mutate`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fa_lib.commands.errors import exit_on_error


def mutate(
    kernel: Annotated[str, typer.Argument(help="FILE.py:function, which launches Triton or CUDA kernels")],
    tests: Annotated[list[str], typer.Argument(help="behind --: the test command, as pytest my_tests.py")],
    gpu: Annotated[str, typer.Option(help="of kernels that name none: A100, L40S, H100, H200, B200")] = "A100",
    changes: Annotated[int, typer.Option(min=1, help="to draw, of each kind in turn")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="of the draw")] = 0,
) -> None:
    """List changes of a GPU kernel that your tests do not notice. No GPU is needed.

    The tests run once as they are, and once with each change of one instruction. A change that they pass with has
    survived: a test is missing, or the change has no effect.
    """
    with exit_on_error():
        from tqdm import tqdm

        from attention_check.gpu import mutation
        from ptx_machine.device import GPU

        file, _, function = kernel.rpartition(":")
        if not Path(file).is_file() or not function:
            raise ValueError(f"kernel: got {kernel!r}; accepted is FILE.py:function of a file that is there")
        name, within = GPU.of(gpu).name, f"{Path(file).resolve()}:{function}"
        every = mutation.recorded(tests, within, name)
        drawn, count = mutation.drawn(every, changes, seed), Counter()
        typer.echo(f"{len(every):,} possible changes, {len(drawn)} drawn")
        for change in tqdm(drawn, "changes", leave=False, disable=None):
            found = mutation.outcome(tests, within, name, change)
            count[found] += 1
            if found == mutation.SURVIVED:
                place = change.source or f"line {change.line} of the PTX"
                typer.echo(f"\n{place}: {change.kind}\n  - {change.before}\n  + {change.after}")
        typer.echo("\n" + ", ".join(f"{count[each]} {each}" for each in mutation.OUTCOMES))
