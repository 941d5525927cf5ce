"""The step `hardware`: all probes of the device, the results of each written before the next one begins.

After a fault of CUDA the rest of the process has none; products of the matrix units, which are the likeliest to have
one, come last.
"""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fa_lib.execution.files import replacing
from fa_lib.execution.results import save
from fa_lib.experiments.hardware import functions, instructions, row_sum
from fa_lib.experiments.hardware.every_operand import every_operand
from fa_lib.experiments.hardware.exponential import every_16_bit, ex2_table
from fa_lib.experiments.hardware.probes import facts, rule_of, survivors
from fa_lib.experiments.hardware.tensor_cores import EXPECTED, vectors, verdict
from ptx_machine.special_unit import MEASURED

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
KEYS = (64, 128)  # of the row sums
KEPT = [*range(2048), *range(functions.SAMPLES, functions.SAMPLES + 6144)]  # of the samples


def gather(device: str, out: Path) -> None:
    """Measure exponentials, row sums and products of the device; on a CPU those of torch's functions and of an H100's
    model.

    Args:
        device: "cuda" or "cpu". out: the folder for results.

    Raises:
        RuntimeError: a probe failed; its traceback is printed, and the other probes are made.
    """
    library = instructions.compile(out / "log") if device == "cuda" else None
    failed = []
    for probe in (exponentials, special_functions, row_sums, products):
        try:
            probe(device, out, library)
        except Exception:
            traceback.print_exc()
            failed.append(probe.__name__)
    (out / "log" / "hardware.so").unlink(missing_ok=True)
    if failed:
        raise RuntimeError(f"hardware: {', '.join(failed)} failed, as told above")


def exponentials(device: str, out: Path, library) -> None:
    """Write hardware.<function>.npz, the tables of `ex2_table` and `every_16_bit`, and hardware.exponentials.csv, a
    row for each function: function, and the numbers of its table.

    Args:
        device, out: as of `gather`. library: of `instructions.compile`; None on a CPU.
    """
    elementwise = {key: instructions.elementwise(library, key) for key in instructions.ELEMENTWISE} if library else {}
    functions = {key: fn for key, fn in elementwise.items() if key.startswith("ex2")} | {"torch_exp2": torch.exp2}
    coarse = {} if library else dict(step=2.0**-14, halving_step=2.0**-8)
    found = {key: ex2_table(fn, device, **coarse) for key, fn in functions.items()}
    found |= {f"torch_exp_{name}": every_16_bit(torch.exp, fmt, device) for name, fmt in FORMATS.items()}
    rows = []
    for key, table in found.items():
        with replacing(out / "data" / "results" / f"hardware.{key}.npz") as path:
            np.savez_compressed(path, **table)
        rows.append(dict(function=key) | {name: x for name, x in table.items() if np.ndim(x) == 0})
    save(out, "hardware.exponentials", dict(device=device), pd.DataFrame(rows))


def special_functions(device: str, out: Path, library) -> None:
    """Write hardware.functions.npz, as `special_unit.FILE` is, and hardware.samples.npz: kept, the places of the kept
    `operands`, and the results' bits by launcher. Where `special_unit` has the device's tables, write
    hardware.every_operand.csv, too. On a CPU there is nothing to measure.

    Args:
        device, out, library: as of `exponentials`.
    """
    if library is None:
        print("special functions: a CPU has none of a GPU's")
        return
    results = out / "data" / "results"
    unary = {key: instructions.elementwise(library, key) for key in instructions.ELEMENTWISE}
    tables: dict[str, Any] = {}
    for each in functions.TABLES:
        tables |= functions.packed(unary[each.key], each, device)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).to(device)
    for key, name in functions.SHORT.items():
        tables[name] = instructions.short(library, key)(every).cpu().numpy().view(np.uint16)
    with replacing(results / "hardware.functions.npz") as path:
        np.savez_compressed(path, **tables)
    samples = {key: functions.sampled(unary[key], 1, device) for key in functions.SAMPLED}
    samples |= {key: functions.sampled(instructions.binary(library, key), 2, device) for key in functions.BINARY}
    with replacing(results / "hardware.samples.npz") as path:
        kept: dict[str, Any] = {key: y[KEPT] for key, y in samples.items()}
        np.savez_compressed(path, kept=np.array(KEPT), **kept)
    if any(name in torch.cuda.get_device_name() for name in MEASURED):
        save(out, "hardware.every_operand", dict(operands="all of FP32"), every_operand(unary, device))


def row_sums(device: str, out: Path, library) -> None:
    """Write hardware.row_sums.csv: read, keys, first, groups (of `row_sum_groups`: keys whose terms are added to one
    another before they meet key `first`), why (a probe shows
    nothing).

    Args:
        device, out, library: as of `exponentials`.
    """
    reads: dict[str, Callable] = {}
    for name, fmt in FORMATS.items() if device == "cuda" else [("fp32", torch.float32)]:
        lse = row_sum.flash_cuda if device == "cuda" else row_sum.flash_cpu
        reads[name] = partial(row_sum.row_sum_pairs, lse, dtype=fmt, device=device)
    if device == "cuda":  # should its logarithm be too coarse
        reads["bf16 output"] = partial(row_sum.row_sum_pairs_of_output, row_sum.output_cuda, device=device)
    rows = []
    for name, read in reads.items():
        for n in KEYS:
            for first in (0, 1, n // 2, n - 1):
                try:
                    groups, why = row_sum.row_sum_groups(read(n, first=first)), ""
                except RuntimeError as error:
                    groups, why = None, str(error)
                rows.append(dict(read=name, keys=n, first=first, groups=groups, why=why))
    table = pd.DataFrame(rows)
    print(table.assign(count=table.groups.map(lambda g: len(g) if g else None)).drop(columns="groups").to_string())
    save(out, "hardware.row_sums", dict(device=device), table)


def products(device: str, out: Path, library) -> None:
    """Write hardware.products.csv and, with vectors and their sums, hardware.<instruction>.npz.

    The table has a row for each instruction: instruction, kind, format, k, problem; the keys of `facts`; those of
    `verdict` on the expected rule, as expected_<key>; found_model, the same share for the rule that `rule_of` finds;
    rule, that rule.

    Args:
        device, out, library: as of `exponentials`.

    Raises:
        RuntimeError: an instruction could not be measured; the others are.
    """
    rows = []
    for each in instructions.INSTRUCTIONS:
        row = dict(instruction=each.key, kind=each.kind, format=each.format, k=each.k, problem="")
        try:
            row |= _product(each, device, out, library)
        except RuntimeError as error:
            row["problem"] = str(error)
        rows.append(row)
        save(out, "hardware.products", dict(device=device), pd.DataFrame(rows))
    print(pd.DataFrame(rows).T.to_string())
    problems = [f"{row['instruction']}: {row['problem']}" for row in rows if row["problem"]]
    if problems:
        raise RuntimeError("; ".join(problems))


def _product(each, device, out, library):
    expected = EXPECTED[each.key]
    mma = instructions.on_arrays(instructions.product(library, each)) if library else expected
    found = facts(mma, each.k, each.format, each.result)
    rule, n = rule_of(found), 10_000 if library else 500
    shares = {f"expected_{key}": x for key, x in verdict(mma, each.k, each.format, expected, n).items()}
    if rule is not None:
        shares["found_model"] = verdict(mma, each.k, each.format, rule, n)["model"]
    a, b, c = vectors(each.k, each.format, min(n, 1000), 1, each.result)
    with replacing(out / "data" / "results" / f"hardware.{each.key}.npz") as path:
        raw = survivors(mma, each.k, each.format, each.result)
        arrays: dict[str, Any] = dict(
            a=a.astype(np.float32), b=b.astype(np.float32), c=c.astype(np.float32), d=mma(a, b, c)
        )
        np.savez_compressed(path, survivors=raw, **arrays)
    return found | shares | dict(rule=str(rule))
