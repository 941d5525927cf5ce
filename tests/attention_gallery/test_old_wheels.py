"""Public reports by the libraries of then, the two that are small: `make reports` asks all of them."""

import pytest

from attention_check.public_reports import BY_THREAD, explained, is_cause
from benchmarks.old_wheels import wheels


@pytest.mark.parametrize("thread", ["ml-explore/mlx#2835", "microsoft/onnxruntime#29020"])
def test_what_a_library_gave_then_is_explained(thread):
    report = BY_THREAD[thread]
    call = report.make()
    try:
        o = wheels.output(thread, call)
    except wheels.CannotRun as error:
        pytest.skip(f"{wheels.name(thread)}: {error}")  # it has no wheel for this processor or Python
    found = explained(thread, o)
    assert o.shape == call.o.shape and not o.equal(call.o)
    assert (found.worst, is_cause(report, found)) == (report.verdict, True)


def test_a_library_that_fails_says_why(monkeypatch, tmp_path):
    (tmp_path / "of_none.py").write_text("raise SystemExit('it has no attention')")
    monkeypatch.setattr(wheels, "FOLDER", tmp_path)
    monkeypatch.setitem(wheels.LIBRARIES, "none", "none")
    monkeypatch.setattr(wheels, "_installed", lambda library: tmp_path)
    with pytest.raises(wheels.CannotRun, match="it has no attention"):
        wheels.output("none", BY_THREAD["jax-ml/jax#35916"].make())
