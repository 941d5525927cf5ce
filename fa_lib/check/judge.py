"""From the tables of `examine` to a verdict in words: does a kernel pass, does it carry low precision, how we know."""

from dataclasses import dataclass, field

from scipy import stats

from fa_lib.experiments.rule import CALLS

LOST = 2  # ulp: output, P and scores are rounded once each, at most half an ulp; sums of FP32 add nothing that shows


ALL = 0.8  # of what is lost when every tile is


RULE = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # times Baseline's largest error, flash-attention's own tests


@dataclass
class Verdict:
    """What `judge` finds.

    Attributes:
        passed: its outputs are attention's, within the rule, and it carries no low precision.
        carries: the sums it carries in low precision, "accumulator O" and "row sum l" (None: this could not be seen).
        reasons: sentences, the gravest first.
        advice: what to change, or "".
    """

    kernel: str
    passed: bool = True
    carries: tuple | None = ()
    reasons: list = field(default_factory=list)
    advice: str = ""

    def fails(self, reason):
        self.passed = False
        self.reasons.append(reason)

    def __str__(self):
        words = [f"{self.kernel} {'passes' if self.passed else 'fails'}.", *self.reasons, self.advice]
        return " ".join(word for word in words if word)


def carried(table):
    """What a table of `examine.carry` says, by format and sum.

    Returns:
        list of dict: fmt, what, lost (the most, ulp), low (True, False, or None where it did not run), tile (the fewest
        keys from which on all is lost: the tile's size; None where nothing is lost).
    """
    found = []
    for (fmt, what), rows in table.sort_values("keys").groupby(["fmt", "what"]):  # the accumulator first
        lost, low, tile = rows.lost.max(), None, None
        if rows.lost.notna().all():
            whole = rows[(rows.lost >= ALL * rows["all"]) & (rows["all"] > LOST)]
            tile = int(whole["keys"].min()) if len(whole) else None
            # In the row sum an error of a score, or of the exponential, shows as well, but loses no whole tile.
            sure = what == "accumulator O" or tile is not None or found[-1]["low"]
            low = bool(lost > LOST and sure)
        found.append(dict(fmt=fmt, what=what, lost=lost, low=low, tile=tile))
    return found


def interval(values, level=0.95):
    """Mean and confidence interval (Student's t) of one number per seed; NaNs are dropped."""
    values = values.dropna()
    mean, error = values.mean(), values.sem()
    half = error * stats.t.ppf((1 + level) / 2, len(values) - 1) if len(values) > 1 else float("nan")
    return mean, mean - half, mean + half


def judge(kernel, asked, shapes, lengths, inputs, sums, repeats):
    """The Verdict on a kernel, from the tables of `examine.examine`."""
    v = Verdict(kernel)
    lengths = lengths[lengths.kernel == kernel] if len(lengths) else lengths
    if not (asked.outcome == "yes").any():
        v.carries = None
        said = "It could not be run" if (asked.outcome == "no").all() else "It is no attention kernel"
        v.fails(f"{said}: asked for {asked.asked.iloc[0]} it {_did(asked.iloc[0])}.")
        return v
    if not len(lengths):
        v.carries = None
        v.fails("It runs in FP64 alone, the golden value's own format: there is nothing to judge it by.")
        return v
    found = carried(sums) if len(sums) else []
    low = [one for one in found if one["low"]]
    v.carries = tuple(dict.fromkeys(one["what"] for one in low))
    worst = lengths.loc[lengths.times_max.idxmax()] if lengths.times_max.notna().any() else None
    grows = _growth(lengths)
    if low:
        most = max(low, key=lambda one: one["lost"])
        v.fails(
            f"It carries low precision between tiles: yes, in its {' and '.join(v.carries)}. How we know: of a sum of "
            f"{len_of(sums)} terms it loses {_each(low)}; a kernel that carries FP32 loses half an ulp"
            + (f". All is lost in tiles of up to {most['tile']} keys: that is its tile" if most["tile"] else "")
            + f". {grows}"
        )
        v.advice = "What to change: hold the accumulator O, the row maximum m and the row sum l in FP32."
    elif any(one["low"] is None for one in found) or not found:
        v.carries = None
        problem = next((p for p in sums.problem if p), "") if len(sums) else ""
        v.reasons.append(f"Whether it carries low precision between tiles could not be seen: {problem or 'not asked'}.")
    else:
        v.reasons.append(
            f"It carries low precision between tiles: no. How we know: of sums of {len_of(sums)} terms, of which a "
            f"BF16 or FP16 carry, in tiles of up to 512 keys, loses 3 to hundreds of ulp, it loses "
            f"{max(one['lost'] for one in found):.1f}. {grows}"
        )
    for row in asked[asked.outcome.isin(("wrong", "broken"))].itertuples():
        v.fails(f"Asked for {row.asked}: {row.detail}.")
    if worst is not None and worst.times_max > RULE["o"]:
        v.fails(
            f"Its largest error is {worst.times_max:.1f} times Baseline's ({worst.distribution} inputs, {worst.fmt}, "
            f"N = {worst.n}), where the rule allows {RULE['o']}."
        )
    for one in found:
        if one["low"] is False and one["lost"] > LOST:
            v.reasons.append(
                f"Its row sum is {one['lost']:.1f} ulp of {one['fmt']} off where P is small, and loses no whole tile: "
                "that is of its scores or its exponential, and not of a carry."
            )
    _problems(v, lengths)
    _problems(v, inputs)
    top_left = asked[asked.detail.str.startswith("aligned top-left")].asked
    if len(top_left) and len(shapes):
        v.reasons.append(
            "Its causal mask is aligned top-left, as torch's is_causal, where queries are fewer than keys."
        )
        square = shapes["shape"].map(lambda name: CALLS[name].n_q == CALLS[name].n_kv)
        shapes = shapes[square | ~shapes["shape"].str.startswith("causal")]
    _shapes(v, shapes)
    _inputs(v, inputs)
    if len(repeats):
        _repeats(v, repeats.iloc[0])
    no = asked[asked.outcome == "no"].asked
    if len(no):
        v.reasons.append(f"Not supported, so not judged: {', '.join(no)}.")
    return v


def _problems(v, table):
    """What a kernel did on inputs of a table of `examine.measure`: to raise is not to support; anything else fails."""
    for raises, rows in table[table.problem != ""].groupby(table.problem.str.startswith("raises")):
        row = rows.iloc[0]
        words = f"On {row.distribution} inputs in {row.fmt} at N = {row.n} it {row.problem}"
        v.reasons.append(f"Not judged: {words}.") if raises else v.fails(f"{words}.")


def len_of(sums):
    """Terms of the sums of `examine.carry`."""
    return f"{2 * int(sums['keys'].max()):,}"


def _did(row):
    return row.detail if row.outcome != "wrong" else f"answers, but {row.detail}"


def _each(low):
    return ", ".join(f"{one['lost']:.0f} ulp of {one['fmt']} in {one['what']}" for one in low)


def _growth(lengths):
    """How the error over Baseline's goes with N on uniform inputs, in words."""
    rows = lengths[(lengths.distribution == "uniform") & (lengths.fmt == lengths.fmt.iloc[0])]
    mean = rows.groupby("n").times_max.mean().dropna()
    if len(mean) < 2:
        return ""
    first, last = mean.index[0], mean.index[-1]
    return (
        f"On uniform inputs its largest error over Baseline's goes from {mean[first]:.1f} at N = {first} to "
        f"{mean[last]:.1f} at N = {last}."
    )


def _shapes(v, shapes):
    """The rule over shapes and masks: outputs count, gradients are told."""
    if not len(shapes):
        return
    ran = shapes[shapes.problem == ""]
    for tensors, words in ((("o",), "outputs"), (("dq", "dk", "dv"), "gradients")):
        rows = ran[ran.tensor.isin(tensors)]
        failed = rows[~rows.passed.astype(bool)]
        if len(failed):
            worst = failed.loc[failed.ratio.idxmax()] if failed.ratio.notna().any() else failed.iloc[0]
            by = f"{worst.ratio:.1f} times Baseline's error" if worst.ratio == worst.ratio else "what is not finite"
            sentence = (
                f"Over shapes and masks {len(failed)} of {len(rows)} {words} break the rule, the worst by {by} "
                f"({worst.tensor}, {worst['shape']}, {worst.fmt}; allowed {worst.allowed:.0f})."
            )
            v.fails(sentence) if words == "outputs" else v.reasons.append(sentence)
        elif len(rows):
            v.reasons.append(f"Over shapes and masks all {len(rows)} {words} are within the rule.")


def _inputs(v, inputs):
    """The worst of the inputs that make trouble, and the largest bias that is no chance."""
    if not len(inputs) or not inputs.times_max.notna().any():
        return
    worst = inputs.groupby(["fmt", "distribution"]).times_max.mean().dropna().sort_values()
    (fmt, distribution), times = worst.index[-1], worst.iloc[-1]
    v.reasons.append(f"Of inputs that make trouble the worst is {distribution}, {fmt}: {times:.1f} times Baseline's.")
    groups = inputs.groupby(["fmt", "distribution"]).outwards
    level = 1 - 0.05 / len(groups)  # each group is a chance to find one
    biases = {at: interval(group, level) for at, group in groups}
    sure = {at: b for at, b in biases.items() if b[1] > 0 or b[2] < 0}
    if sure:
        (fmt, distribution), (mean, low, high) = max(sure.items(), key=lambda item: abs(item[1][0]))
        v.reasons.append(
            f"Its errors have a side: {mean:+.2f} ulp away from zero ({low:.2f} to {high:.2f}) on {distribution}, "
            f"{fmt}."
        )


def _repeats(v, row):
    for what in ("outputs", "gradients"):
        count = row[what]
        if count == count and count:  # not NaN
            same = f"the same bits in {row.runs:.0f} of {row.runs:.0f} runs"
            v.reasons.append(
                f"Its {what} are {same if count == 1 else f'{count:.0f} different ones in {row.runs:.0f} runs'}."
            )
