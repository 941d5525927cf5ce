"""The proofs of the gallery's finds, swept over lengths, queries, threads and splits."""

import pandas as pd

from attention_gallery.experiments.finds import FINDS
from attention_gallery.openvino_kernels import computes_fp16_in_bf16
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep


def prove(cache: str = "", jobs: int = 2) -> dict[str, pd.DataFrame]:
    """The tables of the finds: find -> rows of `experiments.finds`, with the parameters of each; without OpenVINO's
    where this processor computes its FP16 otherwise."""
    on = dict(distribution=["uniform", "normal"], seed=range(2))
    with workers(jobs) as pool:

        def over(find, **grid):
            return sweep(FINDS[find], grid | on, cache=cache, executor=pool)

        lengths = over("ggml", n=[512, 1024, 2048, 4096, 8192, 16384], queries=1, threads=2)
        queries = over("ggml", n=4096, queries=[63, 64], threads=2)
        threads = over("ggml", n=16384, queries=1, threads=[1, 8])
        rows = over("torch_backward", n=256, queries=[1024, 4096, 16384, 65536])
        squares = [over("torch_backward", n=n, queries=n) for n in (2048, 4096, 8192)]
        found = dict(
            torch_backward=pd.concat([rows, *squares], ignore_index=True),
            ggml=pd.concat([lengths, queries, threads], ignore_index=True),
            ringattention=over("ringattention", n=[512, 2048, 8192]),
            pallas_decode=over("pallas_decode", n=4096, splits=[1, 4, 16]),
        )
        return found | (dict(openvino=over("openvino", n=[512, 2048, 8192])) if computes_fp16_in_bf16() else {})
