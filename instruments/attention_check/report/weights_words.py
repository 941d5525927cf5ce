"""A kernel's weights in words: a sentence for each difference from attention as it is believed."""

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor

from attention_check.measure.weights import Weights
from attention_check.report.labels import listed, plural


def lines(w: Weights) -> list[str]:
    """The verdict, then a line for each difference, or for what was read where there is none."""
    asked = ", ".join(f"{name}={x}" for name, x in w.options.items() if not isinstance(x, Tensor))
    with_options = f" with {asked}" if asked else ""
    worst, found = float(w.times.max()), differences(w)
    notes = [f"It does not take {listed(w.left_out)}, and was called without."] if w.left_out else []
    explained = ", and this explains all differences" * (w.differs and w.only_fmt)
    notes += [f"P is in {w.fmt}, by its steps{explained}."] if w.fmt else []
    if not w.differs:
        first = f"The weights are those of attention{with_options}: the largest error is {worst:.2g} of its bound."
        sums = w.measured.sum(-1)
        read = f"Scores are multiplied by {_numbers(w.map.scale)}. Rows sum up to {sums.min():.4g} to {sums.max():.4g}."
        return [first, *(f"  {line}" for line in (read, *notes))]
    wrong = f"{int((w.times > 1).sum()):,} of {w.times.numel():,} differ"
    first = f"The weights are not those of attention{with_options}: {wrong}."
    return [first, *(f"  {line}" for line in (*(found or [_unexplained(w)] * (not w.only_fmt)), *notes))]


def differences(w: Weights) -> list[str]:
    """What differs, where it was read with certainty; [] where nothing does."""
    if not w.differs:
        return []
    if not w.measured.isfinite().all():
        head, row, key = (~w.measured.isfinite()).nonzero()[0].tolist()
        return [f"Weights are NaN or infinite, the first in head {head}, row {row}, key {key}."]
    return [*_places(w), *_visible(w), *_map(w), *_sums(w)]


def _unexplained(w):
    head, row, key = (int(i) for i in torch.unravel_index(w.times.argmax(), w.times.shape))
    got, due = w.measured[head, row, key], w.expected[head, row, key]
    most = f"the furthest one, of head {head}, row {row}, key {key}, is {got:.4g}, expected {due:.4g}"
    return f"Nothing that was read explains it; {most}: {w.times.max():.3g} times its bound."


def _places(w):
    """Heads of k, and columns, that are elsewhere."""
    if not torch.equal(w.key_heads, w.due_heads):
        read, due = (", ".join(map(str, x.tolist())) for x in (w.key_heads, w.due_heads))
        yield f"Heads of q read the heads {read} of k; expected {due}."
    for _, run in groupby(sorted(w.moved.items()), lambda pair: pair[1] - pair[0]):
        at, of = zip(*run)
        yield f"The values of {_keys(at)} are multiplied by the weights of {_keys(of)}: a page or row elsewhere."


def _keys(keys: Iterable[int]) -> str:
    """ "key 3", "keys 16 to 31"."""
    first, *_, last = (*keys, *keys)
    return f"key {first}" if first == last else f"keys {first} to {last}"


def _visible(w):
    """Which keys rows see, where it is not as due: a sentence for the heads with the same limits."""
    wrong = w.seen & ~w.due | w.hidden & w.due
    unknown = w.due & ~w.seen & ~w.hidden
    alike = {}
    for head in wrong.flatten(1).any(1).nonzero().flatten().tolist():
        alike.setdefault(tuple(_limits(w.seen[head], unknown[head])), []).append(head)
    for limits, heads in alike.items():
        head = heads[0]
        row = int(wrong[head].sum(-1).argmax())
        where = "" if len(heads) == len(w.seen) else f" of head{plural(len(heads), '')} {listed(map(str, heads))}"
        due = _limits(w.due[head], torch.zeros_like(w.due[head]))
        removed = " and ".join(each for each in due if each not in limits)
        words = [*(each for each in limits if each not in due), *([f"without {removed}"] if removed else [])]
        why = f": {', '.join(words)}" if words else ""
        own, keys = w.seen[head, row], torch.arange(w.seen.shape[-1])
        own = own | unknown[head, row] & (keys > keys[own].min()) & (keys < keys[own].max()) if own.any() else own
        yield f"Row {row}{where} sees {_runs(own)}; expected {_runs(w.due[head, row])}{why}."
    if w.lost_in_sum:
        yield "The lost keys count in the sums of the rows, but their values are not added to the output."


def _runs(seen: Tensor) -> str:
    """The keys of a row in words: "0 to 15 and 32 to 63"."""
    keys = seen.nonzero().flatten().tolist()
    runs = [[key for _, key in run] for _, run in groupby(enumerate(keys), lambda each: each[1] - each[0])]
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    more = [f"{len(texts) - 3} more ranges"] if len(texts) > 4 else []
    return f"key{plural(len(keys), '')} {listed([*(texts[:3] if more else texts), *more])}" if keys else "no key"


def _limits(seen: Tensor, unknown: Tensor) -> list[str]:
    """What limits the keys of the rows of a head: a window, a causal mask, a range, keys that are left out.

    Args:
        seen: bool (n_q, n_kv). unknown: keys whose weight of 0 may be rounding; a row that ends at one is left aside.
    """
    (n_q, n_kv), rows = seen.shape, seen.any(-1)
    if not rows.any():
        return ["no key is seen"]
    keys = torch.arange(n_kv).expand(int(rows.sum()), -1)
    own = torch.arange(n_q)[rows] + n_kv - n_q  # the key that aligns with each row
    seen, unknown = seen[rows], unknown[rows]
    first, last = keys.where(seen, n_kv).amin(-1), keys.where(seen, -1).amax(-1)
    found, low, high = [], int(first.min()), int(last.max())
    holes = ~seen.any(0) & ~unknown.all(0) & (keys[0] > low) & (keys[0] < high)
    open_ends = unknown | holes
    before, after = ((open_ends & (keys == end[:, None])).any(-1) for end in (first - 1, last + 1))
    left, right = (own - first)[(first > low) & ~before].unique(), (last - own)[(last < high) & ~after].unique()
    if len(left) == 1:
        found.append(f"a window of {int(left)} keys to the left")
    if low > (max(0, int(own.min() - left)) if len(left) == 1 else 0):
        found.append(f"no key before {low}")
    if len(right) == 1:
        corner = {0: ", aligned bottom-right", n_q - n_kv: ", aligned top-left"} if n_q != n_kv else {0: ""}
        other = f"keys up to the {abs(int(right))}th {'after' if right > 0 else 'before'} the row's own"
        found.append(f"a causal mask{corner[int(right)]}" if int(right) in corner else other)
    if high < (min(n_kv - 1, int(own.max() + right)) if len(right) == 1 else n_kv - 1):
        found.append(f"no key after {high}")
    if holes.any():
        found.append(f"{_runs(holes)} left out of every row")
    if not rows.all():
        found.append(f"{int((~rows).sum())} rows without a key")
    return found


def _numbers(x: Tensor) -> str:
    """One number for all heads, where they are alike to 1 %, or one for each."""
    if (x - x.mean()).abs().max() <= 0.01 * x.mean().abs():
        return f"{x.mean():.4g}"
    return f"{', '.join(f'{each:.3g}' for each in x.tolist()[:8])}{' ...' * (len(x) > 8)} in the heads"


def _map(w):
    """The map from scores to weights."""
    if not w.map.holds:
        yield (
            "log P is no straight line in the scores, and has no softcap's curve: the nearest line leaves "
            f"{100 * w.map.residual:.2g} %, and rounding {100 * w.map.limit:.2g} %."
        )
        return
    if ((w.map.scale - w.scale).abs() > w.map.scale_error).any():
        times = f" ({_numbers(w.map.scale / w.scale)} times)" if w.scale else ""
        yield f"Scores are multiplied by {_numbers(w.map.scale)}, expected {w.scale:.4g}{times}."
    if (w.map.softcap is None) != (w.softcap is None) or w.softcap and abs(w.map.softcap / w.softcap - 1) > 0.01:
        got, due = (f"a softcap of {x:.4g}" if x else "no softcap" for x in (w.map.softcap, w.softcap))
        yield f"Scores have {got}, expected {due}."
    if ((w.map.slope - w.slope).abs() > w.map.slope_error).any():
        slopes = _numbers(w.map.slope)
        if w.slope:
            yield f"The mask that is added is multiplied by {slopes}, expected {w.slope:.4g}."
        else:
            yield f"Scores fall by {slopes} for each key of distance from their row, expected 0: ALiBi's slopes."


def _sums(w):
    """Row sums."""
    sums, due = w.measured.sum(-1), w.expected.sum(-1)
    due = f"{due.min():.4g}" if due.max() - due.min() < 1e-6 else f"{due.min():.4g} to {due.max():.4g}"
    if w.factor is not None:
        yield f"All rows sum up to {w.factor:.4g}, expected {due}: the output is multiplied by it."
    elif w.sink is not None:
        yield (
            f"Rows sum up to {sums.min():.4g} to {sums.max():.4g}, expected {due}: each has one more term, "
            f"as of a sink with the logit {w.sink:.3g}."
        )
    elif w.sums_differ and not w.lost_in_sum:
        yield f"Rows sum up to {sums.min():.4g} to {sums.max():.4g}, expected {due}."
