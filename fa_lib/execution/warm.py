"""Imported once, by the process from which notebooks are forked (`execution.beside`): what each notebook would import
and compile anew. It leaves no thread behind, since threads do not survive a fork."""

import torch

import fa_lib.execution.forked_kernel
import fa_lib.execution.notebook  # noqa: F401
from fa_lib import allocation
from fa_lib.dots import DOUBLE_DOUBLE
from fa_lib.formats import BF16

allocation.keep()
ONE = torch.ones(1, 1, dtype=torch.float64)
BF16(ONE)
DOUBLE_DOUBLE.exp_(DOUBLE_DOUBLE.matmul(ONE, ONE))
