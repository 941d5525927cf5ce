"""A kernel named by its file, path/to/file.py:function, in every command that takes a kernel."""

import sys

import pytest
from in_a_folder import command, own_path  # noqa: F401

from fa_lib import kernels
from fa_lib.execution import reader_modules
from fa_lib.execution.reader_modules import module_name
from fa_lib.kernels.kernel_ref import KernelRef

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_path")]


def module(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


HELPER = "from torch.nn.functional import scaled_dot_product_attention as attend\n"
KERNEL = "import helper\ndef f(q, k, v, causal=False):\n    return helper.attend(q, k, v, is_causal=causal)\n"


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    """A folder that is not on any path, with a kernel in a file that imports another one of the folder."""
    module(tmp_path / "its", "helper.py", HELPER)
    module(tmp_path / "its", "mine.py", KERNEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_kernel_in_a_file_runs_with_its_folder_on_the_path_of_its_own_process(kernel_file):
    module(kernel_file / "its", "no.py", "import helper\ndef f(q, k, v):\n    raise ValueError(helper.__name__)\n")
    done = command("check", "kernel", "its/no.py:f", "--quick", "--exit-code", "--out", "made")
    assert done.exit_code == 1 and done.stdout.startswith("no:f fails"), done.stderr
    assert "raises ValueError: helper" in done.stdout and (kernel_file / "made" / "no_f.html").exists()


def test_python_takes_a_kernel_by_its_file_as_the_command_line_does(kernel_file):
    named = f"{kernel_file}/its/by_name.py:f"
    module(kernel_file / "its", "by_name.py", "def f(q, k, v):\n    return q\n")
    fn = kernels.get(named)
    assert (fn.__module__, fn.__name__) == ("by_name", "f") and kernels.get(f"{named}@bhsd") is fn
    with pytest.raises(ValueError, match="there is no file .*gone.py"):
        kernels.get(f"{kernel_file}/its/gone.py:f")
    module(kernel_file / "its", "on_gpu.py", "def f(q, k, v, gpu=None):\n    return gpu.name\n")
    named = f"{kernel_file}/its/on_gpu.py:f"
    for found in (kernels.get(named, gpu="A100"), kernels.get(KernelRef.of(named, "A100"))):
        assert found(None, None, None) == "A100"


def test_a_file_is_the_module_that_it_is(kernel_file):
    assert module_name("flash") == "flash" and module_name("a.b:f") == "a.b:f"
    assert module_name(f"{kernel_file}/its/mine.py:f@bshd") == "mine:f@bshd"
    assert reader_modules.path()[0] == f"{kernel_file}/its"
    before = [*sys.path]
    assert module_name(f"{kernel_file}/its/mine.py:f") == "mine:f" and sys.path == before
    module(kernel_file / "around" / "pack" / "age", "__init__.py", "")
    module(kernel_file / "around" / "pack", "__init__.py", "")
    module(kernel_file / "around" / "pack" / "age", "deep.py", KERNEL)
    assert module_name(f"{kernel_file}/around/pack/age/deep.py:f") == "pack.age.deep:f"
    assert reader_modules.path()[0] == f"{kernel_file}/around" and sys.path[0] != f"{kernel_file}/around"


@pytest.mark.parametrize(
    "name, message",
    [
        ("its/mine.py", r"^kernel: got '.*its/mine\.py', .*\.py:function$"),
        ("its/gone.py:f", "there is no file .*gone.py"),
        ("its/a-b.py:f", r"^kernel: got '.*its/a-b\.py:f'; a-b is no name"),
        ("its/random.py:f", r"another module random, \S*(?<!/its)/random\.py: "),
        ("its/sys.py:f", r"another module sys, Python's own: "),
        ("other/mine.py:f", r"another module mine, .*its/mine\.py: "),
    ],
)
def test_a_file_that_would_be_another_module_is_refused(kernel_file, name, message):
    for each in ("a-b.py", "random.py", "sys.py"):
        module(kernel_file / "its", each, KERNEL)
    module(kernel_file / "other", "mine.py", KERNEL)
    module_name(f"{kernel_file}/its/mine.py:f")
    before = [*sys.path]
    with pytest.raises(ValueError, match=message):
        module_name(f"{kernel_file}/{name}")
    assert sys.path == before
