"""Does a model answer a prompt alike alone, in a batch, padded, and token by token with a cache?

`Runs` keeps what a model was called with. `compared` runs it again on parts of that, and compares each call of
scaled_dot_product_attention (q, k, v, o) and the output, at the prompt's own positions. Two right runs differ by
rounding: how far is measured by runs in which every module's output is rounded once more, at random.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from attention_check.probe.call_sites import CallTracker, SdpaArguments, observing_sdpa, same_random_numbers
from fa_lib.execution.untrusted import message

SDPA = F.scaled_dot_product_attention
KEPT, MODELS, ENTRIES = 16, 4, 4  # runs; models; entries of a batch that run alone
PADDING, DECODED = 5, 4  # tokens put before and behind a prompt; tokens decoded one by one
NUDGES, TIMES, ORDER = 2, 8, 16  # nudged runs; times as far as they two right runs may be; roundings of a nudge in FP32
OUTPUT = "output"


@dataclass(frozen=True, eq=False)
class Run:
    """One call of a model: of its outermost module."""

    model: nn.Module
    args: tuple
    kwargs: dict
    autocast: torch.dtype | None = None

    def tensors(self) -> list[Tensor]:
        return [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor) and x.ndim]

    @property
    def ids(self) -> Tensor | None:
        """Token numbers, (batch, sequence)."""
        tensors = [x for name, x in self.kwargs.items() if name != "attention_mask"]
        whole = (x for x in (self.kwargs.get("input_ids"), *self.args, *tensors) if isinstance(x, Tensor))
        return next((x for x in whole if x.ndim == 2 and x.dtype in (torch.int64, torch.int32)), None)

    @property
    def first(self) -> Tensor:
        """The token numbers, or the first tensor: its first dimension is the batch."""
        return self.tensors()[0] if self.ids is None else self.ids

    @property
    def batch(self) -> int:
        return len(self.first)

    @property
    def length(self) -> int | None:
        return None if self.ids is None else self.ids.shape[1]

    def takes(self, *names: str) -> bool:
        return set(names) <= inspect.signature(self.model.forward).parameters.keys()

    def cut(self, entry: int, keep: Tensor | None) -> "Run":
        """The run of one entry, at some positions."""

        def part(x):
            if not isinstance(x, Tensor) or not x.ndim:
                return x
            x = x[entry : entry + 1] if len(x) == self.batch else x
            for dim in range(1, x.ndim):
                x = x.index_select(dim, keep) if keep is not None and x.shape[dim] == self.length else x
            return x

        kwargs = {name: part(x) for name, x in self.kwargs.items()}
        return replace(self, args=tuple(part(x) for x in self.args), kwargs=kwargs)


class Runs(TorchFunctionMode):
    """A context manager that keeps what the first KEPT runs of modules that call attention were called with, but for
    modules that a run changes, and for runs with anything but tensors and plain values: a cache is changed by each."""

    def __init__(self):
        super().__init__()
        self.found: list[Run] = []

    def __enter__(self):
        self._depth, self._attends = 0, False
        entered = register_module_forward_pre_hook(self._entered)
        self._hooks = [entered, register_module_forward_hook(self._left, with_kwargs=True, always_call=True)]
        return super().__enter__()

    def __exit__(self, *about):
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*about)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self._attends |= func is SDPA or func is F.multi_head_attention_forward
        return func(*args, **kwargs or {})

    def _entered(self, module, args):
        if not torch.compiler.is_compiling():
            self._attends &= self._depth > 0
            self._depth += 1

    def _left(self, module, args, kwargs, output):
        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        changes = any(x.training and getattr(x, "track_running_stats", False) for x in module.modules())  # batch norms
        if self._depth == 0 and self._attends and len(self.found) < KEPT and not changes:
            run, given = Run(module, args, dict(kwargs)), (*args, *kwargs.values())
            if run.tensors() and all(x is None or isinstance(x, (Tensor, bool, int, float, str)) for x in given):
                kind = run.tensors()[0].device.type
                autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                self.found.append(replace(run, autocast=autocast))


@dataclass
class Calls(TorchFunctionMode):
    """The tensors of one run: (layer, name) of each call of attention in turn, and the output."""

    found: list[tuple[str, str, Tensor]] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.places = CallTracker(lambda why: None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.multi_head_attention_forward:
            with observing_sdpa(self.seen):
                return func(*args, **kwargs or {})
        o = func(*args, **kwargs or {})
        if func is SDPA:
            self.seen(o, args, kwargs or {})
        return o

    def seen(self, o, args, kwargs):
        layer = f"{self.places.here()['layer']}"
        given = SdpaArguments(*args, **kwargs)
        for name, x in zip("qkvo", (given.query, given.key, given.value, o)):
            shared = o.shape[-3] // x.shape[-3] if x.ndim > 3 else 1  # heads of q for one of k: repeated or not
            self.found.append((layer, name, x.detach().repeat_interleave(shared, -3) if shared > 1 else x.detach()))


@lru_cache(maxsize=4)  # several ways have a side in common
def played(run: Run, seed: int = 0, nudge: int | None = None) -> tuple[list[tuple[str, str, Tensor]], Any]:
    """Run the model. Returns its calls' tensors and output, and the output as it came. seed: of torch's random numbers.
    nudge: of the numbers that round each module's output once more."""
    cast = torch.autocast(run.tensors()[0].device.type, run.autocast, enabled=run.autocast is not None)
    nudged = nullcontext() if nudge is None else _nudged(torch.Generator().manual_seed(nudge))
    with torch.no_grad(), same_random_numbers(), cast, nudged:
        torch.manual_seed(seed)
        with Calls() as calls, calls.places:
            output = run.model(*run.args, **run.kwargs)
    if (answer := first_tensor(output)) is not None:
        calls.found.append(("", OUTPUT, answer.detach()))
    return calls.found, output


@contextmanager
def _nudged(random: torch.Generator) -> Iterator[None]:
    def nudge(module, args, output):
        if isinstance(output, Tensor) and output.is_floating_point() and next(module.children(), None) is None:
            u, wide = torch.finfo(output.dtype).eps / 2, torch.float32
            if output.itemsize >= 4:  # sums are in the same format, and in another order
                u, wide = ORDER * u, torch.float64
            factor = torch.empty(output.shape, dtype=wide).uniform_(1 - u, 1 + u, generator=random)
            return (output.to(wide) * factor.to(output.device)).to(output.dtype)
        return None

    hook = register_module_forward_hook(nudge)  # pyright: ignore
    try:
        yield
    finally:
        hook.remove()


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor of a model's output; of several its logits."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    named = output if isinstance(output, dict) else {}
    values = [named["logits"]] if "logits" in named else [*(named.values() if named else output or ())]
    return next((x for x in values if isinstance(x, Tensor) and x.is_floating_point()), None)


@dataclass(frozen=True)
class Side:
    """What one way gives for a prompt: tensors of a run, and the prompt's entry and positions among the run's."""

    tensors: list[tuple[str, str, Tensor]]
    run: Run
    entry: int = 0
    keep: Tensor | None = None  # all

    def of(self, name: str, x: Tensor) -> Tensor | None:
        """The prompt's own part of a tensor; None where it cannot be told."""
        if x.ndim < 2 or len(x) != self.run.batch:
            return None
        x, dim = x[self.entry], 0 if name == OUTPUT else -2
        if self.keep is None:
            return x
        if x.ndim > 1 and x.shape[dim] == self.run.length:
            return x.index_select(dim, self.keep)
        ends = self.keep[-1] + 1 == self.run.length
        return x if name == OUTPUT and x.ndim == 1 and ends else None  # of the last position alone


def distances(one: Side, other: Side) -> dict[int, float]:
    """Number of a tensor that both have -> the largest difference over the root mean square of `one`."""
    found = {}
    for i, ((_, name, x), (_, _, y)) in enumerate(zip(one.tensors, other.tensors)):
        a, b = one.of(name, x), other.of(name, y)
        if a is not None and b is not None and a.shape == b.shape:
            a, b = a.double(), b.double()
            rms = a.square().mean().sqrt().clamp(min=1e-300)
            found[i] = float(((a - b).abs().max() / rms).nan_to_num(nan=float("inf")))
    return found


def compared(runs: list[Run], say: Callable[[str, int], Any] = lambda way, entry: None) -> list[dict]:
    """Compare each way in which a model can run its prompts.

    Returns:
        a row for each: way; entry, of the batch; layer and tensor, "q", "k", "v", "o" or "output": of the first
        o or output that differs by more than TIMES what two right runs do, else the furthest; where attention got
        another q, k or v, the first of these; times: how much; differs; why: it could not be run.
    """
    rows = []
    for way, entry, one, other, base in _ways(runs):
        say(way, entry)
        row = dict(way=way, entry=entry, layer="", tensor="", times=float("nan"), differs=False, why="")
        try:
            rows.append(row | _first(one(), other(), base))
        except Exception as error:  # of a stranger's model
            rows.append(row | dict(why=f"{type(error).__name__}: {message(error)}"))
        if way == "again" and rows[-1]["differs"]:  # what is random differs in every way
            if any(run.model.training for run in runs):
                rows[-1] |= dict(differs=False, why="something in it is random, as dropout in training is")
            break
    played.cache_clear()
    return rows


def _first(one: Side, other: Side, base: Callable[[int], Side]) -> dict:
    found, nudged = distances(one, other), [distances(one, base(seed)) for seed in range(1, NUDGES + 1)]
    results = [i for i in found if one.tensors[i][1] in ("o", OUTPUT)]  # q and k may be at other positions
    if not results:
        return dict(why="its tensors cannot be told apart by entry and position")
    floor = max(torch.finfo(x.dtype).eps for _, _, x in one.tensors)
    times = {i: found[i] / max(*(each[i] for each in nudged), floor) for i in found}
    at = next((i for i in results if times[i] > TIMES), max(results, key=times.__getitem__))
    differs = times[at] > TIMES
    if not differs and all(one.tensors[i][1] == OUTPUT for i in found):
        return dict(why="no call of attention is seen in it")
    if differs and one.tensors[at][1] == "o":  # what attention got
        at = next((i for i in range(at - 3, at) if times.get(i, math.inf) > TIMES), at)
    layer, tensor, _ = one.tensors[at]
    return dict(layer=layer, tensor=tensor, times=times.get(at, math.inf), differs=differs)


def _ways(runs: list[Run]):
    """Yield each way, its entry, what makes both sides, and what makes the first with one more rounding."""
    for model in list(dict.fromkeys(run.model for run in runs))[:MODELS]:
        yield from _ways_of(max((run for run in runs if run.model is model), key=lambda run: run.batch))


def _side(run, entry=0, keep=None, **how):
    return Side(played(run, **how)[0], run, entry, keep)


def _pair(one, other):
    return (lambda: _side(*one)), (lambda: _side(*other)), (lambda seed: _side(*one, nudge=seed))


def _batch_first(run):
    """Whether the first dimension of the inputs is the batch, and not the sequence."""
    with suppress(Exception):  # of a stranger's model, which was told before
        q = played(run)[0][0][2]
        return run.batch == len(q) != q.shape[-2]


def _ways_of(run):
    ids = run.ids
    yield "again", 0, lambda: _side(run), lambda: _side(run, seed=1), lambda seed: _side(run, nudge=seed)
    mask = run.kwargs.get("attention_mask")
    every = None if ids is None else torch.arange(run.length, device=ids.device)
    padded = ids is not None and isinstance(mask, Tensor) and mask.shape == ids.shape
    kept: list[Any] = [mask[entry].bool().nonzero()[:, 0] if padded else every for entry in range(run.batch)]
    if ids is None and not _batch_first(run):
        return
    for entry, keep in enumerate(kept[:ENTRIES]):
        if run.batch > 1 or padded and len(keep) < run.length:
            yield "alone", entry, *_pair((run.cut(entry, keep), 0, None), (run, entry, keep))
    if ids is None or not run.takes("input_ids"):
        return
    prompt = ids[:1, kept[0]]
    n, bare = prompt.shape[1], replace(run, args=(), kwargs=dict(input_ids=prompt))
    bare = run if prompt.shape == ids.shape and run.tensors() == [ids] else bare  # the same run
    if run.takes("attention_mask") and n:
        kwargs = dict(input_ids=F.pad(prompt, (PADDING, PADDING)))
        kwargs["attention_mask"] = seen = F.pad(torch.ones_like(prompt), (PADDING, PADDING))
        if run.takes("position_ids"):
            kwargs["position_ids"] = (seen.cumsum(1) - 1).clamp(min=0)
        keep = torch.arange(n, device=ids.device) + PADDING
        yield "padding", 0, *_pair((bare, 0, None), (replace(bare, args=(), kwargs=kwargs), 0, keep))
    if run.takes("past_key_values", "use_cache") and n > DECODED:
        decoded = lambda: Side(_decoded(bare, prompt), bare)  # noqa: E731
        yield "cache", 0, lambda: _side(bare), decoded, lambda seed: _side(bare, nudge=seed)


def _decoded(run: Run, prompt: Tensor) -> list[tuple[str, str, Tensor]]:
    """Prefill all but the last tokens, decode these one by one; q, o and the output, over all positions."""
    cut = prompt.shape[1] - DECODED
    found, past = [], {}
    for chunk in (prompt[:, :cut], *prompt[:, cut:].split(1, 1)):
        part = replace(run, args=(), kwargs=dict(input_ids=chunk, use_cache=True, **past))
        tensors, output = played.__wrapped__(part)
        past = dict(past_key_values=output["past_key_values"])
        found.append(tensors)
    whole = []
    for parts in zip(*found):
        (layer, name, _), tensors = parts[0], [x for _, _, x in parts]
        joined = tensors[-1] if name in ("k", "v") else torch.cat(tensors, 1 if name == OUTPUT else -2)
        whole.append((layer, name, joined))
    return whole
