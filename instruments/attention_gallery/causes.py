"""Why call paths of the gallery fail, read by hand in their projects' sources: data/gallery/causes.csv.

The judge sees numbers alone. Whether a failure is a defect, and of which line, is a reader's word, with file and line;
a call path *differs* where that is a convention, an interpreter's arithmetic, or a documented default that trades bits.
"""

from functools import cache

import pandas as pd

from fa_lib.execution.paths import ROOT

COLUMNS = ("defect", "standing", "cause", "source", "reason")


@cache
def causes() -> dict[tuple[str, str], dict[str, str]]:
    """Read (key, device) -> row of data/gallery/causes.csv.

    Its columns: key of a call path; device: "cpu", "modelled", or a GPU's name as in data/recorded; defect: one word
    for what several call paths share; standing: "fails" or "differs"; cause: in a few words; source: file, line and
    version; reason: why it differs, or what its authors may say.
    """
    table = pd.read_csv(ROOT / "data" / "gallery" / "causes.csv", keep_default_na=False)
    return {(row["key"], row["device"]): row for row in table.to_dict("records")}


def explained(table: pd.DataFrame, device: str) -> pd.DataFrame:
    """Add to rows of `judging.rows` what their projects' sources say: columns defect, found (the cause), source
    and reason, "" where a row does not fail or nobody has read its source. The verdict becomes "differs" where that is
    the cause's standing. device: as in `causes`."""
    keys = [(key, device if verdict == "fails" else "") for key, verdict in zip(table.key, table.verdict)]
    columns = {name: [causes().get(key, {}).get(name, "") for key in keys] for name in COLUMNS}
    verdicts = [standing or verdict for standing, verdict in zip(columns.pop("standing"), table.verdict)]
    return table.assign(verdict=verdicts, found=columns.pop("cause"), device=device, **columns)
