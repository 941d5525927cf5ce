"""An output's worst rows beside attention written out, as a script that needs numpy alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows
from attention_check.conventions.evidence import Evidence
from attention_check.conventions.reading import Reader
from attention_check.explain.scan import Scan

ROWS = 8  # of the head that is furthest off
SCRIPT = """import numpy as np

x = np.load("{file}")  # rows {rows} of head {head}, entry {entry} of the batch
for reading, scale, softcap in {readings}:
    q, k, v, o, bias, sink = (x[f"{{reading}}_{{name}}"] for name in ("q", "k", "v", "o", "bias", "sink"))
    S = scale * (q @ k.T)
    S = (softcap * np.tanh(S / softcap) if softcap else S) + bias  # -inf hides a key
    m = np.maximum(S.max(-1, keepdims=True), sink)
    P = np.exp(S - m)
    attention = P / (P.sum(-1, keepdims=True) + np.exp(sink - m)) @ v
    error = np.abs(o - attention).max()
    print(f"{{reading}}: |o - attention| is up to {{error:.3g}}, |attention| up to {{np.abs(attention).max():.3g}}")
"""


@dataclass(frozen=True)
class Reproduction:
    """Attributes:
    arrays: "as_believed_q", "as_read_q" ... -> float64, of the worst rows of one head: q, o (rows, d), k, v (keys, d),
        bias (rows, keys), sink (), which is -inf where there is none. Keys that no row sees are left out.
    script: a program that reads them from a file, and prints how far o is off in each reading.
    """

    arrays: dict[str, np.ndarray]
    script: str


def reproduction(
    evidence: Evidence, readings: Mapping[str, Dialect], scans: Mapping[Dialect, Scan], file: str
) -> Reproduction | None:
    """The worst rows as believed, and the same rows in other dialects, where they have the same layout; None where the
    script's attention is none of them.

    Args:
        readings: "as_believed" (if its shapes make a call), "as_read", "wrong_part" -> its dialect, in this order.
        scans: of these, all rows; of "wrong_part" none is needed. file: name of the arrays' file, .npz.
    """
    shown, arrays, at, layout = [], {}, None, ""
    for name, dialect in readings.items():
        if not dialect.is_standard or dialect.factor != 1:
            continue
        if at is None or dialect.layout != layout:
            if dialect not in scans:
                continue
            at, layout = _worst(scans[dialect]), dialect.layout
        entry, head, rows_at = at
        rows = Reader(evidence, places=(torch.tensor([entry]), torch.tensor([head]), rows_at)).rows(dialect)
        arrays |= {f"{name}_{key}": x for key, x in _arrays(rows).items()}
        shown.append((name, rows.scale, rows.softcap))
    if at is None or not len(at[2]):
        return None
    entry, head, rows_at = at
    where = dict(rows=", ".join(map(str, rows_at.tolist())), head=head, entry=entry)
    return Reproduction(arrays, SCRIPT.format(file=file, readings=tuple(shown), **where))


def _worst(scan: Scan) -> tuple[int, int, Tensor]:
    """The entry, the head and the rows that are furthest off."""
    of_rows = scan.of_rows.nan_to_num(-1.0, posinf=math.inf)
    entry, head = divmod(int(of_rows.amax(-1).argmax()), of_rows.shape[1])
    entries, heads, rows_at = scan.places
    counted = int((of_rows[entry, head] >= 0).sum())  # the others see no key, or nothing that is finite
    worst = of_rows[entry, head].topk(min(ROWS, counted)).indices
    return int(entries[entry]), int(heads[head]), rows_at[worst].sort().values


def _arrays(rows: Rows) -> dict[str, np.ndarray]:
    q, k, v, o, bias = (x[0, 0] for x in (rows.q, rows.k, rows.v, rows.o, rows.bias))
    seen = (bias > -math.inf).any(0)
    found = dict(q=q, k=k[seen], v=v[seen], o=o, bias=bias[:, seen])
    return {name: x.numpy() for name, x in found.items()} | dict(sink=rows.sinks.numpy().reshape(()))
