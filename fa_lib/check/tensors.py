"""Captured Q, K, V: how risky each head is, how far kernels are on it, and the cheapest change that helps."""

import math
from dataclasses import replace

import torch

from fa_lib import kernels
from fa_lib.check.judge import RULE, Verdict
from fa_lib.check.kernel import attempt
from fa_lib.experiments.biased_rounding import problem as biased
from fa_lib.experiments.rule import yardstick
from fa_lib.formats import FP16, FP32, TF32, Format
from fa_lib.inputs import draw, tensors
from fa_lib.kernels.options import Options, check
from fa_lib.kernels.rows import by_rows
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

CHANGES = {  # cheapest first: what it costs, and what it does to a Precision and to the arguments of `tiled`
    "keys in the other order": ("nothing", {}, dict(reverse=True)),
    "P raised by 2^4": ("a constant", {}, dict(offset=4)),
    "8 splits, merged": ("a merge at the end", {}, dict(splits=8)),
    "m and l in FP32": ("two registers a row", dict(stats=FP32), {}),
    "O in FP32": ("head_dim registers a row", dict(accumulator=FP32), {}),
    "O, m and l in FP32": ("head_dim + 2 registers a row", dict(accumulator=FP32, stats=FP32), {}),
    "scores in FP32": ("the scores' registers twice", dict(scores=FP32, exponent=FP32), {}),
    "scores, O, m and l in FP32": (
        "what shipped kernels hold",
        dict(scores=FP32, exponent=FP32, accumulator=FP32, stats=FP32),
        {},
    ),
    "P and V in FP16": ("a cast of V", dict(probs=FP16), {}),
    "P in TF32": ("P V at half the speed", dict(probs=TF32), {}),
    "output in FP32": ("twice the bytes of O", dict(output=FP32), {}),
}


KINDS = ("normal", "uniform", "sink", "repeated maxima", "one-signed V", "peaked", "two maxima, V > 0")


CARRIES = {"as_shipped": (Precision.kernel, "fa2"), "every_step": (Precision.uniform, "fa1")}


BETTER = 0.75  # of the error before: a change that saves less is none


def example(n=512, head_dim=64, seed=0):
    """Q, K, V in BF16 of one head for each of KINDS, (1, heads, n, head_dim)."""
    drawn = [draw(kind, seed, (1, 1, n, head_dim)) for kind in KINDS[:-1]] + [biased(2, "V > 0", seed, n=n, rows=n)[:3]]
    return [torch.cat(heads, 1).bfloat16() for heads in zip(*drawn)]


def read(path, fmt=""):
    """Q, K, V of a file, and how they were used.

    Args:
        fmt: a format of torch's to round them to first, for a file that holds wider numbers than the kernel takes.
        path: .safetensors, .npz or .pt without pickle, with tensors named q, k, v, and, where there were any, mask
            (boolean or added to the scores), causal (one truth value) and scale (one number).

    Returns:
        q, k, v: (batch, heads, sequence, head_dim), or any leading dimensions. options: of a kernel.

    Raises:
        ValueError: the file is of another kind or cannot be read, a name is missing, the shapes do not fit each other,
            or values are NaN or infinite.
    """
    held = tensors(path)
    q, k, v = held["q"], held["k"], held["v"]
    try:
        options = {name: held[name].item() for name in ("causal", "scale") if name in held}
        if "mask" in held:
            options["mask"] = held["mask"]
        check(q, k, v, **options)
        if options.get("mask") is not None and options["mask"].isnan().any():
            raise ValueError("mask: got NaN; accepted are truth values, or numbers that are added to the scores")
        for name, x in (("q", q), ("k", k), ("v", v)):
            if count := int((~x.isfinite()).sum()):
                raise ValueError(
                    f"{name}: {count} of {x.numel()} values are NaN or infinite; accepted are finite values: capture "
                    "a call from before the loss went wrong"
                )
        if fmt:
            to = Format.of(fmt)
            q, k, v = (to(x.double()).to(to.dtype) for x in (q, k, v))
        if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(f"format: got {q.dtype}; accepted are BF16, FP16 and FP32: FORMAT=BF16 rounds them first")
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return q, k, v, options


def risks(q, k, v, options=None, block_kv=64):
    """What makes a head risky.

    Args:
        options: causal, scale, mask. block_kv: tiles, for the rescales.

    Returns:
        rows, one per head (over the batch): head; repeated: share of rows whose maximum is attained by several keys,
        scores in FP32; ones: keys per row whose P is 1 once rounded to q's format, mean; spread: standard deviation of
        a row's visible scores, mean; lost: share of the visible P that rounding to the format makes 0; mass: the
        probability lost so, of the worst row; one_sided: |sum of v| / sum of |v| over the keys, mean over head_dim:
        1 is V of one sign; rescales: that raise a row's maximum, mean.
    """
    fmt, options = Format.of(q.dtype), dict(options or {})
    exact = replace(Precision.uniform("FP64"), scores=FP32)
    of = Options.of(q, k, v, **options)

    def rows(q_i, k, v, scores):
        S = scores(q_i, k, 0)  # (rows, n_kv)
        visible = -math.inf != S
        S = exact.scores(S)
        m = S.amax(-1, keepdim=True)  # (rows, 1)
        P = torch.exp(S - m.where(m != -math.inf, 0.0))
        count = visible.sum(-1, keepdim=True).clamp(min=1)
        mean = torch.where(visible, S, 0.0).sum(-1, keepdim=True) / count
        spread = (torch.where(visible, S - mean, 0.0).square().sum(-1, keepdim=True) / count).sqrt()
        gone = (fmt(P) == 0) & visible & (P > 0)
        return torch.cat([
            ((m == S) & visible).sum(-1, keepdim=True) > 1, ((fmt(P) == 1) & visible).sum(-1, keepdim=True), spread,
            gone.sum(-1, keepdim=True) / count, (P * gone).sum(-1, keepdim=True) / P.sum(-1, keepdim=True).clamp(min=1),
        ], -1).double()  # fmt: skip

    found = by_rows(rows, (q, k, v), exact, of, features=5, width=k.shape[-2])  # (batch, heads, n_q, 5)
    found = _by_head(found)
    precision = Precision.kernel(fmt)
    tiling = Tiling(64, block_kv)
    rescales = _by_head(kernels.rescales(q, k, tiling=tiling, precision=precision, **options)[..., None].double())
    sided = _by_head((v.double().sum(-2).abs() / v.double().abs().sum(-2).clamp(min=1e-300))[..., None, :])
    group = len(found) // len(sided)
    return [
        dict(
            head=head, repeated=x[:, 0].mean().item(), ones=x[:, 1].mean().item(), spread=x[:, 2].mean().item(),
            lost=x[:, 3].mean().item(), mass=x[:, 4].max().item(), one_sided=sided[head // group].mean().item(),
            rescales=rescales[head].mean().item(),
        )
        for head, x in enumerate(found)
    ]  # fmt: skip


def _by_head(x):
    """(heads, batch * rows, features) of (batch, heads, rows, features), whatever dimensions lead."""
    x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])
    return x.transpose(0, 1).flatten(1, 2)


def deviations(q, k, v, options, names):
    """How far kernels are from the golden value on these tensors, by head.

    Returns:
        rows: head, kernel (the first: the golden value rounded to q's dtype, than which none that returns it does
        better), max, rmse, times_max and times_rmse over Baseline's (`validation.yardstick`), problem (of `attempt`).
    """
    fmt = Format.of(q.dtype)
    golden = kernels.golden(q, k, v, inputs=fmt, **options)
    baseline, rows = yardstick(fmt)(q, k, v, **options), []
    outs = {"the golden value, rounded": fmt(golden)}
    problems = {}
    for name in names:
        o, problem = attempt(kernels.plain(name), *(x.clone() for x in (q, k, v)), **options)
        (problems if problem else outs)[name] = problem or o
    own = [deviation(b, g, fmt) for b, g in zip(_by_head(baseline), _by_head(golden))]
    for name, out in outs.items():
        for head, (o, g) in enumerate(zip(_by_head(out), _by_head(golden))):
            d, base = deviation(o, g, fmt), own[head]
            times = dict(times_max=_over(d.max, base.max), times_rmse=_over(d.rmse, base.rmse))
            rows.append(dict(head=head, kernel=name, max=d.max, rmse=d.rmse) | times | dict(problem=""))
    return rows + [dict(head=math.nan, kernel=name, problem=problem) for name, problem in problems.items()]


def _over(error, baseline):
    """A ratio; 1 where both are 0."""
    return error / baseline if baseline else (1.0 if error == 0 else math.inf)


def changes(q, k, v, options, base):
    """What each of CHANGES makes of the error of a kernel.

    Args:
        base: of CARRIES: a kernel that carries FP32, or q's format.

    Returns:
        rows, cheapest first: change ("nothing" first), cost, times_less: root mean square error with nothing changed
        over that with the change, geometric mean over heads.
    """
    fmt = Format.of(q.dtype)
    make, algorithm = CARRIES[base]
    precision, rows, before = make(fmt), [], None
    golden = kernels.golden(q, k, v, inputs=fmt, **options)
    for change, (cost, steps, given) in {"nothing": ("", {}, {}), **CHANGES}.items():
        changed = replace(precision, **steps)
        if steps and not any(getattr(changed, s).precision > getattr(precision, s).precision for s in steps):
            continue  # it has that already
        if algorithm == "fa1" and "offset" in given:
            continue
        o = kernels.tiled(
            q.double(), k.double(), v.double(), tiling=Tiling(64, 64), precision=changed, algorithm=algorithm,
            **given, **options,
        )  # fmt: skip
        rmse = _by_head(o - golden).square().mean((1, 2)).sqrt()  # (heads,)
        before = before if rows else rmse
        some = (rmse > 0) & (before > 0)
        less = (before[some] / rmse[some]).log().mean().exp().item() if some.any() else 1.0
        rows.append(dict(change=change, cost=cost, times_less=less))
    return rows


def cheapest(rows):
    """The first of `changes` that brings the error below BETTER of what it was, or None."""
    return next((row for row in rows[1:] if row["times_less"] > 1 / BETTER), None)


def judge(names, risky, far, better):
    """The Verdict on captured tensors: it passes where the first of the named kernels is within the rule on every head.

    Args:
        risky: table of `risks`. far: of `deviations`. better: base -> rows of `changes`.
    """
    v = Verdict(f"{names[0]}, on these {len(risky)} heads,")
    for name in names:
        rows = far[far.kernel == name]
        if (rows.problem != "").any():
            sentence = f"{name} {rows.problem.iloc[0]}."
            v.fails(sentence) if name == names[0] else v.reasons.append(sentence)
            continue
        worst = rows.loc[rows.times_max.idxmax()]
        sentence = f"The largest error of {name} is {worst.times_max:.1f} times Baseline's (head {worst['head']:.0f})"
        if worst.times_max > RULE["o"] and name == names[0]:
            v.fails(f"{sentence}, where the rule allows {RULE['o']}.")
        else:
            v.reasons.append(f"{sentence}.")
    v.reasons += [
        f"{words}: head {', '.join(str(h) for h in heads)}." for words, heads in flags(risky).items() if heads
    ]
    for base, rows in better.items():
        found = cheapest(rows)
        words = (
            f"{found['change']} ({found['cost']}): {found['times_less']:.1f} times less"
            if found
            else "none of those tried"
        )
        v.reasons.append(f"The cheapest change that brings the error of {base} down: {words}.")
    return v


def flags(risky):
    """Words -> the heads of a table of `risks` they hold for."""
    bias = (risky.repeated > 0.01) & (risky.one_sided > 0.5)
    found = {
        "Several keys attain the maximum and V has mostly one sign, so that rounding O to 16 bits is biased": bias,
        "V has mostly one sign, so that errors of a 16-bit carry add up with N": (risky.one_sided > 0.5) & ~bias,
        "More than a thousandth of a row's probability is lost to underflow of P": risky.mass > 1e-3,
    }
    return {words: risky["head"][heads].tolist() for words, heads in found.items()}
