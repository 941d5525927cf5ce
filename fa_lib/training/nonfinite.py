"""Why a run's loss was not finite: where the first NaN or infinity came up in the step that ended it, and what is left.

Nothing here runs in a step whose loss is finite.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from fa_lib.training.model import TextToImage
from fa_lib.training.run_folder import last_good, read_result


def divergence(folder: Path, step: int, model: TextToImage, loss: Callable[[], torch.Tensor] | None) -> dict:
    """Build what run.json says of a divergence.

    Args:
        folder: of the run. step: at which it diverged.
        model: of the run.
        loss: of `traced`; None where no pass is to be repeated.

    Returns:
        dict: step, weights (the name of the first tensor of weights with a NaN or an infinity, or None), the keys of
        `traced` (None where there is no trace), and last_good, the name of a weights file in `folder`, or None.
    """
    bad, good = _first((name, p.isfinite().all()) for name, p in model.named_parameters()), last_good(folder)
    trace = traced(model, loss) if loss else dict(repeated=None, module=None, attention=None)
    return dict(step=step, weights=bad) | trace | dict(last_good=good.name if good else None)


def traced(model: TextToImage, loss: Callable[[], torch.Tensor]) -> dict:
    """Repeat a step's forward pass and look at every module's output, in the order in which they come.

    Args:
        model: the model.
        loss: makes the pass, and returns the loss, a tensor of one number.

    Returns:
        dict: repeated (whether the loss was not finite again), module (name of the first module whose output is not
        finite, or of the attention module whose kernel's o is not, of finite q, k, v; None: there is none), attention
        (of the first attention call with such a tensor: layer, kind, "self" or "cross", and tensor, "q", "k", "v" or
        "o"; None: there is none).
    """
    modules, calls = [], []  # (name or dict, whether it is finite), in order
    names = {module.place: name for name, module in model.named_modules() if hasattr(module, "place")}

    def attention(place, q, k, v, o):
        layer, kind = place
        finite = {tensor: x.isfinite().all() for tensor, x in dict(q=q, k=k, v=v, o=o).items()}
        calls.extend((dict(layer=layer, kind=kind, tensor=tensor), finite[tensor]) for tensor in finite)
        modules.append((names[place], finite["o"]))  # q, k and v have been outputs of modules before

    def module(name):
        def hook(_, __, output):
            tensors = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            if tensors:  # the first is the output proper: beside it T5 hands on masks, which may hold -inf
                modules.append((name, tensors[0].isfinite().all()))

        return hook

    hooks = [child.register_forward_hook(module(name)) for name, child in model.named_modules() if name]
    model.attention.probe = attention
    try:
        repeated = not loss().isfinite()
    finally:
        model.attention.probe = None
        for handle in hooks:
            handle.remove()
    return dict(repeated=repeated, module=_first(modules), attention=_first(calls))


def _first(checks):
    """Return the first item of `checks`, (item, whether it is finite), that is not finite; None where all are."""
    return next((item for item, finite in checks if not finite), None)


def divergence_sentence(folder: str | Path) -> str:
    """Say in one sentence why the run of a folder diverged, and which its last good weights are; "" where it did not.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OSError: run.json is damaged, or is not there.
    """
    record = read_result(Path(folder) / "run.json")["divergence"]
    if record is None:
        return ""
    if record["weights"]:
        where = f"weights are not finite, {record['weights']} is the first"
    elif not record["repeated"]:
        where = "the same step again is finite, so its kernel does not repeat its bits"
    elif record["module"] is None:
        where = "the output of every module is finite, their loss is not"
    else:
        where = f"{record['module']} is the first module with a NaN or an infinity"
    if call := record["attention"]:
        where += f", layer {call['layer']}, {call['kind']}, {call['tensor']} the first of an attention call"
    good = "the last good weights are {}".format(Path(folder) / record["last_good"]) if record["last_good"] else ""
    return f"diverged at step {record['step']}: {where}; {good or 'no weights are good'}"
