"""The command `fa-lib`, also `python -m fa_lib`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Is my attention kernel numerically safe?"""


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="folder for weights and checkpoint; an interrupted run goes on")],
    arm: Annotated[
        str, typer.Option(help="baseline, flash, fp16, ...: a key of fa_lib.training.arm.ARMS")
    ] = "baseline",
    kernel: Annotated[
        str, typer.Option(help="instead of the arm's: a registered name or package.module:function")
    ] = "",
    precision: Annotated[str, typer.Option(help="instead of the arm's: 32-true, bf16-mixed, 16-mixed, ...")] = "",
    config: Annotated[str, typer.Option(help="a file of fa_lib/training, or a path that ends in .yaml")] = "small",
    seed: int = 0,
    steps: int = 200,
    every: Annotated[int, typer.Option(help="steps between weights written")] = 25,
    data: Annotated[str, typer.Option(help="shapes, a folder of captioned images or shards, or a hub name")] = "shapes",
    streaming: Annotated[bool, typer.Option("--streaming", help="never hold the data")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    devices: Annotated[int | None, typer.Option(help="processes; torchrun and srun tell it")] = None,
    strategy: Annotated[str, typer.Option(help="of several processes: ddp or fsdp")] = "ddp",
) -> None:
    """Train one arm of the study; killed and started again, it ends with the same bits."""
    from fa_lib.training.arm import arm_named
    from fa_lib.training.config import Config
    from fa_lib.training.preflight import started
    from fa_lib.training.spec import RunSpec

    changes = {name: value for name, value in (("kernel", kernel), ("precision", precision)) if value}
    try:
        spec = RunSpec(
            replace(arm_named(arm), **changes), seed, Config.load(config), steps, every, source=data,
            streaming=streaming, device=device, devices=started() if devices is None else devices, strategy=strategy,
        )  # fmt: skip
        from fa_lib.training import run  # slow to load: what cannot be trained is told before

        result = run.train(spec, out, progress=True)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    loss, seconds = result["losses"][-1], result["seconds"]
    print(f"{result['status']}, loss {loss:.4f}, {seconds:.0f} s, attention in {result['dtype']}")
