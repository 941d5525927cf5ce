"""Launches kept in files: made again they leave the same bytes."""

import numpy as np
import pytest
import torch
from small_ptx import kernel

from ptx_machine.cuda_driver import replay
from ptx_machine.launches import Launch, recording

DOUBLE = ("mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;"
          "ld.global.f32 %f1, [%d3]; add.f32 %f2, %f1, %f1; st.global.f32 [%d4], %f2;")  # fmt: skip


def recorded(folder, wanted=lambda launch: True, **more):
    whole, out = torch.arange(40.0), torch.zeros(32)
    with recording(folder, wanted) as digests:
        kernel(DOUBLE, **more)((1,), (32,), 0, whole[8:], out)  # a pointer into the middle of its memory
    return digests, out


def test_a_launch_from_its_file_leaves_the_same_bytes(tmp_path):
    (digest,), out = recorded(tmp_path)
    launch = Launch.load(tmp_path / f"{digest}.npz")
    assert launch.digest == digest and launch.dtypes == ("float32", "float32")
    assert launch.pointers == ((0, 0, 32), (8, 1, 0)) and not launch.parameters.any()
    before, after = launch.on_machine("A100")
    assert np.array_equal(after, out.numpy().view(np.uint8)) and np.array_equal(before, launch.memory[0])
    assert recorded(tmp_path)[0] == [digest]  # whatever the addresses


def test_what_no_gpu_could_repeat_is_not_kept(tmp_path):
    assert recorded(tmp_path, gpu="A100~1")[0] == [] and recorded(tmp_path, lambda launch: False)[0] == []
    with recording(tmp_path) as digests:
        kernel(DOUBLE)((2,), (32,), 0, torch.zeros(64), torch.zeros(64), blocks=[(1, 0, 0)])
    assert digests == [] and not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_each_launch_says_so(tmp_path):
    digests, _ = recorded(tmp_path)
    outcomes = replay([tmp_path / f"{digest}.npz" for digest in digests], tmp_path / "after", 2)
    assert list(outcomes) == digests and "libcuda" in outcomes[digests[0]]
