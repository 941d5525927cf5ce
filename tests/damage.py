"""The damaged files of the campaign of faults: a sweep's cells, a checkpoint, weights, run.json."""

from contextlib import suppress

import torch
from safetensors.torch import load_file
from victims import cell, stamps

from fa_lib.execution.sweep import sweep
from fa_lib.training.config import Config
from fa_lib.training.run import train
from fa_lib.training.run_folder import load_weights, weights
from fa_lib.training.spec import Arm, RunSpec


def flipped(whole, chance):
    """The bytes with one random bit changed."""
    bit = chance.randrange(8 * len(whole))
    return whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]


def damaged_cells(folder, bits, cut, flip, chance):
    """A cell's file cut at every byte, then with single bits changed: that cell alone is computed again."""
    grid = dict(i=range(3))
    right = sweep(cell, grid, cache=folder).to_csv()
    path, *others = sorted((folder / "cell").glob("*.json"))
    whole, kept = path.read_bytes(), stamps(others)
    damage = [(cut, whole[:length]) for length in range(len(whole))]
    for count, held in damage + [(flip, flipped(whole, chance)) for _ in range(bits)]:
        path.write_bytes(held)
        equal = sweep(cell, grid, cache=folder).to_csv() == right and path.read_bytes() == whole
        count.faults += 1
        count.refused += equal
        count.resumed += stamps(others) == kept
        count.check(equal and stamps(others) == kept, f"a cell of {len(held)} bytes")


def damaged_run(folder, bits, checkpoint, weight, ended, chance):
    """A stopped run's checkpoint, and a finished run's files: each damaged one is refused with its path."""
    spec = RunSpec(Arm(), 0, Config.load("tiny"), steps=8, every=2)

    def stop(step):
        if step == 5:
            raise KeyboardInterrupt

    def begun(at, watch=None):
        return train(spec, at, watch=watch)

    def tell(count, path, held, read):
        path.write_bytes(held)
        count.faults += 1
        try:
            return read()
        except ValueError as error:
            assert str(path) in str(error), error
            count.refused += 1
            return None

    right = begun(folder / "right")
    with suppress(KeyboardInterrupt):
        begun(folder / "run", stop)
    path, last = folder / "run/resume.ckpt", weights(folder / "run", 8)
    whole = path.read_bytes()
    for i in range(bits):
        held = whole[: chance.randrange(len(whole))] if i % 4 == 3 else flipped(whole, chance)
        through = tell(checkpoint, path, held, lambda: begun(folder / "run"))
        if through is not None:
            checkpoint.check(False, f"a damaged checkpoint of {len(held)} bytes was taken")
            return
        path.write_bytes(whole) if i % 10 else path.unlink()  # as the message says, one in ten: from the start
        if i % 10 == 0:
            got = begun(folder / "run")
            same = last.read_bytes() == weights(folder / "right", 8).read_bytes() and got["losses"] == right["losses"]
            checkpoint.check(same, "the run after a damaged checkpoint")
            (folder / "run/run.json").unlink()
            path.write_bytes(whole)
    got = begun(folder / "run")
    checkpoint.resumed += 1
    same = last.read_bytes() == weights(folder / "right", 8).read_bytes() and got["losses"] == right["losses"]
    checkpoint.check(same, "the run of the restored checkpoint")
    tensors, whole, end = load_file(last), last.read_bytes(), folder / "run/run.json"
    for _ in range(bits):
        read = tell(weight, last, flipped(whole, chance), lambda: load_weights(last))
        weight.check(read is None or all(torch.equal(read[n], tensors[n]) for n in tensors), "weights")
    last.write_bytes(whole)
    whole = end.read_bytes()
    for _ in range(bits):
        read = tell(ended, end, flipped(whole, chance), lambda: begun(folder / "run"))
        ended.check(read is None or read == got, "run.json")
