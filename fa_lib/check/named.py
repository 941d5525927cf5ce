"""Some checks of a kernel, by their names: those that `testing.parametrize_with_checks` makes tests of."""

from collections.abc import Mapping, Sequence

from fa_lib import kernels
from fa_lib.check.apart import LIMIT_S, in_a_process
from fa_lib.check.attempt import shown
from fa_lib.check.checks import CHECKS, Result, conduct_of, result_of


def chosen(names: Sequence[str]) -> list[str]:
    """Keys of CHECKS: each by its name, or all of a kind by its first word, as `carry`.

    Raises:
        ValueError: there is no such check.
    """
    found: list[str] = []
    for name in names:
        own = [check for check in CHECKS if check == name or check.startswith(f"{name}_")]
        if not own:
            raise ValueError(f"only: got {name!r}; accepted are {', '.join(CHECKS)}, or their first words")
        found += own
    return list(dict.fromkeys(found))


def check_named(kernel: str, names: Sequence[str], limit: float = LIMIT_S) -> dict[str, Result]:
    """What some checks say of a kernel, on the CPU; and `conduct`, of one that has a process of its own.

    Args:
        kernel, limit: as of `reports.check_kernel`. names: as `chosen` takes them.

    Raises:
        ValueError: there is no such check, or no such kernel.
    """
    checks = chosen(names)
    with in_a_process(kernel, limit) as alone:
        if alone is None:
            kernels.plain(kernel)
        else:
            alone.wait()
        found = {check: result_of(check, kernel) for check in checks}
        return found | ({} if alone is None else dict(conduct=conduct_of(alone.conduct())))


def failed(results: Mapping[str, Result]) -> bool | None:
    """Whether a check failed; None where none could be asked."""
    asked = [result.passed for result in results.values() if result.passed is not None]
    return None if not asked else not all(asked)


def in_lines(kernel: str, results: Mapping[str, Result]) -> list[str]:
    """How many of the checks passed, then a line for each."""
    words = {True: "passes", False: "FAILS", None: "not asked"}
    passed = [result.passed for result in results.values()]
    told = {True: "passed", False: "failed", None: "not asked"}
    counts = [f"{passed.count(which)} {word}" for which, word in told.items() if which in passed]
    lines = [f"{kernel}: {len(passed)} check{'s' * (len(passed) > 1)}: {', '.join(counts)}."]
    for check, result in results.items():
        lines.append(f"  {check}: {words[result.passed]}{f': {result.why}' if result.why else ''}")
    return [shown(line) for line in lines]
