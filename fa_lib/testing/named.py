"""Some checks of a kernel, by their names: those that `testing.parametrize_with_checks` makes tests of."""

from collections.abc import Mapping, Sequence

from fa_lib import kernels
from fa_lib.check.isolation.isolated_kernel import LIMIT_S, in_a_process
from fa_lib.check.isolation.untrusted import Untrusted
from fa_lib.testing.checks import CHECKS, Result, conduct_of, result_of


def chosen(names: Sequence[str]) -> list[str]:
    """Keys of CHECKS: each by its name, all of a kind by its first word, as `carry`, or all that hold its words, as
    `softcap`.

    Raises:
        ValueError: there is no such check.
    """
    found: list[str] = []
    for name in names:
        own = [check for check in CHECKS if check == name or check.startswith(f"{name}_")]
        own = own or [check for check in CHECKS if f"_{name}_" in f"_{check}_"]
        if not own:
            raise ValueError(f"check: got {name!r}; accepted are {', '.join(CHECKS)}, or words of these")
        found += own
    return list(dict.fromkeys(found))


def check_named(kernel: str, names: Sequence[str], timeout: float = LIMIT_S) -> dict[str, Result]:
    """What some checks say of a kernel, on the CPU; and `conduct`, of one that has a process of its own.

    Args:
        kernel, timeout: as of `reports.check_kernel`. names: as `chosen` takes them.

    Raises:
        ValueError: there is no such check, or no such kernel.
    """
    checks = chosen(names)
    with in_a_process(kernel, timeout) as alone:
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


def _outcome(result):
    if result.passed is None:
        return "reported" if result.reported else "unasked"
    return "passed" if result.passed else "failed"


def check_lines(kernel: str, results: Mapping[str, Result]) -> list[str]:
    """How many of the checks passed, then a line for each."""
    words = dict(passed="passes", failed="FAILS", reported="reported, does not count", unasked="not asked")
    told = dict(passed="passed", failed="failed", reported="reported", unasked="not asked")
    came = {check: _outcome(result) for check, result in results.items()}
    counts = [f"{[*came.values()].count(which)} {word}" for which, word in told.items() if which in came.values()]
    lines = [f"{kernel}: {len(came)} check{'s' * (len(came) > 1)}: {', '.join(counts)}."]
    for check, result in results.items():
        lines.append(f"  {check}: {words[came[check]]}{f': {result.why}' if result.why else ''}")
    return [Untrusted(line) for line in lines]
