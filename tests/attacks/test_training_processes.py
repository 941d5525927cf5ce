"""Training in processes of its own, killed and started again."""

import subprocess
import sys
import time
from pathlib import Path

from fa_lib.execution.paths import ROOT


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from fa_lib.execution.pools import workers\n"
        "if __name__ == '__main__':\n"
        "    with workers(1) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        pool.submit(time.sleep, 600).result()\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
