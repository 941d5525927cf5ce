"""The one command, `fa-lib` (also `python -m fa_lib`): a page of --help for each thing it does."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

EXIT = "Exit codes: 0 it is done; 1 it was judged and fails (with --gate); 2 it could not be done, and is told why."
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help=f"Is my attention kernel numerically safe?\n\n{EXIT}",
)  # fmt: skip
check = typer.Typer(no_args_is_help=True, help=f"Judge a kernel, captured tensors, or a model.\n\n{EXIT}")
app.add_typer(check, name="check")


@contextmanager
def told():
    """An error of the reader's input or of the work ends the command with code 2 and one line, no traceback."""
    try:
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except ModuleNotFoundError as error:
        extras = {"papermill": "notebooks", "diffusers": "train", "lightning_fabric": "train", "submitit": "cluster"}
        if error.name not in extras:
            raise
        _end(f"this needs {error.name}: pip install 'fa_lib[{extras[error.name]}]'")
    except (ValueError, OSError, RuntimeError) as error:
        _end(str(error))


def _end(words):
    typer.echo(f"fa-lib: {words}", err=True)
    raise typer.Exit(2)


def _judged(report, json_file, gate):
    """Print a judgement, write its record, and end with the exit code it asks for."""
    import json

    from fa_lib.check.words import headline, sentences
    from fa_lib.execution.files import replacing

    if json_file is not None:
        with replacing(json_file) as path:
            path.write_text(json.dumps(report.record, indent=1) + "\n")
    told = [headline(report.judgement), *(sentence for _, sentence in sentences(report.judgement))]
    typer.echo("\n".join([*told, "", str(report.page)]))
    raise typer.Exit(1 if gate and not report.judgement.passed else 0)


OUT = Annotated[str, typer.Option(help="folder for the page and its tables; build/reports where none is named")]
JSON = Annotated[Path | None, typer.Option("--json", help="file for the findings, with settings and versions")]
GATE = Annotated[bool, typer.Option("--gate", help="exit with 1 where it fails")]
DEVICE = Annotated[str, typer.Option(help="cpu, or cuda")]


@check.command("kernel")
def check_kernel(
    kernel: Annotated[str, typer.Argument(help="a built-in kernel (flash), or package.module:function")],
    quick: Annotated[bool, typer.Option("--quick", help="a first look, in seconds instead of a minute")] = False,
    out: OUT = "",
    json_file: JSON = None,
    gate: GATE = False,
    device: DEVICE = "cpu",
) -> None:
    """Judge a kernel: a function f(q, k, v, causal=..., scale=...) on tensors (batch, heads, sequence, head_dim).

    It is called as a black box, and judged on the options it has: its error over lengths, shapes and masks, what it
    carries from tile to tile, inputs that make trouble, bias, determinism. The page has all of it.
    """
    with told():
        from fa_lib import reports

        report = reports.check_kernel(kernel, "quick" if quick else "report", out, device)
        _judged(report, json_file, gate)


@check.command("tensors")
def check_tensors(
    file: Annotated[Path, typer.Argument(help=".safetensors, .npz or .pt, with tensors named q, k and v")],
    fmt: Annotated[str, typer.Option("--format", help="round them to it first: BF16, FP16")] = "",
    kernel: Annotated[list[str] | None, typer.Option(help="the first is judged; may be given several times")] = None,
    out: OUT = "",
    json_file: JSON = None,
    gate: GATE = False,
    device: DEVICE = "cpu",
) -> None:
    """Judge captured Q, K and V: which heads are risky, how far kernels are on them, which change would help.

    Tensors mask, causal and scale of the file are used if there are any. Nothing is loaded by pickle.
    """
    with told():
        from fa_lib import reports

        names = dict(names=tuple(kernel)) if kernel else {}
        report = reports.check_tensors(file, fmt, out, device=device, **names)
        _judged(report, json_file, gate)


@check.command("model")
def check_model(
    function: Annotated[str, typer.Argument(help="package.module:function; called without arguments, runs the model")],
    save: Annotated[Path | None, typer.Option(help=".safetensors file for the worst call's tensors")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="computed beside the model's own; may be repeated")] = None,
    out: OUT = "",
    json_file: JSON = None,
    gate: GATE = False,
) -> None:
    """Judge a model's attention: every scaled_dot_product_attention call of a run, against the golden value.

    What the model computes has the same bits as without. Try `fa-lib check model examples.check_a_model:run`.
    """
    with told():
        from fa_lib import reports

        names = dict(names=tuple(kernel)) if kernel else {}
        report = reports.check_model(function, out, save, **names)
        _judged(report, json_file, gate)


@app.command()
def figures(
    only: Annotated[
        list[str] | None, typer.Argument(help="notebooks, as 02_precision; all where none is named")
    ] = None,
    scale: Annotated[str, typer.Option(help="a file of notebooks/scales")] = "paper",
    executor: Annotated[
        str | None, typer.Option(help="slurm, or a number of processes, instead of notebooks' own")
    ] = None,
    record: Annotated[bool, typer.Option(help="results go to data/recorded/<this GPU>/")] = False,
) -> None:
    """Draw the figures: run the notebooks whose results are not up to date, through papermill.

    Figures and tables go to build/figures and build/data/results of the checkout, or of the current folder. Interrupted
    and started again it goes on where it was. `fa-lib publish` makes them the committed ones.
    """
    with told():
        from fa_lib.execution.notebook import end_as_interrupted, run_all
        from fa_lib.paths import NOTEBOOKS, RECORDED, build

        end_as_interrupted()
        # OpenMP's threads spin while they wait: two notebooks at once would take each other's cores, and run 20 times
        # slower than one after the other
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        into = RECORDED / _gpu() if record else build()
        executor = int(executor) if executor and executor.isdigit() else executor
        run_all(_notebooks(NOTEBOOKS, only), scale, build(), into=into, executor=executor, say=_say)
        _say(f"figures are in {into / 'figures'}, tables in {into / 'data' / 'results'}")


@app.command()
def publish() -> None:
    """Make the figures and tables of build/ the committed ones, and renew the README's ledger.

    All notebooks of the scale "paper" have to be up to date: run `fa-lib figures` before.
    """
    with told():
        from fa_lib import claims
        from fa_lib.execution import notebook, outcome
        from fa_lib.paths import CHECKOUT, NOTEBOOKS, RESULTS, build

        if CHECKOUT is None:
            raise ValueError("publish: there is no checkout here; accepted is a clone of the repository")
        files = []
        for path in _notebooks(NOTEBOOKS, None):
            if notebook.parameters(path, "paper") is None:
                continue
            if not notebook.is_fresh(path, "paper", build(), build()):
                raise ValueError(
                    f"publish: {path.name} is not up to date at the scale paper; run `fa-lib figures` first"
                )
            files += outcome.read(notebook.outcome_path(path, build()))["files"]
        outcome.copy(files, build(), CHECKOUT)
        for old in RESULTS.iterdir():  # of a notebook that no longer writes it
            if str(old.relative_to(CHECKOUT)) not in files:
                old.unlink()
        claims.renew_readme(claims.ledger())
        _say(f"{len(files)} files are published; see `git status`")


@app.command("claims")
def print_claims(
    results: Annotated[
        Path | None, typer.Option(help="folder of <notebook>.claims.csv, build/data/results say")
    ] = None,
    readme: Annotated[bool, typer.Option(help="also renew the README's table")] = False,
) -> None:
    """Print the ledger: what was published, what came out here over seeds, and the verdict."""
    with told():
        from fa_lib import claims
        from fa_lib.paths import CHECKOUT, RESULTS

        if results is not None and not results.is_dir():
            raise ValueError(f"results: got {str(results)!r}; accepted is a folder, such as build/data/results")
        if readme and (CHECKOUT is None or results is not None):
            raise ValueError(
                "readme: the README holds the committed results; accepted is a checkout, without --results"
            )
        table = claims.ledger(results or RESULTS)
        typer.echo(claims.markdown(table))
        if readme:
            claims.renew_readme(table)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="folder for weights and checkpoint; an interrupted run goes on")],
    arm: Annotated[str, typer.Option(help="of the study: baseline, flash, perturb, fp32, fp16, ...")] = "baseline",
    kernel: Annotated[str, typer.Option(help="instead of the arm's: a name or package.module:function")] = "",
    precision: Annotated[str, typer.Option(help="instead of the arm's: 32-true, bf16-mixed, 16-mixed, ...")] = "",
    config: Annotated[str, typer.Option(help="a file of fa_lib/training, or a path that ends in .yaml")] = "small",
    seed: Annotated[int, typer.Option(help="of data, noise and initial weights")] = 0,
    steps: Annotated[int, typer.Option(help="of the optimizer")] = 200,
    every: Annotated[int, typer.Option(help="steps between weights written")] = 25,
    data: Annotated[str, typer.Option(help="shapes, a folder of captioned images or shards, or a hub name")] = "shapes",
    streaming: Annotated[bool, typer.Option("--streaming", help="never hold the data")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    devices: Annotated[int | None, typer.Option(help="processes; torchrun and srun tell it")] = None,
    strategy: Annotated[str, typer.Option(help="of several processes: ddp or fsdp")] = "ddp",
) -> None:
    """Train one arm of the study. A killed run can be started again, and ends with the same bits.

    Also under torchrun and srun: torchrun --nproc-per-node 8 -m fa_lib train --device cuda --out build/flash.
    """
    with told():
        from dataclasses import replace

        from fa_lib.training.arm import arm_named
        from fa_lib.training.config import Config
        from fa_lib.training.preflight import started
        from fa_lib.training.spec import RunSpec

        changes = {name: value for name, value in (("kernel", kernel), ("precision", precision)) if value}
        spec = RunSpec(
            replace(arm_named(arm), **changes), seed, Config.load(config), steps, every, source=data,
            streaming=streaming, device=device, devices=started() if devices is None else devices, strategy=strategy,
        )  # fmt: skip
        from fa_lib.training import run  # slow to load: after what can be refused without it

        result = run.train(spec, out, progress=True)
        loss, seconds = result["losses"][-1], result["seconds"]
        typer.echo(f"{result['status']}, loss {loss:.4f}, {seconds:.0f} s, attention in {result['dtype']}")


@app.command()
def bench() -> None:
    """Measure what is promised of speed, each as a ratio in one run; written to build/bench.md."""
    with told():
        import runpy

        from fa_lib.paths import CHECKOUT

        if CHECKOUT is None:
            raise ValueError("bench: there is no checkout here; accepted is a clone of the repository")
        runpy.run_path(str(CHECKOUT / "benchmarks" / "bench.py"), run_name="__main__")


def _notebooks(folder, only):
    """Paths of the notebooks that make figures, in their order; those named, or all."""
    every = {path.stem: path for path in sorted(folder.glob("[0-9]*.ipynb")) if not path.stem.startswith("00_")}
    for name in only or ():
        if name.removesuffix(".ipynb") not in every:
            raise ValueError(f"only: got {name!r}; accepted are {', '.join(every)}")
    return [every[name.removesuffix(".ipynb")] for name in only] if only else list(every.values())


def _gpu():
    import re

    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            "record: no CUDA device here; data/recorded/ holds runs on other hardware than the committed one"
        )
    return re.sub(r"\W+", "_", torch.cuda.get_device_name())


def _say(words):
    print(words, flush=True)


def main() -> None:
    """The command `fa-lib`."""
    sys.path.insert(0, os.getcwd())  # kernels and models of the reader's are found in the current folder
    app(prog_name="fa-lib")
