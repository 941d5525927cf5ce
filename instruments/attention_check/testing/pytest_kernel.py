"""The tests of the kernel that `pytest --fa-lib-kernel path/to/file.py:function` (or package.module:function) names:
pytest collects them then."""

from attention_check.testing import parametrize_with_checks
from fa_lib.execution.reader_modules import module_name


def pytest_generate_tests(metafunc):
    """Make `test_kernel` a test of every check."""
    mark = parametrize_with_checks([module_name(metafunc.config.getoption("fa_lib_kernel"))]).mark
    metafunc.parametrize(*mark.args, **mark.kwargs)


def test_kernel(kernel, check):
    check(kernel)
