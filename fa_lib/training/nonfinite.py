"""Why a run's loss was not finite: where the first NaN or infinity came up in the step that ended it, and what is left.

Nothing here runs in a step whose loss is finite.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from fa_lib.training.devices import local
from fa_lib.training.model import TextToImage
from fa_lib.training.run_folder import last_good, read_result

Least = Callable[[int], int]


def bad_weights(model: TextToImage, least: Least) -> str | None:
    """The name of a model's first tensor of weights with a NaN or an infinity; None where all are finite."""
    named = [(name, local(p).isfinite().all()) for name, p in model.named_parameters()]
    return _first(named, least)


def traced(model: TextToImage, loss: Callable[[], torch.Tensor], least: Least) -> dict:
    """A step's forward pass, made once more with every module's output looked at, in the order in which they come.

    Args:
        model: whose pass it is. loss: makes it, and returns the loss, over all processes.
        least: of a whole number over the processes, each of which must call this.

    Returns:
        dict: repeated (whether the loss was not finite again), module (name of the first module whose output is not
        finite, or of the attention module whose kernel's o is not, of finite q, k, v; None: there is none), attention
        (of the first attention call with such a tensor: layer, kind, "self" or "cross", and tensor, "q", "k", "v" or
        "o"; None: there is none).
    """
    modules, calls = [], []  # (what is told, whether it is finite), in order
    names = {module.place: name for name, module in model.named_modules() if hasattr(module, "place")}

    def attention(place, q, k, v, o, **_):
        layer, kind = place
        right = {tensor: x.isfinite().all() for tensor, x in dict(q=q, k=k, v=v, o=o).items()}
        calls.extend((dict(layer=layer, kind=kind, tensor=tensor), finite) for tensor, finite in right.items())
        modules.append((names[place], right["o"]))  # q, k and v have been outputs of modules before

    def module(name):
        def seen(_, __, output):
            tensors = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            if tensors:  # the first is the output proper: beside it T5 hands on masks, which may hold -inf
                modules.append((name, tensors[0].isfinite().all()))

        return seen

    hooks = [each.register_forward_hook(module(name)) for name, each in model.named_modules() if name]
    model.attention.probe = attention
    try:
        repeated = not loss().isfinite()
    finally:
        model.attention.probe = None
        for hook in hooks:
            hook.remove()
    return dict(repeated=repeated, module=_first(modules, least), attention=_first(calls, least))


def _first(seen, least):
    """Of (what, whether it is finite), the first that is not, on any process; None where all are."""
    at = least(next((i for i, (_, finite) in enumerate(seen) if not finite), len(seen)))
    return seen[at][0] if at < len(seen) else None


def divergence(folder: Path, step: int, weights: str | None, trace: dict) -> dict:
    """What run.json says of it: step, weights, the items of `traced`, and last_good, the name of a file beside it."""
    good = last_good(folder)
    none = dict(repeated=None, module=None, attention=None)
    return dict(step=step, weights=weights) | none | trace | dict(last_good=good.name if good else None)


def divergence_sentence(folder: str | Path) -> str:
    """In one sentence why the run of a folder diverged, and its last good weights; "" where it did not.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OSError: run.json is damaged, or is not there.
    """
    found = read_result(Path(folder) / "run.json")["divergence"]
    if found is None:
        return ""
    if found["weights"]:
        where = f"weights are not finite, {found['weights']} is the first"
    elif not found["repeated"]:
        where = "the same step again is finite, so its kernel does not repeat its bits"
    elif found["module"] is None:
        where = "the output of every module is finite, their loss is not"
    else:
        where = f"{found['module']} is the first module with a NaN or an infinity"
    call = found["attention"]
    if call:
        where += f", layer {call['layer']}, {call['kind']}, {call['tensor']} the first of an attention call"
    good = (
        f"the last good weights are {Path(folder) / found['last_good']}"
        if found["last_good"]
        else "no weights are good"
    )
    return f"diverged at step {found['step']}: {where}; {good}"
