"""Print a digest of emulated results: run under other processor settings by test_portable.py."""

import hashlib
import sys

from fa_lib import Precision, Tiling, draw, kernels

for fmt in ("BF16", "FP16"):
    digest = hashlib.sha256()
    for distribution in ("uniform", "normal", "outliers"):
        q, k, v = draw(distribution, 11, (2, 4, 777, 64), (2, 2, 1000, 64))
        for p in (Precision.uniform(fmt), Precision.kernel(fmt), Precision.materialized(fmt)):
            for causal in (False, True):
                outputs = [
                    kernels.tiled(q, k, v, tiling=Tiling(64, b), precision=p, algorithm=a, causal=causal)
                    for a, b in (("fa1", 64), ("fa2", 128))
                ] + [kernels.reference(q, k, v, precision=p, causal=causal)]
                for o in outputs:
                    digest.update(o.numpy().tobytes())
    print(fmt, digest.hexdigest())
sys.stdout.flush()
