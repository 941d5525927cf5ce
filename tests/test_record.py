"""What a table's provenance says of the GPU."""

import json

import pandas as pd

from fa_lib.execution import results

SMI = """#!/bin/sh
echo "$1" > "$0.asked"
echo "NVIDIA H200, 575.57.08, 345, 1980, 3201, 700.00, 31"
"""


def test_the_provenance_of_a_table_names_device_driver_and_clocks(tmp_path, monkeypatch):
    def held():
        results.save(tmp_path, "a_table", {}, pd.DataFrame({"x": [1]}))
        return json.loads((tmp_path / "data/results/a_table.provenance.json").read_text())["device"]

    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert not set(results.QUERY) & held().keys()  # no nvidia-smi
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    found = held()
    assert results.device().items() <= found.items()
    assert (found["name"], found["driver_version"]) == ("NVIDIA H200", "575.57.08")
    assert (found["clocks.sm"], found["clocks.max.sm"], found["clocks.mem"]) == ("345", "1980", "3201")
    assert (tmp_path / "nvidia-smi.asked").read_text().strip() == f"--query-gpu={','.join(results.QUERY)}"
    smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")  # as where the driver is not loaded
    assert not set(results.QUERY) & held().keys()
