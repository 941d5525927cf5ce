"""An output's worst rows beside attention written out, as a script that needs numpy alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fa_lib.check.dialect.attention import Dialect, Rows
from fa_lib.check.dialect.evidence import Evidence
from fa_lib.check.dialect.reading import Reader
from fa_lib.check.explain.scan import Scan

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
    print(f"{{reading}}: o is off by {{error:.3g}}, where attention is at most {{np.abs(attention).max():.3g}}")
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


def reproduction(evidence: Evidence, scans: Mapping[Dialect, Scan | None], file: str) -> Reproduction | None:
    """The worst rows under the believed dialect, and under the one that was found; None where the script's attention
    is neither.

    Args:
        scans: of the dialects, the believed one first if its shapes make a call; None for one of the same rows as the
            one before. file: name of the arrays' file, .npz.
    """
    readings, arrays, at = [], {}, (0, 0, torch.zeros(1))
    for dialect, scan in scans.items():
        if not dialect.is_standard or dialect.factor != 1:
            continue
        if scan is not None and (not readings or dialect.layout):
            at = _worst(scan)
        entry, head, rows_at = at
        rows = Reader(evidence, places=(torch.tensor([entry]), torch.tensor([head]), rows_at)).rows(dialect)
        name = "as_read" if dialect.changes() else "as_believed"
        arrays |= {f"{name}_{key}": x for key, x in _arrays(rows).items()}
        readings.append((name, rows.scale, rows.softcap))
    if not readings:
        return None
    entry, head, rows_at = at
    where = dict(rows=", ".join(map(str, rows_at.tolist())), head=head, entry=entry)
    return Reproduction(arrays, SCRIPT.format(file=file, readings=tuple(readings), **where))


def _worst(scan: Scan) -> tuple[int, int, Tensor]:
    """The entry, the head and the rows that are furthest off."""
    of_rows = scan.of_rows.nan_to_num(-1.0, posinf=math.inf)
    entry, head = divmod(int(of_rows.amax(-1).argmax()), of_rows.shape[1])
    entries, heads, rows_at = scan.places
    worst = of_rows[entry, head].topk(min(ROWS, of_rows.shape[2])).indices
    return int(entries[entry]), int(heads[head]), rows_at[worst].sort().values


def _arrays(rows: Rows) -> dict[str, np.ndarray]:
    q, k, v, o, bias = (x[0, 0] for x in (rows.q, rows.k, rows.v, rows.o, rows.bias))
    seen = (bias > -math.inf).any(0)
    sink = np.logaddexp(rows.sinks.item(), 0.0) if rows.dialect.softmax == "plus_one" else rows.sinks.item()
    found = dict(q=q, k=k[seen], v=v[seen], o=o, bias=bias[:, seen])
    return {name: x.numpy() for name, x in found.items()} | dict(sink=np.array(sink))
