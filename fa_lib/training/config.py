"""Sizes of the model and of its training: the numbers of fa_lib/training/*.yaml."""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

Size = Annotated[int, Field(ge=1)]


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
    text_mask: bool
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
    def _of_patches(self):
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size: got {self.image_size}; accepted are multiples of patch_size")
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
    limits = first.get("ctx", {})
    if "error" in limits:
        return str(limits["error"])
    if "ge" in limits:
        accepted = f"at least {limits['ge']}"
    elif "gt" in limits:
        accepted = f"more than {limits['gt']}"
    else:
        accepted = first["type"].removesuffix("_type").replace("_", " ")  # int, float, bool, finite number
    return f"{first['loc'][0]}: got {first['input']!r}; accepted is {accepted}"
