"""Print digests of emulated results: run under other processor settings by test_process_settings.py."""

import hashlib

from fa_lib import Precision, Tiling, draw, kernels
from fa_lib.experiments.microbenchmark import BenchmarkSettings, compare

for fmt in ("BF16", "FP16"):
    digest = hashlib.sha256()
    for distribution in ("uniform", "normal", "outliers"):
        q, k, v = draw(distribution, 11, (1, 2, 101, 64), (1, 1, 333, 64))
        for p in (Precision.uniform(fmt), Precision.kernel(fmt), Precision.materialized(fmt)):
            for causal in (False, True):
                outputs = [
                    kernels.tiled(q, k, v, tiling=Tiling(64, b), precision=p, algorithm=a, causal=causal)
                    for a, b in (("fa1", 64), ("fa2", 128))
                ] + [kernels.reference(q, k, v, precision=p, causal=causal)]
                for o in outputs:
                    digest.update(o.numpy().tobytes())
    print(fmt, digest.hexdigest())
    # what the notebooks of figures 3 to 6 print and the ledger says is made of these rows
    rows = [compare(512, [16, 64, 256], each, fmt, 0, BenchmarkSettings()) for each in ("uniform", "normal")]
    printed = [[f"{x:.5g}" if isinstance(x, float) else x for x in row.values()] for cell in rows for row in cell]
    print(fmt, "rows", hashlib.sha256(repr(printed).encode()).hexdigest())
# in FP64 to the last digit: sums, exponentials and the golden value are defined
rows = [compare(256, [16, 64, 256], each, "FP64", 0, BenchmarkSettings(algorithm=a)) for each in ("uniform", "normal")
        for a in ("fa1", "fa2")]  # fmt: skip
print("FP64 rows", hashlib.sha256(repr(rows).encode()).hexdigest())
for each in ("uniform", "normal"):  # as printed: a sum in FP32 may fall on the other side of a tie, in another order
    rows = compare(512, [64], each, "FP32", 0, BenchmarkSettings())
    print("FP32", " ".join(f"{row['max']:.2e}" for row in rows))
