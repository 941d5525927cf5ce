"""A kernel's weights in words: what attention makes them, and which keys a row sees."""

import torch
from torch import Tensor

from attention_check.explain.explain_words import lines as explained_lines
from attention_check.explain.verdict import runs
from attention_check.measure.weights import Weights
from attention_check.report.labels import listed, plural

OUTPUT = "the kernel's output"
BEYOND = "Gradients, other options and large inputs were not looked at: `fa-lib check kernel` does."


def lines(w: Weights) -> list[str]:
    """The verdict, then what the weights are, or what was read where nothing differs."""
    asked = ", ".join(f"{name}={x}" for name, x in w.options.items() if not isinstance(x, Tensor))
    believed, differ = f"attention{' with ' * bool(asked)}{asked}", int((w.times > 1).sum())
    if w.differs:
        count = f": {differ:,} of {w.times.numel():,} differ" if differ else ", of rows as a whole"
        first = f"The weights are not those of {believed}{count}."
        again = f"A second call gives {w.changed:,} other weights: a race, or memory that nobody wrote."
        found = [again] * bool(w.changed) + differences(w)
    else:
        heads, n_q, n_kv = w.times.shape
        queries = f"{n_q} quer{plural(n_q, 'y', 'ies')}"
        size = f"in a call of {heads} head{plural(heads, '')}, {queries} and {n_kv} key{plural(n_kv, '')}"
        first = f"The weights are those of {believed}, {size}: the largest error is {w.times.max():.2g} of its bound."
        found = [f"Rows sum up to {_span(w.measured.sum(-1))}.", BEYOND]
    found += [f"The kernel does not take {listed(w.left_out)}, and was called without."] if w.left_out else []
    return [first, *(f"  {line}" for line in found)]


def differences(w: Weights) -> list[str]:
    """What differs; the furthest weight where no cause is known."""
    if not w.differs:
        return []
    if w.of_seen_keys is not None:
        rest = [] if w.of_seen_keys.is_rounding else explained_lines(w.of_seen_keys, f"With these keys {OUTPUT}")
        return [_seen(w), *(rest or ["With these keys the weights are right to rounding."])]
    said = [] if w.explained.is_rounding else explained_lines(w.explained, OUTPUT)
    if w.explained.has_cause and said:
        return said
    head, row, key = (int(i) for i in torch.unravel_index(w.times.argmax(), w.times.shape))
    got, due = (float(x[head, row, key]) for x in (w.measured, w.expected))
    furthest = f"weight, of head {head}, row {row}, key {key}, is {got:.4g}, expected {due:.4g}."
    return [f"The furthest {furthest}", *said]


def _seen(w):
    """The keys of the row in which most weight is elsewhere, and those that are due."""
    off = (w.measured - w.expected).abs().where((w.measured > 0) != (w.expected > 0), 0.0).sum(-1)
    head, row = (int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    where = f" of head {head}" if off.amax(-1).min() == 0 else ""
    sees, due = (_keys((x[head, row] > 0).nonzero().flatten().tolist()) for x in (w.measured, w.expected))
    return f"Row {row}{where} sees {sees}; expected {due}."


def _keys(keys: list[int]) -> str:
    """ "key 3", "keys 0 to 15 and 32 to 63"."""
    texts = [f"{first} to {last}" if last > first else f"{first}" for first, last in runs(keys)]
    texts = [*texts[:3], f"{len(texts) - 3} more ranges"] if len(texts) > 4 else texts
    return f"key{plural(len(keys), '')} {listed(texts)}" if keys else "no key"


def _span(x: Tensor) -> str:
    low, high = f"{x.min():.4g}", f"{x.max():.4g}"
    return low if low == high else f"{low} to {high}"
