"""How a kernel behaves in its process, in words."""

from fa_lib.check.kernel_words import listed, sentence


def _calls(at):
    if at["on_import"] and at["times"] == 1:
        return "when it was imported"
    return f"in {at['times']} call{'' if at['times'] == 1 else 's'} (the first: {at['at']})"


def _hangs(f, at):
    return f"It hangs: no answer within {f.number:g} s, {_calls(at)}."


def _crashes(f, at):
    how = ", ".join(filter(None, at["details"])) or "its process no longer answered"
    return f"It crashes: {how}, {_calls(at)}."


def _exits(f, at):
    how = listed(each or f"exit code {f.number:.0f}" for each in at["details"])
    return f"It ends its process: with {how}, {_calls(at)}. What to change: raise an error that says what is wrong."


def _unasked(f, at):
    return f"Its process ended {f.number:.0f} times; {at['times']} calls after that were not made."


def _prints(f, at):
    return f"It prints: up to {f.number:,.0f} bytes on {listed(at['details'])}."


def _leaks(f, at):
    return f"It leaks memory: over {at['times']} equal calls its process grew by {f.number / 1e6:.2f} MB a call."


def _state(f, at):
    return (
        f"It changes what other code of the program computes by: {listed(at['details'])}, {_calls(at)}. What to "
        "change: put it back before the kernel returns."
    )


def _draws(f, at):
    return f"It draws from {listed(at['details'])}, so that code after it draws others."


SAY = {
    "hangs": sentence(_hangs), "crashes": sentence(_crashes), "exits": sentence(_exits), "unasked": sentence(_unasked),
    "prints": sentence(_prints), "leaks": sentence(_leaks), "state": sentence(_state), "draws": sentence(_draws),
}  # fmt: skip
