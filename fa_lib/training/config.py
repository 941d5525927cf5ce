"""What one training run is: its arm, the sizes of its model (the numbers of fa_lib/training/*.yaml), its length."""

from dataclasses import dataclass as plain_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

Size = Annotated[int, Field(ge=1)]
PRECISIONS = {  # key -> the dtype attention then runs in. mixed: by autocast; 16-mixed: with loss scaling
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "16-mixed-unscaled": torch.float16,
}
OPTIMIZERS: dict[str, Any] = {  # of a Config: functions of the parameters, lr, weight_decay
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, fused=True),
}


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class Config:
    """One configuration, checked: `dataclasses.replace` checks again."""

    image_size: Size  # pixels
    patch_size: Size
    layers: Size
    heads: Size
    head_dim: Size
    attention_bias: bool
    text_width: Size
    text_layers: Size
    text_heads: Size
    text_bytes: Size  # of a caption
    batch: Size
    lr: Annotated[float, Field(gt=0)]
    warmup: Annotated[int, Field(ge=0)]  # steps
    weight_decay: Annotated[float, Field(ge=0)]
    images: Size
    optimizer: Literal["adamw", "sgd"] = "adamw"  # sgd: with a momentum of 0.9
    noise: Literal["shifted", "uniform"] = "shifted"  # how a step's noise levels are drawn: as in SD3, or all alike

    @classmethod
    def load(cls, name: str | Path, **changes) -> "Config":
        """Load a configuration.

        Args:
            name: of a file of fa_lib/training ("small"), or the path of a YAML file.
            changes: fields of the configuration that get another value.

        Raises:
            ValueError: there is no such configuration, it lacks a number, has one too many or one that does not fit.
        """
        folder = Path(__file__).parent
        path = Path(name) if str(name).endswith(".yaml") else folder / f"{name}.yaml"
        if not path.exists():
            names = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
            raise ValueError(f"config: got {str(name)!r}; accepted are {names}, or a path that ends in .yaml")
        numbers = yaml.safe_load(path.read_text())
        if not isinstance(numbers, dict):
            raise ValueError(f"config: got {numbers!r} in {path}; accepted are lines 'name: number'")
        try:
            return cls(**{str(key): value for key, value in numbers.items()} | changes)
        except ValidationError as error:
            raise ValueError(f"config: {_in_words(error.errors())}") from None

    @model_validator(mode="after")
    def _fits(self):
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size: got {self.image_size}; accepted are multiples of patch_size")
        if self.batch > self.images:
            raise ValueError(f"batch: got {self.batch}; accepted is up to the {self.images} images of the data")
        return self

    @property
    def tokens(self) -> int:
        """How many tokens, patches, an image has."""
        return (self.image_size // self.patch_size) ** 2


def _in_words(errors):
    """What pydantic found, in one line: the names that are missing or too many, or else the first value."""
    strange = [e["loc"][0] for e in errors if e["type"] in ("missing", "unexpected_keyword_argument")]
    if strange:
        accepted = ", ".join(sorted(Config.__dataclass_fields__))
        return f"{', '.join(sorted(strange))}: missing or too many; accepted are {accepted}"
    first = errors[0]
    if not first["loc"]:  # of `_fits`
        return str(first["ctx"]["error"])
    return f"{first['loc'][0]}: got {first['input']!r}; {first['msg'][0].lower()}{first['msg'][1:]}"


@plain_dataclass(frozen=True)
class Arm:
    """What a run does. Two arms that differ in one field differ in one thing.

    Attributes:
        kernel: of every attention call, a name for `kernels.get`.
        precision: a key of PRECISIONS.
        init, order: which initial weights, which order of the data.
        perturb: every initial weight is moved by this, relative, times a standard normal number.
    """

    kernel: str = "unfused"
    precision: str = "bf16-mixed"
    init: int = 0
    order: int = 0
    perturb: float = 0.0


@plain_dataclass(frozen=True)
class RunSpec:
    """One training run.

    Attributes:
        arm: what it does.
        seed: of data, noise and initial weights.
        config: sizes of the model and of its training.
        steps: of the optimizer. every: steps between two weights files (and see `run_folder.checkpoints`).
        device: "cpu" or "cuda".
    """

    arm: Arm
    seed: int
    config: Config
    steps: int
    every: int
    device: str = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that attention runs in."""
        return PRECISIONS[self.arm.precision]
