"""`fa-lib dev`: commands for the repository, its figures, tables and training."""

import re
from pathlib import Path
from typing import Annotated

import typer

from fa_lib.commands.errors import end_as_interrupted, exit_on_error

app = typer.Typer(no_args_is_help=True, help="Figures, tables and training of a checkout.")
AGAIN = "the same command resumes"


@app.callback()
def refuse_another_checkout() -> None:
    """Refuse to write the results of a checkout with code of elsewhere."""
    from fa_lib.execution.paths import PACKAGE, other_checkout

    if other_checkout(folder := Path.cwd()):
        words = f"{PACKAGE} would run in {folder}, which holds an fa_lib of its own"
        typer.echo(f"fa-lib: {words}; accepted there is `python -m fa_lib`", err=True)
        raise typer.Exit(2)


@app.command()
def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="figures, as 4 or 9b, notebooks, as 02_precision, or tutorials"),
    ] = None,
    scale: Annotated[str, typer.Option(help="a file of notebooks/scales")] = "paper",
    executor: Annotated[
        str | None, typer.Option(help="slurm, or a number of processes, instead of notebooks' own")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="notebooks at a time; 2, but 1 on one core, a GPU or with --executor")
    ] = None,
) -> None:
    """Draw the figures: run the paper's notebooks and those of beyond/ that are not up to date, through papermill.

    Figures and tables go to build/figures and build/data/results of the checkout, or of the current folder. Interrupted
    and started again it resumes. `fa-lib dev publish` makes them the committed ones.
    """
    with exit_on_error(kept=f"finished notebooks and cells are kept in build/: {AGAIN}"):
        from fa_lib.execution.notebooks import is_fresh, of_scale, parameters, run_all
        from fa_lib.execution.paths import NOTEBOOKS, build
        from fa_lib.execution.pools import share

        end_as_interrupted()
        workers = int(executor) if executor and executor.isdigit() else executor
        notebooks = notebooks_of(NOTEBOOKS, names)
        notebooks = notebooks if names else of_scale(notebooks, scale)
        if jobs is None:
            one = workers is not None or share() == 1
            one = one or any(parameters(path, scale).get("device") == "cuda" for path in notebooks)
            one = one or sum(not is_fresh(path, scale, build()) for path in notebooks) < 2
            jobs = 1 if one else 2
        if jobs > 1 and workers is None and share(jobs) == 1:
            workers = 0  # a notebook has one core: more processes would import once more and compete for it
        run_all(notebooks, scale, build(), executor=workers, jobs=jobs)
        _say(f"figures are in {build() / 'figures'}, tables in {build() / 'data' / 'results'}")


@app.command()
def publish() -> None:
    """Make the figures and tables of build/ the committed ones, and renew the ledger.

    All notebooks of the scale "paper" have to be up to date (`fa-lib dev figures`, and once more with `tutorials`), and
    all changes committed, except to what this command writes: each table's provenance names a commit with the code that
    made it.
    """
    with exit_on_error():
        import pandas as pd

        from fa_lib.execution import ledger, notebooks
        from fa_lib.execution.paths import CHECKOUT, NOTEBOOKS, RESULTS, build
        from fa_lib.execution.results import save_figure, uncommitted
        from fa_lib.plots.overview import PANELS, overview

        if CHECKOUT is None:
            raise ValueError("publish: there is no checkout here; accepted is a clone of the repository")
        written = [RESULTS, CHECKOUT / "figures", ledger.LEDGER, ledger.PAPER]
        changed = uncommitted(".", *(f":!{path.relative_to(CHECKOUT)}" for path in written))
        if changed:
            raise ValueError(
                f"publish: not committed: {', '.join(changed[:5] + ['...'] * (len(changed) > 5))}; accepted is a clean "
                "tree, because provenance names a commit: commit them, or put them aside by `git stash -u`"
            )
        files = []
        every = notebooks_of(NOTEBOOKS, None) + notebooks_of(NOTEBOOKS, ["tutorials"])
        for path in notebooks.of_scale(every, "paper"):
            if not notebooks.is_fresh(path, "paper", build()):
                raise ValueError(
                    f"publish: {path.name} is not up to date at the scale paper; run `fa-lib dev figures` and "
                    "`fa-lib dev figures tutorials` first"
                )
            files += (notebooks.outcome(path, build()) or {})["files"]
        notebooks.copy(files, build(), CHECKOUT)
        for old in RESULTS.iterdir():  # of a notebook that no longer writes it
            if str(old.relative_to(CHECKOUT)) not in files:
                old.unlink()
        for path in RESULTS.glob("*.provenance.json"):
            notebooks.stamp(path)
        ledger.renew(rows := ledger.ledger())
        tables = {name: RESULTS / f"{name}.csv" for name, *_ in PANELS.values()}
        if all(path.exists() for path in tables.values()):
            drawn = overview({name: pd.read_csv(path) for name, path in tables.items()}, rows)
            save_figure(drawn, CHECKOUT / "figures" / "paper")
        _say(f"{len(files)} files are published; see `git status`")


@app.command("claims")
def print_claims(
    results: Annotated[
        Path | None, typer.Option(help="folder of <notebook>.claims.csv, build/data/results say")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="also renew data/ledger.csv and docs/paper/claims.md")] = False,
    paper: Annotated[str, typer.Option(help="only the statements of one, such as 2407.08608")] = "",
) -> None:
    """Print the ledger: what was published, what came out here over seeds, and the verdict."""
    with exit_on_error():
        from fa_lib.execution import ledger
        from fa_lib.execution.lookup import lookup
        from fa_lib.execution.paths import CHECKOUT, RESULTS

        if results is not None and not results.is_dir():
            raise ValueError(f"results: got {str(results)!r}; accepted is a folder, such as build/data/results")
        if renew and (CHECKOUT is None or results is not None):
            raise ValueError("renew: the pages hold the committed results; accepted is a checkout, without --results")
        table = ledger.ledger(results or RESULTS)
        if paper:
            lookup("paper", paper, {key: name for key, name in ledger.PAPERS.items() if key})
            table = table[table.paper == paper]
        typer.echo(ledger.markdown(table))
        if renew:
            ledger.renew(ledger.ledger())


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="folder for weights and checkpoint; an interrupted run goes on")],
    arm: Annotated[str, typer.Option(help="of the study: baseline, flash, perturb, fp32, fp16, ...")] = "baseline",
    kernel: Annotated[str, typer.Option(help="instead of the arm's: a name or package.module:function")] = "",
    precision: Annotated[str, typer.Option(help="instead of the arm's: 32-true, bf16-mixed, 16-mixed, ...")] = "",
    config: Annotated[str, typer.Option(help="a file of fa_lib/training, or a path that ends in .yaml")] = "small",
    seed: Annotated[int, typer.Option(help="of data, noise and initial weights")] = 0,
    steps: Annotated[int, typer.Option(help="of the optimizer")] = 200,
    save_every: Annotated[int, typer.Option(min=1, help="steps between weights written")] = 25,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
) -> None:
    """Train one arm of the study. A killed run can be started again, and ends with the same bits."""
    with exit_on_error(kept=f"the last checkpoint is kept in {out}: {AGAIN}"):
        from dataclasses import replace

        from fa_lib.training.arm import arm_named
        from fa_lib.training.config import Config, RunSpec

        changes = {name: value for name, value in (("kernel", kernel), ("precision", precision)) if value}
        spec = RunSpec(replace(arm_named(arm), **changes), seed, Config.load(config), steps, save_every, device)
        from fa_lib.training import run, run_folder  # slow to load: after what can be refused without it

        result = run.train(spec, out, progress=True)
        loss, seconds = result["losses"][-1], result["seconds"]
        typer.echo(f"{result['status']}, loss {loss:.4f}, {seconds:.0f} s, attention in {result['dtype']}")
        if result["status"] != "done":
            raise RuntimeError(f"{result['status']}; its last weights are those of step {run_folder.steps_of(out)[-1]}")


@app.command()
def study(
    part: Annotated[list[str] | None, typer.Option(help="only this part of docs/paper/training.md; repeatable")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time")] = 2,
) -> None:
    """Train and compare the models of figures 7, 8 and 20, for hours; what is done is kept. `fa-lib dev figures`
    draws them.

    Writes data/recorded/cpu. docs/paper/training.md says what each part is for; the part stability is the spike study.
    """
    with exit_on_error(kept=f"runs that are done, and the last checkpoint of others, are kept in build/study: {AGAIN}"):
        from fa_lib.execution.paths import build
        from fa_lib.execution.pools import workers
        from fa_lib.training import campaign, spike_record
        from fa_lib.training.config import Config

        parts = part or [*campaign.PARTS, spike_record.NAME]
        with workers(jobs) as pool:
            if drift := [name for name in parts if name != spike_record.NAME]:
                campaign.run_study_parts(drift, Config.load("small"), build() / "study", pool)
            if spike_record.NAME in parts:
                spike_record.record(build() / "study" / spike_record.NAME, executor=pool)


def notebooks_of(folder, names):
    """List the paths of notebooks that make figures, in their order: all but the tutorials, or the named ones.

    Args:
        folder: the notebooks'. names: of notebooks, of their figures, or "beyond" or "tutorials", for all of these.

    Raises:
        ValueError: there is no such notebook or figure.
    """
    numbered = (path for pattern in ("[0-9]*.ipynb", "[!.]*/[0-9]*.ipynb") for path in folder.glob(pattern))
    every = {path.stem: path for path in sorted(numbered, key=lambda path: path.stem) if path.stem[:2] != "00"}
    if not names:
        return [path for path in every.values() if path.parent.name != "tutorials"]
    chosen = []
    for name in names:
        inside = name in ("beyond", "tutorials")
        chosen += [path for path in every.values() if path.parent.name == name] if inside else [_notebook(name, every)]
    return chosen


def _notebook(name, every):
    """Return the path of the notebook of that name, or of the one that saves a figure of that number or name.

    Raises:
        ValueError: there is no such notebook or figure.
    """
    own = every.get(name.removesuffix(".ipynb"))
    figure = re.compile(rf'\\"((?:figure|ours){re.escape(name)}_\w+|{re.escape(name)})\\":')  # a key, as JSON holds it
    for path in [own] if own else every.values():
        if own or figure.search(path.read_text()):
            return path
    raise ValueError(f"names: got {name!r}; accepted are a figure, as 4 or 9b, and {', '.join(every)}")


def _say(words):
    print(words, flush=True)
