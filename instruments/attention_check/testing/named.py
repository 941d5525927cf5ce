"""Checks of a kernel by their names, which are those of the tests that `testing.parametrize_with_checks` makes."""

from collections.abc import Mapping, Sequence

from attention_check.isolation.isolated_kernel import LIMIT_S, IsolatedKernel, conduct, isolated, wait
from attention_check.testing.checks import CHECKS, Result, conduct_of, result_of
from fa_lib.execution.untrusted import Untrusted
from fa_lib.kernels.kernel_ref import KernelRef


def chosen(names: Sequence[str]) -> list[str]:
    """Find keys of CHECKS.

    Args:
        names: each is a check's name, the first word of a kind of checks, as `carry`, or a word in names, as `softcap`.

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


def check_named(kernel: KernelRef | str, names: Sequence[str], timeout: float = LIMIT_S) -> dict[str, Result]:
    """Run checks on a kernel, on the CPU.

    Args:
        kernel: a KernelRef, or the text of one. names: as of `chosen`. timeout: seconds that a call may take, in the
            kernel's process.

    Returns:
        dict: check -> Result; with "conduct" where the kernel has a separate process.

    Raises:
        ValueError: there is no such check, or no such kernel.
    """
    checks = chosen(names)
    with isolated(KernelRef.of(kernel), timeout) as subject:
        wait(subject)
        found = {check: result_of(check, subject) for check in checks}
        apart = isinstance(subject.fn, IsolatedKernel)
        return found | (dict(conduct=conduct_of(conduct(subject))) if apart else {})


def failed(results: Mapping[str, Result]) -> bool | None:
    """Say whether a check failed; None where none was decided."""
    decided = [result.passed for result in results.values() if result.passed is not None]
    return None if not decided else not all(decided)


def _outcome(result):
    if result.passed is None:
        return "reported" if result.reported else "unasked"
    return "passed" if result.passed else "failed"


def check_lines(label: str, results: Mapping[str, Result]) -> list[str]:
    """Write how many of the checks passed, then a line for each."""
    words = dict(passed="passes", failed="FAILS", reported="reported, does not count", unasked="not asked")
    past = dict(passed="passed", failed="failed", reported="reported", unasked="not asked")
    outcomes = {check: _outcome(result) for check, result in results.items()}
    counts = [f"{[*outcomes.values()].count(key)} {word}" for key, word in past.items() if key in outcomes.values()]
    lines = [f"{label}: {len(outcomes)} check{'s' * (len(outcomes) > 1)}: {', '.join(counts)}."]
    for check, result in results.items():
        lines.append(f"  {check}: {words[outcomes[check]]}{f': {result.why}' if result.why else ''}")
    return [Untrusted(line) for line in lines]
