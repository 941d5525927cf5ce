"""An Explanation as a paragraph to be pasted into an issue, with a reproduction that needs numpy alone."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attention_check.conventions.evidence import Evidence

MARKDOWN = """**{headline}**

{tensors}. {options}

{evidence}
"""
REPRODUCED = """
The worst rows of a head, with their keys, are in `{arrays}` (attached). With numpy alone:

```python
{script}```

prints

```
{printed}```
"""


def issue(call: Evidence, gravest: str, lines: list[str], arrays: str, script: str, printed: str) -> str:
    """The paragraph, in Markdown.

    Args:
        gravest: the line that comes first. lines: of `explain_words.lines`. arrays: the name of the reproduction's
            file. script, printed: its program, and what that prints; "" where there is none.
    """
    tensors = ", ".join(f"{name} {tuple(getattr(call, name).shape)}" for name in "qkvo")
    text = MARKDOWN.format(
        headline=gravest, tensors=f"{tensors}, inputs in {call.fmt.name}, o in {_dtype(call.o)}",
        options=f"Called with {options_in_words(call.options)}." if call.options else "Called without options.",
        evidence="\n".join(f"- {line.strip()}" for line in lines if line != gravest),
    )  # fmt: skip
    return text + (REPRODUCED.format(arrays=arrays, script=script, printed=printed) if script else "")


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of a call, "" where there are none: "causal=True, mask=bool (256, 256)"."""
    return ", ".join(
        f"{name}={_dtype(x)} {tuple(x.shape)}" if isinstance(x, Tensor) else f"{name}={x}"
        for name, x in options.items()
    )


def _dtype(x):
    return str(x.dtype).removeprefix("torch.")
