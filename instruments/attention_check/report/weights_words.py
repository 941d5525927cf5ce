"""A kernel's weights in words: a sentence for each difference from attention as it is believed."""

from itertools import groupby

import torch
from torch import Tensor

from attention_check.conventions.solved_weights import LARGE, share_dropped
from attention_check.explain.verdict import runs
from attention_check.measure.weights import Weights
from attention_check.report.labels import listed, plural

FEWEST, ONE_SCORE = 100, 0.05  # scores that are one number, and their standard deviation
BLOCKS = 16, 32, 64, 128, 256


def lines(w: Weights) -> list[str]:
    """The verdict, then a line for each difference, or for what was read where there is none."""
    asked = ", ".join(f"{name}={x}" for name, x in w.options.items() if not isinstance(x, Tensor))
    believed, worst, found = f"attention{' with ' * bool(asked)}{asked}", float(w.times.max()), differences(w)
    first = f"The weights are not those of {believed}: {int((w.times > 1).sum()):,} of {w.times.numel():,} differ."
    if worst <= 1:
        heads, n_q, n_kv = w.times.shape
        queries = f"{n_q} quer{plural(n_q, 'y', 'ies')}"
        size = f"in a call of {heads} head{plural(heads, '')}, {queries} and {n_kv} key{plural(n_kv, '')}"
        first = f"The weights are those of {believed}, {size}: the largest error is {worst:.2g} of its bound."
        scale = f"Scores are multiplied by {_numbers(w.map.scale)}. " * bool((w.map.scale_error < w.scale).all())
        found = [f"{scale}Rows sum up to {_span(w.measured.sum(-1))}."]
    found += [f"P is in {w.fmt}, by its steps."] if w.fmt else []
    found += [f"The kernel does not take {listed(w.left_out)}, and was called without."] if w.left_out else []
    return [first, *(f"  {line}" for line in found)]


def differences(w: Weights) -> list[str]:
    """What differs, where it was read with certainty; the furthest weight where nothing was."""
    head, row, key = (int(i) for i in torch.unravel_index(w.times.argmax(), w.times.shape))
    if w.times[head, row, key] <= 1:
        return []
    got, due = (float(x[head, row, key]) for x in (w.measured, w.expected))
    furthest = f"the furthest weight, of head {head}, row {row}, key {key}, is {got:.4g}, expected {due:.4g}"
    if not w.measured.isfinite().all():
        return [f"Weights are NaN or infinite; {furthest}."]
    if said := [*_dropped(w)]:
        return said
    said = [*_places(w), *([*_score_of_hidden(w)] or _visible(w)), *_scores(w), *_sums(w)]
    return said or [f"Nothing that was read explains it; {furthest}."]


def _places(w):
    if not torch.equal(w.key_heads, w.due_heads):
        read, due = (", ".join(map(str, x.tolist())) for x in (w.key_heads, w.due_heads))
        yield f"Heads of q read the heads {read} of k; expected {due}."
    for _, run in groupby(sorted(w.moved.items()), lambda pair: pair[1] - pair[0]):
        at, of = (_runs(list(keys)) for keys in zip(*run))
        yield f"The values of {at} are multiplied by the weights of {of}: a page or row elsewhere."


def _runs(keys: list[int]) -> str:
    """ "key 3", "keys 0 to 15 and 32 to 63"."""
    texts = [f"{first} to {last}" if last > first else f"{first}" for first, last in runs(keys)]
    texts = [*texts[:3], f"{len(texts) - 3} more ranges"] if len(texts) > 4 else texts
    return f"key{plural(len(keys), '')} {listed(texts)}" if keys else "no key"


def _dropped(w):
    """Whether each weight is 0 or one multiple of what it should be, as dropout leaves them."""
    large = w.due & (w.expected > LARGE * w.expected.amax(-1, keepdim=True))
    if share := share_dropped((w.measured / w.expected)[large]):
        multiple = 1 / (1 - share)
        yield f"Each weight is 0 or {multiple:.3g} times what it should be: dropout of {share:.0%} is left on."


def _score_of_hidden(w):
    """Whether all hidden keys have one score, where they should have none."""
    at = w.seen & ~w.due
    own = (w.measured.clamp(min=1e-300).log() - w.map.logits).where(w.seen & w.due, torch.nan)
    score = (w.measured.clamp(min=1e-300).log() - own.nanmedian(-1, keepdim=True).values)[at]
    score = score[score.isfinite()]
    if not (w.due & ~w.seen).any() and len(score) > FEWEST and score.std() <= ONE_SCORE:
        yield f"Keys that should be hidden have the score {round(float(score.mean()), 2):g}, which is not -inf."


def _visible(w):
    """Which keys rows see, where it is not as due: a sentence for the heads with the same limits."""
    wrong, unknown = w.seen & ~w.due | w.hidden & w.due, w.due & ~w.seen & ~w.hidden
    alike: dict[tuple[str, ...], list[int]] = {}
    ends = "the window's right side" if "window" in w.options and not w.options.get("causal") else "a causal mask"
    for head in wrong.flatten(1).any(1).nonzero().flatten().tolist():
        alike.setdefault(tuple(_limits(w.seen[head], unknown[head], ends)), []).append(head)
    for limits, (head, *more) in alike.items():
        row = int(wrong[head].sum(-1).argmax())
        which = f" of head{plural(len(more) + 1, '')} {listed(map(str, (head, *more)))}"
        where = which if len(more) + 1 < len(w.seen) else ""
        due = _limits(w.due[head], torch.zeros_like(w.due[head]), ends)
        without = [f"without {each}" for each in due if each not in limits] if w.seen[head].all() else []
        words = [each for each in limits if each not in due] or without
        own, keys = w.seen[head, row], torch.arange(w.seen.shape[-1])
        if own.any():
            own = own | unknown[head, row] & (keys > keys[own].min()) & (keys < keys[own].max())
        sees, expected = (_runs(each.nonzero().flatten().tolist()) for each in (own, w.due[head, row]))
        yield f"Row {row}{where} sees {sees}; expected {expected}{': ' * bool(words)}{', '.join(words)}."


def _limits(seen: Tensor, unknown: Tensor, ends: str) -> list[str]:
    """What limits the keys of the rows of a head: a window, a causal mask, a range, keys that are left out. seen: bool
    (n_q, n_kv). unknown: keys whose weight of 0 may be rounding; a row that ends at one is left aside. ends: what a
    limit at each row's own key is called."""
    (n_q, n_kv), rows = seen.shape, seen.any(-1)
    if not rows.all():
        return [f"{int((~rows).sum())} rows see no key"]
    keys = torch.arange(n_kv).expand(n_q, -1)
    own = torch.arange(n_q) + n_kv - n_q  # the key that aligns with each row
    first, last = keys.where(seen, n_kv).amin(-1), keys.where(seen, -1).amax(-1)
    low, high = int(first.min()), int(last.max())
    holes = ~seen.any(0) & ~unknown.all(0) & (keys[0] > low) & (keys[0] < high)
    before, after = (((unknown | holes) & (keys == end[:, None])).any(-1) for end in (first - 1, last + 1))
    left, right = (own - first)[(first > low) & ~before].unique(), (last - own)[(last < high) & ~after].unique()
    found = [f"a window of {int(left)} keys to the left"] if len(left) == 1 else []
    if low > (max(0, int(own.min() - left)) if len(left) == 1 else 0):
        found.append(f"no key before {low}")
    if len(right) == 1:
        corner = {0: ", aligned bottom-right", n_q - n_kv: ", aligned top-left"} if n_q != n_kv else {0: ""}
        other = f"keys up to {abs(int(right))} {'after' if right > 0 else 'before'} the row's own"
        found.append(f"{ends}{corner[int(right)]}" if int(right) in corner else other)
    for size in BLOCKS if len(right) > 1 else ():
        if torch.equal(last, (own // size * size + size - 1).clamp(max=n_kv - 1)):
            found.append(f"whole blocks of {size} keys, up to that of the row's own key")
    if high < (min(n_kv - 1, int(own.max() + right)) if len(right) == 1 else n_kv - 1):
        found.append(f"no key after {high}")
    return [*found, *([f"{_runs(holes.nonzero().flatten().tolist())} left out of every row"] if holes.any() else [])]


def _numbers(x: Tensor) -> str:
    """One number for all heads, where they are alike to 1 %, or one for each."""
    if (x - x.mean()).abs().max() <= 0.01 * x.mean().abs():
        return f"{x.mean():.4g}"
    return f"{', '.join(f'{each:.3g}' for each in x.tolist()[:8])}{' ...' * (len(x) > 8)} in the heads"


def _span(x: Tensor) -> str:
    low, high = f"{x.min():.4g}", f"{x.max():.4g}"
    return low if low == high else f"{low} to {high}"


def _scores(w):
    """The map from scores to weights."""
    if w.map.residual > w.map.limit:
        left, limit = (f"{100 * x:.2g} %" for x in (w.map.residual, w.map.limit))
        curve = "and from every softcap's curve"
        yield f"log P is {left} from a line in the scores, where rounding leaves {limit}, {curve}."
        return
    if ((w.map.scale - w.scale).abs() > w.map.scale_error).any():
        times = "" if " " in (scale := _numbers(w.map.scale)) else f" ({_numbers(w.map.scale / w.scale)} times)"
        yield f"Scores are multiplied by {scale}, expected {w.scale:.4g}{times}."
    if abs((w.map.softcap or 0) - (w.softcap or 0)) > 0.01 * (w.softcap or 0):
        got, due = (f"a softcap of {x:.4g}" if x else "no softcap" for x in (w.map.softcap, w.softcap))
        yield f"Scores have {got}, expected {due}."
    if ((w.map.slope - w.slope).abs() > w.map.slope_error).any():
        slopes, far = _numbers(w.map.slope), "for each key of distance from their row, expected 0: ALiBi's slopes."
        mask = f"The mask that is added is multiplied by {slopes}, expected 1."
        yield mask if w.slope else f"Scores fall by {slopes} {far}"


def _sums(w):
    sums, due = w.measured.sum(-1), w.expected.sum(-1)
    off = sums - due
    if (off.abs() > w.bound.norm(dim=-1)).any():
        takes = w.sink is not None and off.max() < -off.min() / 4  # of a sink no row sums up to more
        more = f": each has one more term, as of a sink with the logit {w.sink:.3g}" if takes else ""
        more = more if w.factor is None else ": the output is multiplied by it"
        got = _span(sums) if w.factor is None else f"{w.factor:.4g}"
        yield f"Rows sum up to {got}, expected {_span(due)}{more}."
