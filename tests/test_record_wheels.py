"""What a machine without a network is brought: wheels by name; and the build of flash-attn, on a made-up tree."""

import tarfile
from importlib import metadata

import pytest

from fa_lib.commands.record import flash_attn_build as flash_attn
from fa_lib.execution.paths import PACKAGE, ROOT
from fa_lib.experiments.hardware import cuda

WHEELS = PACKAGE / "commands" / "record" / "wheels.txt"


def test_the_wheels_have_the_versions_that_are_tested():
    def pins(path):
        lines = (line.partition(" ")[0] for line in path.read_text().splitlines())
        return dict(line.split("==") for line in lines if "==" in line)

    carried, tested = pins(WHEELS), pins(ROOT / "requirements.hashes")
    assert len(carried) > 40 and {"papermill", "nbval", "diffusers", "submitit"} <= carried.keys()
    assert {name: pin for name, pin in carried.items() if tested.get(name, pin) != pin} == {}


@pytest.fixture
def source(tmp_path):
    """flash-attn's tree of kernel files, empty, with the head dims 32, 64 and 128."""
    folder = tmp_path / "flash_attn-2.8.9" / "csrc/flash_attn/src"
    folder.mkdir(parents=True)
    for kind in ("fwd", "fwd_split", "bwd"):
        for head_dim in (32, 64, 128):
            for rest in ("bf16", "bf16_causal", "fp16", "fp16_causal"):
                (folder / f"flash_{kind}_hdim{head_dim}_{rest}_sm80.cu").touch()
    (folder / "flash.h").touch()
    (folder.parent / "flash_api.cpp").touch()
    return tmp_path / "flash_attn-2.8.9"


def test_every_kernel_is_compiled_or_has_a_stub(source):
    files, text = flash_attn.kernel_files(source, (64,)), flash_attn.stubs(source, (64,))
    assert len(files) == 12 and all("_hdim64_" in path.name for path in files)
    assert text.count("template<>") == 24 and "has 64" in text
    assert "void run_mha_bwd_<cutlass::half_t, 32, true>(Flash_bwd_params &, cudaStream_t) { left_out(32); }" in text
    assert "run_mha_fwd_splitkv_dispatch<cutlass::bfloat16_t, 128, false>(Flash_fwd_params &, cudaStream_t)" in text
    assert ", 64, " not in text and "{{" not in text
    assert "template<>" not in flash_attn.stubs(source, (32, 64, 128))


def test_a_causal_kernel_that_is_not_there_has_no_stub(source):
    (source / "csrc/flash_attn/src/flash_bwd_hdim32_fp16_causal_sm80.cu").unlink()
    text = flash_attn.stubs(source, (64, 128))
    assert "run_mha_bwd_<cutlass::half_t, 32, false>" in text and "run_mha_bwd_<cutlass::half_t, 32, true>" not in text


def test_the_window_stays_and_options_that_are_off_are_refused_by_both_compilers():
    assert "-DFLASHATTENTION_DISABLE_LOCAL" not in flash_attn.FLAGS
    assert "-DFLASHATTENTION_DISABLE_DROPOUT" in flash_attn.FLAGS
    assert [flag for flag in flash_attn.NVCC_FLAGS if "arch" in flag] == ["-gencode=arch=compute_90,code=sm_90"]


def test_a_package_that_was_built_is_known_in_its_version(tmp_path):
    flash_attn.name_package(tmp_path, "flash_attn-2.8.9.post2")
    (found,) = metadata.distributions(name="flash-attn", path=[str(tmp_path)])
    assert found.version == "2.8.9.post2"


def test_the_source_package_is_unpacked_once_and_without_what_is_not_read(source, tmp_path):
    (source / "csrc/composable_kernel").mkdir()
    (source / "csrc/composable_kernel/large.h").touch()
    sdist = tmp_path / "flash_attn-2.8.9.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(source, source.name)
    folder = flash_attn.unpack(sdist, tmp_path / "target")
    assert len(flash_attn.kernel_files(folder, (64, 128))) == 24 and not (folder / "csrc/composable_kernel").exists()
    (folder / "mark").touch()
    assert (flash_attn.unpack(sdist, tmp_path / "target") / "mark").exists()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["flash_attn-2.8.9"]


def test_bad_arguments_of_the_build_name_what_is_accepted(source, tmp_path):
    with pytest.raises(ValueError, match=r"head_dims: got \[64, 80\]; accepted are 32, 64, 128"):
        flash_attn.kernel_files(source, (80, 64))
    with pytest.raises(ValueError, match=r"head_dims: got \[\]"):
        flash_attn.stubs(source, ())
    with pytest.raises(ValueError, match=r"^jobs: got 0; "):
        flash_attn.build("x", tmp_path, jobs=0)
    for name, words in (("flash_attn-2.7.0.tar.gz", "accepted is"), ("flash_attn-2.8.1.tar.gz", "it cannot be read")):
        (tmp_path / name).write_text("nothing")
        with pytest.raises(ValueError, match=f"sdist: got .*{words}"):
            flash_attn.unpack(tmp_path / name, tmp_path / "target")


def test_cuda_is_found_behind_a_script_that_stands_for_nvcc(tmp_path, monkeypatch):
    script, home = tmp_path / "local/bin/nvcc", tmp_path / "cuda"
    for path in (script, home / "bin/nvcc", home / "include/cuda_runtime.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    monkeypatch.setattr(cuda, "DEFAULT", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", f"{script.parent}")
    monkeypatch.setenv("CUDA_HOME", f"{home}")
    assert cuda.cuda_home() == home
    monkeypatch.setenv("CUDA_HOME", f"{script.parents[1]}")  # no headers there
    with pytest.raises(RuntimeError, match="set CUDA_HOME"):
        cuda.cuda_home()
    monkeypatch.setattr(cuda, "DEFAULT", home)
    assert cuda.cuda_home() == home
