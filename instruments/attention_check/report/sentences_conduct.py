"""How a kernel behaves in its process, in words."""

from attention_check.report.sentence import Sentence, each
from attention_check.report.sentences_kernel import listed


def _calls(at):
    if at["on_import"] and at["times"] == 1:
        return "when it was imported"
    return f"in {at['times']} call{'' if at['times'] == 1 else 's'} (the first: {at['at']})"


def _hangs(f, at):
    return Sentence(f"It hangs: no answer within {f.number:g} s, {_calls(at)}")


def _crashes(f, at):
    how = ", ".join(filter(None, at["details"])) or "its process no longer answered"
    return Sentence(f"It crashes: {how}, {_calls(at)}")


def _exits(f, at):
    how = listed(detail or f"exit code {f.number:.0f}" for detail in at["details"])
    change = "raise an error that says what is wrong"
    return Sentence(f"It ends its process: with {how}, {_calls(at)}", change=change)


def _unasked(f, at):
    return Sentence(f"Its process ended {f.number:.0f} times; {at['times']} calls after that were not made")


def _prints(f, at):
    return Sentence(f"It prints: up to {f.number:,.0f} bytes on {listed(at['details'])}")


def _leaks(f, at):
    return Sentence(
        f"It leaks memory: over {at['times']} equal calls its process grew", f"{f.number / 1e6:.2f} MB a call"
    )


def _state(f, at):
    change = "put it back before the kernel returns"
    return Sentence(
        f"It changes what other code of the program computes by: {listed(at['details'])}, {_calls(at)}", change=change
    )


def _draws(f, at):
    return Sentence(f"It draws from {listed(at['details'])}, so that code after it draws others")


WORDINGS = {
    "hangs": each(_hangs), "crashes": each(_crashes), "exits": each(_exits), "unasked": each(_unasked),
    "prints": each(_prints), "leaks": each(_leaks), "state": each(_state), "draws": each(_draws),
}  # fmt: skip
