"""`fa-lib dev mutate`."""

from collections import Counter
from hashlib import sha256
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
    survived: a test is missing, or the change has no effect. Interrupted and started again it resumes.
    """
    with exit_on_error(kept="finished changes are kept in build/mutate: the same command resumes"):
        from tqdm import tqdm

        from attention_check.gpu import mutation
        from fa_lib.execution.paths import build
        from ptx_machine.device import GPU

        file, _, function = kernel.rpartition(":")
        if not Path(file).is_file() or not function:
            raise ValueError(f"kernel: got {kernel!r}; accepted is FILE.py:function of a file that is there")
        name, within = GPU.of(gpu).name, f"{Path(file).resolve()}:{function}"
        every = mutation.recorded(tests, within, name)
        drawn = mutation.drawn(every, changes, seed)
        key = sha256("\n".join([within, name, *tests, *_texts([*tests, file])]).encode()).hexdigest()[:16]
        kept = build() / "mutate" / f"{key}.jsonl"
        kept.parent.mkdir(parents=True, exist_ok=True)
        rows = mutation.outcomes(tests, within, name, drawn, kept)
        found = [*tqdm(rows, "changes", len(drawn), leave=False, disable=None)]
        count = Counter(row["outcome"] for row in found)
        typer.echo(f"{len(every):,} possible changes, {len(found)} drawn: " + ", ".join(
            f"{count[each]} {each}" for each in mutation.OUTCOMES))  # fmt: skip
        for row in sorted(found, key=lambda row: row["source"]):
            if row["outcome"] == mutation.SURVIVED:
                place = row["source"] or f"line {row['line']} of the PTX"
                typer.echo(f"\n{place}: {row['kind']}\n  - {row['before']}\n  + {row['after']}")


def _texts(words: list[str]) -> list[str]:
    """The text of the Python files among some words: other tests, and another kernel, have other outcomes."""
    paths = [Path(word.split("::")[0]) for word in words]
    return [path.read_text() for path in paths if path.suffix == ".py" and path.is_file()]
