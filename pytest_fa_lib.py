"""fa_lib's pytest plugin: `pytest --fa-lib-kernel package.module:function` runs every check on a kernel.

It stands outside of the package, because pytest imports it at every start, and `attention_check.testing` brings torch.
"""

from importlib import metadata, util
from pathlib import Path


def pytest_addoption(parser):
    group = parser.getgroup("fa_lib", "fa_lib: is an attention kernel numerically safe?")
    group.addoption(
        "--fa-lib-kernel",
        metavar="FILE.py:FUNCTION",
        default="",
        help="run every check of fa_lib on this kernel f(q, k, v, causal=..., scale=...), path/to/file.py:function or "
        "package.module:function, and nothing else where no files are named",
    )


def pytest_report_header(config):
    try:
        version = metadata.version("fa_lib")
    except metadata.PackageNotFoundError:  # on PYTHONPATH, not installed
        version = "not installed"
    kernel = config.getoption("fa_lib_kernel")
    return f"fa_lib: {version}{f', kernel {kernel}' if kernel else ''}"


def pytest_configure(config):
    if not config.getoption("fa_lib_kernel"):
        return
    from fa_lib.execution import reader_modules

    reader_modules.add(str(config.invocation_params.dir))  # the kernel's module, as the command fa-lib finds it
    checks = str(Path(util.find_spec("attention_check").origin).with_name("testing") / "pytest_kernel.py")
    named = config.args_source == config.ArgsSource.ARGS
    config.args[:] = [*config.args, checks] if named else [checks]
