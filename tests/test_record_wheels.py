"""The wheels and the build of flash-attn for a machine without a network: made-up wheels, a made-up source tree."""

import tarfile
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fa_lib.commands.record import flash_attn_build as flash_attn
from fa_lib.commands.record import wheelhouse
from fa_lib.commands.record.wheelhouse import check
from fa_lib.experiments.hardware import cuda


def wheel(folder, name, needs=(), tags="py3-none-any", python=">=3.9"):
    """An empty wheel: a zip file with METADATA."""
    lines = [f"Requires-Python: {python}", *(f"Requires-Dist: {need}" for need in needs)]
    with zipfile.ZipFile(folder / f"{name}-{tags}.whl", "w") as archive:
        archive.writestr(f"{name}.dist-info/METADATA", "\n".join(["Metadata-Version: 2.1", *lines]) + "\n\ntext\n")


def test_a_folder_that_lacks_nothing_has_no_problem(tmp_path):
    wheel(tmp_path, "a-1.0", ["B.b>=2", "torch>=2.11"])
    wheel(tmp_path, "b_b-2.5", tags="cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64")
    wheel(tmp_path, "c-1.0", tags="cp38-abi3-manylinux_2_28_x86_64")
    assert check(tmp_path, "3.12", {"torch": Version("2.11.0")}) == []


def test_a_missing_package_is_named_with_the_one_that_needs_it(tmp_path):
    wheel(tmp_path, "a-1.0", ["b>=2", "c"])
    wheel(tmp_path, "c-1.0", ["d"])
    assert check(tmp_path, "3.12", {}) == ["a 1.0 needs b>=2: it is missing", "c 1.0 needs d: it is missing"]
    assert check(tmp_path, "3.12", {"b": None, "d": None}, [Requirement("e>=1")]) == [
        "this project needs e>=1: it is missing"
    ]


@pytest.mark.parametrize("has, fits", [("1.9", False), ("2.0rc1", False), ("2.0", True), ("2.1rc1", True)])
def test_a_version_that_the_machine_has_must_fit(has, fits, tmp_path):
    wheel(tmp_path, "a-1.0", ["b>=2"])
    assert check(tmp_path, "3.12", {"b": Version(has)}) == ([] if fits else [f"a 1.0 needs b>=2: there is {has}"])


def test_two_versions_of_a_package_are_a_problem(tmp_path):
    wheel(tmp_path, "a-1.0")
    wheel(tmp_path, "a-1.1")
    assert check(tmp_path, "3.12", {}) == ["a: the versions 1.0 and 1.1 are both there"]


ELSEWHERE = [
    "cp312-cp312-win_amd64",
    "cp312-cp312-manylinux_2_39_x86_64",
    "cp312-cp312-manylinux_2_17_aarch64",
    "cp313-abi3-manylinux_2_17_x86_64",
    "cp311-cp311-manylinux_2_17_x86_64",
]


@pytest.mark.parametrize("tags", ELSEWHERE)
def test_a_wheel_for_another_machine_is_a_problem(tags, tmp_path):
    wheel(tmp_path, "a-1.0", tags=tags)
    assert check(tmp_path, "3.12", {}) == [f"a-1.0-{tags}.whl is not for Python 3.12 on x86-64 Linux"]


def test_a_wheel_for_newer_pythons_is_a_problem(tmp_path):
    wheel(tmp_path, "a-1.0", python=">=3.13")
    assert check(tmp_path, "3.12", {}) == ["a-1.0-py3-none-any.whl needs Python >=3.13, not 3.12"]
    assert check(tmp_path, "3.13", {}) == []


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_markers_are_those_of_the_machine_and_not_of_what_runs_here(python, tmp_path):
    needs = [f"on{minor}; python_version == '3.{minor}'" for minor in (11, 12, 13)]
    elsewhere = ["w; sys_platform == 'win32'", "m; platform_system == 'Darwin'", "r; platform_machine == 'arm64'"]
    wheel(tmp_path, "a-1.0", [*needs, *elsewhere, "p; implementation_name == 'pypy'", "dev; extra == 'dev'"])
    minor = python.removeprefix("3.")
    assert check(tmp_path, python, {}) == [f"a 1.0 needs on{minor}: it is missing"]


def test_an_extra_counts_where_it_is_asked_for(tmp_path):
    wheel(tmp_path, "a-1.0", ["b[http]"])
    wheel(tmp_path, "b-1.0", ["c; extra == 'http'", "d; extra == 'dev'"])
    assert check(tmp_path, "3.12", {}) == ["b 1.0 needs c: it is missing"]


def test_what_a_record_needs_is_not_what_a_developer_does():
    names = {requirement.name for requirement in wheelhouse.needed()}
    assert {"torch", "gfloat", "papermill", "nbval", "diffusers"} <= names
    assert not names & {"ruff", "jupyterlab", "playwright", "flash-attn"}
    assert set(wheelhouse.NOT_NEEDED).isdisjoint(wheelhouse.there())


def test_fill_downloads_until_nothing_is_lacking_and_goes_on_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(wheelhouse, "needed", lambda: [Requirement("a>=1"), Requirement("torch>=2.13")])
    monkeypatch.setattr(wheelhouse, "_pins", lambda: {"b": "2.5", "torch": "2.13"})
    needs = {"a": ["b>2", "b<9"], "b": ["c; python_version < '3.12'", "d"], "d": ["b<2"]}
    folder, asked = tmp_path / "wheels", []

    def download(folder, spec, options, settings, say):
        assert asked.count(spec) < 2, "it would never end"
        asked.append(spec)
        if len(asked) == 2:
            raise KeyboardInterrupt
        wheel(folder, f"{spec[0]}-2.5", needs[spec[0]])

    monkeypatch.setattr(wheelhouse, "_download", download)
    with pytest.raises(KeyboardInterrupt):
        wheelhouse.fill(folder, "3.12", {"torch": Version("2.11")})
    wheelhouse.fill(folder, "3.12", {"torch": Version("2.11")})
    assert asked == ["a>=1", "b==2.5", "b==2.5", "d"] and check(folder, "3.12", {}) == ["d 2.5 needs b<2: there is 2.5"]
    assert wheelhouse.fill(folder, "3.11", {"torch": None, "c": None}) == folder and len(asked) == 4
    needs["x"] = ["torch>=2.10"]  # what the gallery needs comes in its own version, where it is asked for
    monkeypatch.setattr(wheelhouse, "OPTIONAL", {"x": Requirement("x==2.5")})
    wheelhouse.fill(folder, "3.12", {"torch": Version("2.11")}, more=["x"])
    assert asked[4:] == ["x==2.5"]


def test_a_folder_that_is_too_large_is_refused(tmp_path, monkeypatch):
    wheel(tmp_path, "a-1.0")
    monkeypatch.setattr(wheelhouse, "needed", lambda: [Requirement("a"), Requirement("torch>=99")])  # it has torch
    lines = []
    wheelhouse.main("3.12", tmp_path, say=lines.append)
    assert lines[0] == f"1 files, 0.0 MB, are in {tmp_path}: all that a record on Python 3.12 needs and lacks"
    assert lines[1].startswith("there: python3 -m pip install --no-index") and f"{tmp_path}/*.whl" in lines[1]
    with open(tmp_path / "flash_attn-2.8.0.tar.gz", "wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(ValueError, match="has 50 MB; accepted are 50"):
        wheelhouse.main("3.12", tmp_path)


def test_bad_arguments_name_what_is_accepted(tmp_path):
    with pytest.raises(ValueError, match="python: got '312'; accepted is a version such as 3.12"):
        wheelhouse.fill(tmp_path, "312")
    with pytest.raises(ValueError, match="source: got 'torch'; accepted are flash-attn"):
        wheelhouse.fill(tmp_path, sources=["torch"])
    with pytest.raises(ValueError, match="more: got 'jax'; accepted are xformers, sageattention"):
        wheelhouse.fill(tmp_path, more=["jax"])
    with pytest.raises(ValueError, match="holds no wheel; accepted is a folder that"):
        check(tmp_path)
    (tmp_path / "a-1.0-py3-none-any.whl").write_text("half a file")
    with pytest.raises(ValueError, match=r"a-1.0-py3-none-any.whl is no wheel \(File is not a zip file\); remove it"):
        check(tmp_path)


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
    with pytest.raises(ValueError, match="jobs: got 0; accepted is a positive number"):
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
