"""The tests of the kernel that `pytest --fa-lib-kernel package.module:function` names: pytest collects them then."""

from fa_lib.testing import parametrize_with_checks


def pytest_generate_tests(metafunc):
    mark = parametrize_with_checks([metafunc.config.getoption("fa_lib_kernel")]).mark
    metafunc.parametrize(*mark.args, **mark.kwargs)


def test_kernel(kernel, check):
    check(kernel)
