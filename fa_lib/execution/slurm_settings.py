"""The settings of Slurm jobs: cluster.yaml, or the file that FA_LIB_CLUSTER names (docs/operate/cluster.md)."""

import os
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fa_lib.execution.paths import ROOT

OURS = (  # of sbatch's options: they have a setting of their own, or submitit sets them
    "partition", "account", "time", "mem", "cpus_per_task", "gpus", "gpus_per_node",
    "job_name", "array", "output", "error", "open_mode", "signal", "wrap",
)  # fmt: skip
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """The settings of every job.

    Attributes:
        partition, account: names; empty is Slurm's default.
        time: minutes of a job. memory: GB of a job. cpus, gpus: how many a job has. at_once: jobs that run at one time.
        retries: how often a job is begun again when it was killed or its time ran out.
        sbatch: further options of sbatch: long name -> value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    partition: str = ""
    account: str = ""
    time: Count = 60
    memory: Count = 4
    cpus: Count = 1
    gpus: Annotated[int, Field(ge=0)] = 0
    at_once: Count = 16
    retries: Annotated[int, Field(ge=0)] = 2
    sbatch: dict[Any, Any] = {}

    @field_validator("sbatch")
    @classmethod
    def _free(cls, options):
        for option in options:
            if not isinstance(option, str) or option.replace("-", "_") in OURS:
                raise ValueError(f"got {option!r}; accepted are options without a setting here")
        return options


def settings() -> Settings:
    """Read the Settings from the file that FA_LIB_CLUSTER names, or from cluster.yaml at the root of the checkout. A
    setting that the file lacks has its default.

    Raises:
        ValueError: the named file does not exist, or has a key or a value that does not fit.
    """
    own = os.environ.get("FA_LIB_CLUSTER")
    path = Path(own or ROOT / "cluster.yaml")
    if own and not path.exists():
        raise ValueError(f"FA_LIB_CLUSTER: got {own!r}, which does not exist; accepted is a YAML file")
    try:
        # YAML reads 2:00:00 as the number 7200, which as minutes would be five days: texts are turned into numbers here
        raw = yaml.load(path.read_text(), yaml.BaseLoader) or {} if path.exists() else {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: got {raw!r}; accepted is a mapping of {', '.join(Settings.model_fields)}")
    values: dict[str, Any] = {
        name: int(text) if isinstance(text, str) and text.isdigit() else text for name, text in raw.items()
    }
    if isinstance(values.get("sbatch"), dict):
        values["sbatch"] = (yaml.safe_load(path.read_text()) or {})["sbatch"]
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ValueError(f"{path}: {_words(error.errors()[0])}") from error


def _words(problem):
    """Say which setting does not fit, its value and what is accepted."""
    name, value = ".".join(map(str, problem["loc"])), problem["input"]
    if problem["type"] == "extra_forbidden":
        return f"got {name!r}; accepted are {', '.join(Settings.model_fields)}"
    if problem["type"] == "value_error":
        return f"{name}: {problem['ctx']['error']}"
    kinds = {int: "a whole number from 1", str: "a text", dict: "a mapping"}
    field = Settings.model_fields[problem["loc"][0]]
    accepted = "a whole number from 0" if name in ("gpus", "retries") else kinds.get(field.annotation, "a mapping")
    return f"{name}: got {value if field.annotation is int else repr(value)}; accepted is {accepted}"
