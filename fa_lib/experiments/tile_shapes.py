"""Tiles of other shapes for figure 6: swapped and square ones."""

from collections.abc import Iterable

import pandas as pd

from fa_lib.kernels.tiling import Tiling


def tiles_of_sram(sram: Iterable[int], head_dim: int) -> pd.DataFrame:
    """List the tiles of figure 6: for each SRAM size M the paper's, the same with its sides swapped, and a square.

    Args:
        sram: sizes M, in elements. head_dim: of Q, K and V.

    Returns:
        table: sram, variant ("as_given", "swapped", "square"), block_q, block_kv, area (of the tile as given).
    """
    rows = []
    for elements in sram:
        tiling = Tiling.from_sram(elements, head_dim)
        for variant, t in (("as_given", tiling), ("swapped", tiling.swapped()), ("square", tiling.square())):
            tile = {"block_q": t.block_q, "block_kv": t.block_kv, "area": tiling.area}
            rows.append({"sram": elements, "variant": variant} | tile)
    return pd.DataFrame(rows)
