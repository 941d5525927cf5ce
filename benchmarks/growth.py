"""How the cost of `tiled` grows with N and with heads: `make growth`, into benchmarks/growth.csv and growth.png.

Every point is a process of its own, run once. Beside its time stands that of the two float64 matrix products which the
call contains, on strips of rows; beside its memory, that of the inputs and the output.
"""

import io
import subprocess
import sys

import matplotlib.pyplot as plt
import pandas as pd
from tqdm import tqdm

from benchmarks.bench import LONG
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import processor
from fa_lib.execution.paths import ROOT

LENGTHS = [1 << i for i in range(10, 18)]  # 1,024 to 131,072, of one head
HEADS = [1, 2, 4, 8, 16, 32]  # of N = 2,048
TABLE, FIGURE = ROOT / "benchmarks" / "growth.csv", ROOT / "benchmarks" / "growth.png"
PRODUCTS = """
rows, start = max(1, (1 << 22) // n), time.perf_counter()
for head in range(heads):
    for first in range(0, n, rows):
        (q[0, head, first : first + rows] @ k[0, head].mT) @ v[0, head]
print(time.perf_counter() - start, 4 * o.numel() * 8 / 2**20, torch.get_num_threads())
"""  # seconds, megabytes of the inputs and the output, threads


def measured(n: int, heads: int) -> dict:
    """Seconds, seconds of the two products, MB beyond inputs and output, and MB of these."""
    words = [sys.executable, "-c", LONG + PRODUCTS, f"{n}", f"{heads}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    names = "seconds", "mb_beside", "products_seconds", "mb_tensors", "threads"
    return dict(n=n, heads=heads) | dict(zip(names, map(float, done.stdout.split())))


def drawn(table: pd.DataFrame) -> plt.Figure:
    """Time and memory over N, and over heads, each beside its limit."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), sharex="col", constrained_layout=True)
    for column, (x, rows) in enumerate((("n", table[table.heads == 1]), ("heads", table[table.n == 2048]))):
        time, memory = axes[0, column], axes[1, column]
        time.loglog(rows[x], rows.seconds, "o-", label="tiled")
        time.loglog(rows[x], rows.products_seconds, "--", color="0.4", label="its two float64 products")
        memory.loglog(rows[x], rows.mb_beside, "o-", label="beyond inputs and output")
        memory.loglog(rows[x], rows.mb_tensors, "--", color="0.4", label="inputs and output")
        memory.set_xlabel("sequence length N, one head" if x == "n" else "heads, N = 2,048")
        time.set_title(_title(rows, x))
        ticks = rows[x].tolist()
        memory.set_xticks(ticks, [f"{tick:,}" if tick < 1024 else f"{tick // 1024}k" for tick in ticks])
        memory.minorticks_off()
    axes[0, 0].set_ylabel(f"seconds, {int(table.threads.max())} threads")
    axes[1, 0].set_ylabel("memory (MB)")
    for each in axes.flat:
        each.legend(frameon=False)
        each.grid(alpha=0.3)
    figure.suptitle(f"tiled, FA1, every step in BF16, d = 64, B_c = 64, on {processor()}")
    return figure


def _title(rows, x):
    last, before = rows.iloc[-1], rows.iloc[-3]
    times = last.seconds / before.seconds
    return f"{last[x] / before[x]:.0f} times the {'length' if x == 'n' else 'heads'}: {times:.1f} times the time"


def main() -> None:
    points = dict.fromkeys([*((n, 1) for n in LENGTHS), *((2048, heads) for heads in HEADS)])
    table = pd.DataFrame([measured(*point) for point in tqdm(points, unit="point")])
    with replacing(TABLE) as path:
        path.write_text(table.to_csv(index=False, float_format="%.4g"))
    picture = io.BytesIO()
    drawn(table).savefig(picture, dpi=150)
    with replacing(FIGURE) as path:
        path.write_bytes(picture.getvalue())


if __name__ == "__main__":
    main()
