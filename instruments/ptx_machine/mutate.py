"""One changed instruction of a kernel: `changes` lists what may be changed, `changed` is the PTX text with one change.

A change may be equivalent: of code that nothing reaches, of a comparison that is never equal. Nothing here says so.

Three environment variables reach a test's process: RECORD names a folder for the PTX of the kernels that are launched,
CHANGE is a change as JSON, which every kernel of that text has, and WITHIN ("file:function") limits both to kernels
that are launched while this Python function runs.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from ptx_machine.syntax import BITS, Entry, Instruction

RECORD, CHANGE, WITHIN = "PTX_MACHINE_RECORD", "PTX_MACHINE_CHANGE", "PTX_MACHINE_WITHIN"
DEFAULT_GPU = "PTX_MACHINE_GPU"  # of kernels that name none
GUARD = re.compile(r"^@(!?)(%\w+)\s+")
OFF = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi"}
LOG2_E, NEARBY = "0f3FB8AA3B", "0f3FB90000"  # 1.442695, 1.4453125
WHOLE = re.compile(r"(?<![\w%$.+-])-?\d+(?![\w.])")
HALF = "cvt.rn.f16.f32 %changed, {0}; cvt.f32.f16 {0}, %changed;"


@dataclass(frozen=True)
class Change:
    """A change of one instruction.

    Attributes:
        kernel: its name. index: of the instruction. line: of the PTX text. kind: a key of KINDS.
        before, after: the statement, as text.
        source: "file:line" that it was compiled from, or "".
    """

    kernel: str
    index: int
    line: int
    kind: str
    before: str
    after: str
    source: str = ""


def _operands(text: str) -> tuple[str, list[str]]:
    """Split a statement into its name, with a guard, and its operands."""
    head, rest = re.match(r"((?:@!?%\w+\s+)?\S+)\s*(.*);$", text, re.DOTALL).groups()  # pyright: ignore
    return head, [each.strip() for each in re.split(r",(?![^{\[]*[}\]])", rest)] if rest else []


def _joined(head: str, operands: list[str]) -> str:
    return f"{head} {', '.join(operands)};"


def _rounding(text: str, each: Instruction) -> Iterator[str]:
    if "rn" in each.words and each.name in ("add", "sub", "mul", "fma", "cvt", "div"):
        yield text.replace(".rn", ".rz", 1)
    elif each.name in ("add", "sub", "mul") and each.types == ("f32",) and not {"rz", "rm", "rp"} & {*each.words}:
        yield text.replace(each.name, f"{each.name}.rz", 1)


def _accumulators(text: str, each: Instruction) -> Iterator[str]:
    """Round the sums of an mma in FP32 to FP16, behind it."""
    if each.name == "mma" and each.types[:1] == ("f32",) and each.guard is None:
        sums = re.findall(r"%\w+", _operands(text)[1][0])
        yield " ".join([f"{{ .reg .b16 %changed; {text}", *(HALF.format(name) for name in sums), "}"])


def _operand(text: str, each: Instruction) -> Iterator[str]:
    """Swap the operands of a difference or a quotient; leave out c of a * b + c in floats."""
    head, operands = _operands(text)
    if each.name in ("sub", "div") and len(operands) == 3:
        yield _joined(head, [operands[0], operands[2], operands[1]])
    if each.name == "fma" and each.types[-1:] == ("f32",):
        yield _joined(head, [*operands[:3], "0f00000000"])


def _predicate(text: str, each: Instruction) -> Iterator[str]:
    if match := GUARD.match(text):
        yield GUARD.sub(f"@{'' if match[1] else '!'}{match[2]} ", text)
        yield GUARD.sub("", text)


def _comparison(text: str, each: Instruction) -> Iterator[str]:
    if each.name in ("setp", "set"):
        for word in each.words:
            if word in OFF:
                yield text.replace(f".{word}.", f".{OFF[word]}.", 1)


def _immediate(text: str, each: Instruction) -> Iterator[str]:
    """Add 1 to a whole number that is the last operand."""
    head, operands = _operands(text)
    arithmetic = ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "setp", "mov", "selp", "min", "max")
    if each.name in arithmetic and operands and WHOLE.fullmatch(operands[-1]):
        yield _joined(head, [*operands[:-1], str(int(operands[-1]) + 1)])


def _barrier(text: str, each: Instruction) -> Iterator[str]:
    wait = each.words[:2] == ("cp", "async") and each.words[2].startswith("wait")
    if wait or each.name in ("bar", "barrier"):
        yield ";"


def _rescale(text: str, each: Instruction) -> Iterator[str]:
    """Leave out the factor of a product in FP32."""
    if each.name == "mul" and each.types == ("f32",):
        head, (result, a, b) = _operands(text)
        guard = GUARD.match(head)
        kept = b if a.startswith("0f") else a
        yield f"{guard[0] if guard else ''}mov.f32 {result}, {kept};"


def _exponent(text: str, each: Instruction) -> Iterator[str]:
    if LOG2_E.lower() in text.lower():
        yield re.sub(LOG2_E, NEARBY, text, flags=re.IGNORECASE)


def _maximum(text: str, each: Instruction) -> Iterator[str]:
    if each.name == "max":
        yield text.replace("max.", "min.", 1)


def _offset(text: str, each: Instruction) -> Iterator[str]:
    """Let a load from memory begin one element further."""
    if each.name == "ld" and "param" not in each.words and each.types:
        size, at = BITS[each.types[-1]] // 8, text.rindex("]")
        yield f"{text[:at].rstrip()}+{size}{text[at:]}" if "+" not in text else _further(text, size)


def _further(text: str, size: int) -> str:
    return re.sub(r"\+\s*(-?\d+)\s*\]", lambda match: f"+{int(match[1]) + size}]", text)


KINDS: dict[str, Callable[[str, Instruction], Iterator[str]]] = {
    "rounding": _rounding, "accumulators": _accumulators, "operand": _operand, "predicate": _predicate,
    "comparison": _comparison, "immediate": _immediate, "barrier": _barrier, "rescale": _rescale,
    "exponent": _exponent, "maximum": _maximum, "offset": _offset,
}  # fmt: skip


def changes(text: str, entry: Entry) -> list[Change]:
    """List the possible changes of a kernel of a PTX text. Statements that share a line are left out."""
    lines = text.split("\n")
    count = Counter(each.line for each in entry.instructions)
    found = []
    for index, each in enumerate(entry.instructions):
        before = _statement(lines, each.line)
        if count[each.line] > 1 or not re.match(rf"(@!?%\w+\s+)?{re.escape(str(each))}\b", before):
            continue
        source = ":".join(map(str, each.source)) if each.source else ""
        for kind, make in KINDS.items():
            afters = dict.fromkeys(after for after in make(before, each) if after != before)
            found += [Change(entry.name, index, each.line, kind, before, after, source) for after in afters]
    return found


def _statement(lines: list[str], line: int) -> str:
    """Return a statement, to its semicolon, that begins on a line, from 1."""
    text = ""
    for each in lines[line - 1 :]:
        text += each.split("//")[0].strip() + " "
        if ";" in text:
            return text[: text.index(";") + 1].strip()
    return text.strip()


def changed(text: str, change: Change) -> str:
    """Return a PTX text with a change; the lines keep their numbers.

    Raises:
        ValueError: the text has another statement there.
    """
    lines = text.split("\n")
    if (got := _statement(lines, change.line)) != change.before:
        raise ValueError(f"change: got {got!r} on line {change.line}; accepted is {change.before!r}")
    at, rest = change.line - 1, ""
    while ";" not in lines[at].split("//")[0]:  # of a statement of several lines
        lines[at], at = "", at + 1
    rest = lines[at].split("//")[0].split(";", 1)[1]
    lines[at] = f"{change.after}{rest}"
    return "\n".join(lines)


def as_wanted(text: str, name: str) -> str:
    """Return the text of a kernel that is made, with the change of the environment, and record it if that is wanted."""
    if RECORD in os.environ and _within():
        path = Path(os.environ[RECORD]) / f"{sha256((name + text).encode()).hexdigest()[:16]}.json"
        path.write_text(json.dumps({"kernel": name, "text": text}))
    if CHANGE in os.environ:
        change = Change(**json.loads(os.environ[CHANGE]))
        lines = text.split("\n")
        there = len(lines) >= change.line and _statement(lines, change.line) == change.before
        if change.kernel == name and there and _within():
            return changed(text, change)
    return text


def _within() -> bool:
    """Whether the Python function that WITHIN names is running."""
    file, _, function = os.environ.get(WITHIN, "").rpartition(":")
    frame = sys._getframe()
    while file and frame is not None:
        if frame.f_code.co_name == function and Path(frame.f_code.co_filename).resolve() == Path(file):
            return True
        frame = frame.f_back
    return not file


def as_json(change: Change) -> str:
    """Return a change as CHANGE holds it."""
    return json.dumps(asdict(change))
