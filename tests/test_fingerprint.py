"""What a result depends on: sources found by walking imports, files, versions, hardware; and nothing else."""

import importlib
import sys

import pytest
import torch

from fa_lib.execution import fingerprint
from fa_lib.execution.fingerprint import code_version, of_notebook, sources
from fa_lib.experiments import microbenchmark


def test_an_edit_counts_where_the_function_imports_it_and_nowhere_else(edited):
    def key(**added):
        edited(microbenchmark, added)
        return code_version(microbenchmark.compare)

    first, more = key(), "\n# another word\n"
    for file, counts in (("training/arm.py", False), ("plots/style.py", False), ("kernels/tiled.py", True)):
        assert (key(**{file: more}) != first) == counts, file
    assert key() == first


def test_a_line_that_begins_with_an_operator_is_no_magic(tmp_path):
    """IPython knows one from the other, and so does the key: the cell's imports stay in it."""
    plain = "from fa_lib.numerics.metrics import deviation\nwords = ('%d of'\n         % 3)"
    metrics = of_notebook(["from fa_lib.numerics.metrics import deviation"], {}, tmp_path)
    assert of_notebook([plain], {}, tmp_path) == metrics != of_notebook(["x = 1"], {}, tmp_path)
    with_magics = "%matplotlib inline\n!ls\nfrom fa_lib.numerics.metrics import deviation\nx = !ls\n%time y = 1"
    assert of_notebook([with_magics], {}, tmp_path) == metrics
    assert of_notebook(["%%bash\nls\n", plain], {}, tmp_path) == metrics
    for magic in ("%%time", "%%capture --no-stderr", "\n%%timeit -n 1\n%%time"):
        assert of_notebook([f"{magic}\n{plain}"], {}, tmp_path) == metrics


def own_kernel(q, k, v):
    return q


def test_code_that_a_cell_names_counts_and_other_words_do_not():
    plain = code_version(own_kernel)
    assert plain == code_version(own_kernel, [dict(names="text: with a colon", kernel="flash")])
    assert plain != code_version(own_kernel, [dict(names=["flash", "test_fingerprint:own_kernel"])])
    assert plain != code_version(own_kernel, uses=[test_a_line_that_begins_with_an_operator_is_no_magic])
    with pytest.raises(ValueError, match="kernel: got 'nowhere:f'"):
        code_version(own_kernel, [dict(names="nowhere:f")])


def test_what_a_cell_depends_on_is_part_of_its_key(tmp_path, monkeypatch):
    """A function beside the one swept, a module beside its own, a configuration's text, the processor."""
    config, module, beside, versions = tmp_path / "mine.yaml", tmp_path / "mine_module.py", tmp_path / "beside.py", []
    monkeypatch.syspath_prepend(tmp_path)
    for step in range(6):
        config.write_text("layers: 2" if step else "layers: 1")
        helped = 10 if step > 1 else 1
        beside.write_text(f"FACTOR = {2 if step > 2 else 1}")
        module.write_text(f"def f(config, device):\n    import beside\n\ndef helper():\n    return {helped}")
        if step > 3:
            monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
        sys.modules.pop("mine_module", None)
        fn = importlib.import_module("mine_module").f
        versions.append(code_version(fn, [dict(config=str(config), device="cpu")]))
    assert len(set(versions)) == 5 and versions[4] == versions[5]


def test_a_file_below_a_module_counts_with_the_module_that_names_it(tmp_path, monkeypatch):
    package, digests = tmp_path / "mine", []
    for file, text in (("names.py", 'TEXT = "a.cu"'), ("others.py", 'TEXT = "b.cu"'), ("cuda/a.cu", "first")):
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(text)
    for step in (1, 2):
        (package / "cuda" / "a.cu").write_text(f"text {step}")
        fingerprint._own_text.cache_clear()  # a process has the sources that it began with
        monkeypatch.setitem(fingerprint.PACKAGES, "mine", package)
        digests.append([sources(f"{package / name}.py", f"mine.{name}") for name in ("names", "others")])
    assert digests[0][0] != digests[1][0] and digests[0][1] == digests[1][1]
