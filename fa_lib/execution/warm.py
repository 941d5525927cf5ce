"""Imported once, by the process from which notebooks are forked (`parallel_notebooks`): what each notebook would import
and compile anew. It leaves no thread behind, since threads do not survive a fork."""

import torch

import fa_lib.execution.forked_kernel
import fa_lib.execution.notebook  # noqa: F401
from fa_lib.execution import process_settings
from fa_lib.numerics.dots import DOUBLE_DOUBLE
from fa_lib.numerics.formats import BF16

process_settings.keep_memory()
ONE = torch.ones(1, 1, dtype=torch.float64)
BF16(ONE)
DOUBLE_DOUBLE.exp_(DOUBLE_DOUBLE.matmul(ONE, ONE))
