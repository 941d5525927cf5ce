"""Several kernels at each attention call of somebody's model, on the inputs of that call; the model is not touched."""

import math
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attention_check.isolation.calls import KernelError, call_or_raise
from attention_check.probe.call_sites import CallTracker, SdpaArguments, observing_sdpa, undisturbed
from attention_check.probe.capture import Capture
from attention_check.probe.sampling import Sample, not_finite, sampled, shares_seen, size
from attention_check.probe.skipped import Why, line
from fa_lib import kernels
from fa_lib.execution.untrusted import message
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import baseline_for, eager_baseline
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import over_baseline

SDPA = F.scaled_dot_product_attention
EMULATED = (eager_baseline, kernels.baseline, kernels.as_shipped, kernels.every_step)  # of any rows the same bits
COLUMNS = [
    "model", "step", "layer", "call", "fmt", "n_q", "n_kv", "rows", "hidden", "masked", "later", "own", "head",
    "kernel", "against", "max", "rmse", "scale", "ratio",
]  # fmt: skip


def summary(table: pd.DataFrame, baseline: str | None = "baseline") -> pd.DataFrame:
    """For each model and layer (rows) and kernel (columns) its largest error over Baseline's largest, both over all
    heads and steps, each error in units of its head's golden root mean square. The field's rule allows 2. table,
    baseline: of a Probe."""
    table = table[table.against == "golden"]
    error = table.assign(error=table["max"] / table.scale).groupby(["model", "layer", "kernel"], sort=False).error
    error = error.max().unstack(sort=False)
    own = error[baseline] if baseline in error else pd.Series(math.nan, error.index)
    others = error.drop(columns=baseline, errors="ignore")
    return others.apply(lambda column: over_baseline(column, own)) if len(others) else others


class Probe(TorchFunctionMode):
    """A context manager: within it every `scaled_dot_product_attention` of this thread is computed by some kernels too,
    and compared. What the model computes has the same bits with it and without.

    A step is one run of the outermost module that calls attention, a forward pass; a layer is the name, in that module,
    of the innermost one that runs. A call outside of any module is a step of its own. Heads are the call's own
    (transformers packs those that share keys into one when it decodes). Errors are to the golden value of the inputs as
    the kernel saw them (under autocast: cast).

    Not seen: attention in compiled code (torch.compile), in functions of flash-attn and FlexAttention, written out
    ("eager" in transformers: call `model.set_attn_implementation("sdpa")`), and what activation checkpointing computes
    again. Not compared, and counted in `skipped`: calls with dropout (what was dropped is not known) or with inputs
    that are not finite, and nn.MultiheadAttention in eval mode (a mode around it would turn torch's fast path off, and
    change its bits). On leaving, a warning of one line says what was not compared, how often, why, and what to do.

    Args:
        names: kernels to compare with the one that ran, for `kernels.get`. "as_shipped" is what a flash kernel with
            FP32 sums makes of the same inputs.
        every: one step of a model in so many is compared, with all of its calls. The rows of all compared steps are
            held, a kilobyte each.
        queries: rows of Q compared for each head of a call, spread evenly over the sequence and over up to
            sqrt(queries) entries of the batch; None is all. Kernels emulated here and the golden value compute no
            others; any other kernel runs on the whole call, as the model's does.
        save: path, ending in .safetensors, of the worst call (`capture.Capture`: Q, K, V, mask, causal, scale, o, and
            dO where a backward pass reaches it within), for `fa-lib check tensors` and `fa-lib shrink`; written on
            leaving. It has the largest error of what ran, over the golden root mean square and the unit roundoff. Where
            a call is not finite, the first of these is the worst.
        baseline: the kernel whose error is the yardstick of `table` and `summary`, compared as if it were among names;
            None is none. "baseline" is `rule.baseline_for`: emulated in 16 bits, and with its sums taken one term
            after the other in FP32, where a real kernel rounds sums too.
        also: called with the compared rows of each call, and what the kernel that ran gave for them, float64.

    Attributes:
        rows: dicts of where it was, rows (of Q compared for each head), hidden (of all these, the ones that see no key,
            left out), masked, later and own (of `sampling.shares_seen`), head, kernel ("ran", or a name), against
            ("golden", and "ran" for the others), max, rmse, scale: the root mean square of the golden value, and ratio:
            max over Baseline's at this call and head (NaN against "ran"). Where differences are not finite, max is inf.
        calls: calls seen, compared or not.
        skipped: Counter of (kernel, why): what a kernel refused, as a text, or, for "all", calls that were not
            compared: a `skipped.Why`, or an error's text.
        nonfinite: of the compared steps the first call with a NaN or an infinity: where it was, and tensor: "q", "k",
            "v", "mask", or "o" where the inputs are finite and a row that sees a key is not. None: there is none.

    Raises:
        ValueError: a kernel is not known or takes more than q, k and v; another argument does not fit.
    """

    def __init__(
        self, names: str | Iterable[KernelRef | str] = ("as_shipped",), every: int = 1, queries: int | None = 256,
        save: str | Path | None = None, baseline: str | None = "baseline",
        also: Callable[[Sample, Tensor], None] | None = None,
    ):  # fmt: skip
        super().__init__()
        beside = [names] if isinstance(names, str) else names
        found = {f"{name}": kernels.get(name) for name in (baseline, *beside) if name is not None}
        for name, fn in found.items():
            if kernels.emulates(fn) or name in ("ran", "golden"):
                raise ValueError(f"names: got {name!r}; accepted are kernels of q, k, v alone, such as 'as_shipped'")
        self.kernels = {name: kernels.plain(fn) for name, fn in found.items()}
        for name, value in dict(every=every, queries=queries).items():
            if not (type(value) is int and value >= 1 or value is None and name != "every"):
                none = ", or None" * (name != "every")
                raise ValueError(f"{name}: got {value!r}; accepted is a whole number from 1{none}")
        if save is not None and Path(save).suffix != ".safetensors":
            raise ValueError(f"save: got {str(save)!r}; accepted is a path that ends in .safetensors, or None")
        self.every, self.queries, self.save, self.baseline, self.also = every, queries, save, baseline, also
        self.rows, self.calls, self.skipped = [], 0, Counter()
        self.nonfinite = None
        self._largest, self._worst = 0.0, None  # of the worst call so far: its error and Capture
        self._places = CallTracker(lambda why: self._skip("all", why))

    @property
    def table(self) -> pd.DataFrame:
        """`rows` as a tidy pandas.DataFrame: model, step, layer, call (in this step and layer), fmt, n_q, n_kv, and
        what every row has."""
        return pd.DataFrame(self.rows, columns=None if self.rows else COLUMNS)

    def summary(self) -> pd.DataFrame:
        """`summary` of `table`: for each model and layer every kernel's largest error over Baseline's.

        Raises:
            ValueError: there is no Baseline to compare with.
        """
        if self.baseline is None:
            raise ValueError("baseline: got None; accepted for a summary is a kernel")
        return summary(self.table, self.baseline)

    def __call__(self, q, k, v, o, row=(), **options):
        """Compare at one call: q, k, v, its options (causal, scale, mask), and o, the output the model goes on with."""
        with undisturbed(o.device):
            out = o
            q, k, v, o = (x.detach()[(None,) * (4 - x.ndim)] for x in (q, k, v, o))
            q, k, v = q.expand(*o.shape[:2], -1, -1), *(x.expand(len(o), -1, -1, -1) for x in (k, v))
            wrong = not_finite(q, k, v, o, options)
            if wrong and self.nonfinite is None:
                self.nonfinite = dict(row) | dict(tensor=wrong)
                self._hold(math.inf, self.nonfinite, (q, k, v, options, out))
            if wrong not in (None, "o"):
                return self._skip("all", Why.NONFINITE)
            sample = sampled(q, k, v, self.queries, **options)
            golden = kernels.golden(sample.q, sample.k, sample.v, inputs=Format.of(q.dtype), **sample.options)
            outs = {"ran": sample.taken(o).double()}  # (entries, heads, rows, head_dim), as the golden value
            for name in self.kernels:
                try:
                    outs[name] = self._computed(name, sample, (q, k, v), options).double()
                except KernelError as error:
                    self._skip(name, error)
            if self.also is not None and not wrong:
                self.also(sample, outs["ran"])
            seen = sample.seeing(golden)  # (entries, heads, rows, 1)
            pairs = [(name, "golden") for name in outs] + [(name, "ran") for name in outs if name != "ran"]
            sizes = [size(outs[a] - (golden if b == "golden" else outs[b]), seen) for a, b in pairs]
            count = seen.sum((0, 2, 3)).double().expand(2, -1)
            (count, _), (_, scale), *sizes = torch.stack([count, size(golden, seen), *sizes]).tolist()
        row = dict(row) | dict(rows=seen[:, 0].numel(), hidden=seen.numel() - int(sum(count)))
        row |= shares_seen(q, k, options)
        for head, (number, rms) in enumerate(zip(count, scale)):
            if number:  # else no row of this head sees a key
                errors = {pair: (largest[head], rmse[head]) for pair, (largest, rmse) in zip(pairs, sizes)}
                self._add(row | dict(head=head), errors, rms, (q, k, v, options, out))

    def _computed(self, name, part, tensors, options):
        """The rows of a Sample as a kernel computes them: these alone, or out of the call."""
        fn, q = self.kernels[name], tensors[0]
        if name == self.baseline == "baseline":
            fn = baseline_for(Format.of(q.dtype))
        if fn in EMULATED:
            return call_or_raise(fn, part.options, part.q, part.k, part.v)
        own = (x.clone() for x in tensors)  # a kernel that writes to them harms nobody
        return part.taken(call_or_raise(fn, options, *own))

    def _add(self, given, errors, rms, call):
        """Rows of one head of a call. errors: (kernel, against) -> largest and root mean square. rms: the golden
        value's."""
        own = errors.get((self.baseline, "golden"))
        for (name, against), (largest, rmse) in errors.items():
            row = given | dict(kernel=name, against=against, max=largest, rmse=rmse, scale=rms)
            if self.baseline is not None:
                row["ratio"] = over_baseline(largest, own[0]) if own and against == "golden" else math.nan
            self.rows.append(row)
            if self.save and (name, against) == ("ran", "golden"):
                self._keep(row, call)

    def _keep(self, row, call):
        """Hold a call for `save`, where its error is the largest so far."""
        scale = row["scale"] * Format.of(call[0].dtype).unit_roundoff
        error = row["max"] / scale if scale else math.inf if row["max"] else 0.0
        if error > self._largest:
            about = {name: x for name, x in row.items() if name not in ("against", "max", "rmse", "scale", "ratio")}
            self._hold(error, about | dict(deviation=row["max"], golden_rms=row["scale"]), call)

    def _hold(self, error, about, call):
        if self.save:
            self._largest, self._worst = error, Capture.of(*call, about={name: str(x) for name, x in about.items()})

    def _skip(self, kernel, why):
        if isinstance(why, Exception):  # lengths and counts would make every call another reason
            name = "" if isinstance(why, KernelError) else f"{type(why).__name__}: "
            why = re.sub(r"\d+", "#", name + message(why))
        key = kernel, why
        self.skipped[key if key in self.skipped or len(self.skipped) < 100 else (kernel, "other reasons")] += 1

    def __enter__(self):
        if self._places.hooks:
            raise RuntimeError("probe: it is active already; accepted is a second Probe, or this one once it was left")
        self._places.__enter__()
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        self._places.__exit__()
        super().__exit__(kind, error, trace)
        if self._worst and self.save:
            try:
                self._worst.write(self.save)
            except Exception as problem:  # hours of training may stand above this line
                warnings.warn(f"save: the worst call could not be written to {self.save}: {problem}", stacklevel=2)
        if words := line(self.skipped, self.nonfinite):
            warnings.warn(words, stacklevel=2)
        if kind is None and not self.calls:
            warnings.warn("Probe: no scaled_dot_product_attention was seen; its text says what is not", stacklevel=2)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward and not torch.compiler.is_compiling():
            before = self.calls
            with observing_sdpa(self._seen):
                result = func(*args, **kwargs)
            if self.calls == before and kwargs.get("need_weights", True):
                self._skip("all", Why.WEIGHTS)
            return result
        o = func(*args, **kwargs)
        if func is SDPA and not torch.compiler.is_compiling():
            self._seen(o, args, kwargs)
        return o

    def _seen(self, o, args, kwargs):
        if threading.get_ident() != self._places.thread:
            return
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]  # torch documents it
            return self._skip("all", Why.TRACED)
        try:
            self.calls += 1
            place = self._places.here()
            if place["step"] % self.every == 0:
                self._compare(place, o, SdpaArguments(*args, **kwargs))
        except Exception as error:
            self._skip("all", error)

    def _compare(self, place, o, asked):
        if asked.dropout_p:
            return self._skip("all", Why.DROPOUT)
        if type(o) is not torch.Tensor or o.is_nested or o.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._skip("all", f"{type(o).__name__}: accepted are plain tensors, and no CUDA graph's capture")
        q, k, v = (x.detach().to(o.dtype) for x in (asked.query, asked.key, asked.value))  # as autocast does
        fmt = Format.of(o.dtype).name
        self(q, k, v, o, place | dict(fmt=fmt, n_q=q.shape[-2], n_kv=k.shape[-2]), **asked.options(o.dtype))
