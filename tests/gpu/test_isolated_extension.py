"""Faults of an extension come across the process border, and what is compiled there is said."""

import pytest
import torch

from attention_check.isolation.calls import KernelError
from attention_check.isolation.isolated_kernel import IsolatedKernel
from fa_lib.kernels.kernel_ref import KernelRef

KERNEL = """
from pathlib import Path
from torch.utils.cpp_extension import load

here = Path({here!r})
extension = load("of_launches", [str(here / "main.cpp"), str(here / "kernels.cu")])


def attention(q, k, v, *, what=""):
    if what == "unwritten":
        return extension.half_written(q, -1.0, False)
    if what == "behind":
        return extension.behind(q, 0)
    if what in ("exits", "aborts"):
        extension.behind(q, 1 + (what == "aborts"))
    if what == "failed":
        return extension.in_shared(q, 100, 50_000, False, False)
    return extension.in_shared(q, 100, 4000, False, True)
"""
X = torch.linspace(-3, 3, 100)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory, request):
    file = tmp_path_factory.mktemp("launches") / "kernel.py"
    file.write_text(KERNEL.format(here=str(request.path.parent / "extension")))
    fn = IsolatedKernel(KernelRef.of(f"{file}:attention", gpu="A100"))
    fn.wait()
    yield fn
    fn.close()


def test_faults_come_across_the_border(kernel):
    assert torch.equal(kernel(X, X, X), X + 1)
    for what, error in dict(unwritten="nobody wrote", behind="line 14", failed="did not look").items():
        with pytest.raises(KernelError, match=error):
            kernel(X, X, X, what=what)


@pytest.mark.parametrize(
    "what, how", [("exits", "ends its process with exit code 1"), ("aborts", "ends its process by SIGABRT")]
)
def test_the_last_words_of_an_extension_that_ends_the_process_name_the_line(kernel, what, how):
    with pytest.raises(KernelError, match=rf"{how}, after the line 'Fault: behind: .*kernels\.cu, line 14"):
        kernel(X, X, X, what=what)


def test_what_is_compiled_is_said_and_is_no_print_of_the_kernels(tmp_path, capfd):
    file = tmp_path / "own.py"
    file.write_text(
        "from torch.utils.cpp_extension import load_inline\n"
        f"cpp = 'torch::Tensor twice(torch::Tensor x) {{ return x + x; }}  // {tmp_path}'\n"
        "twice = load_inline('said', [cpp], functions=['twice']).twice\n"
        "def attention(q, k, v): return twice(q)\n"
    )
    for said in (True, False):
        fn = IsolatedKernel(KernelRef.of(f"{file}:attention", gpu="A100"))
        assert torch.equal(fn(X, X, X), 2 * X)
        assert fn.conduct().empty
        assert (capfd.readouterr().err == "compiling the extension said: half a minute or more, once\n") == said
