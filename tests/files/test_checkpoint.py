import itertools
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from pyro_fmvae import checkpoint

STATE = {
    "numbers": {"i": 3, "f": 0.1, "inf": math.inf, "b": True, "none": None, "text": "é"},
    "tensors": [torch.arange(3), {"deep": torch.rand(2, 3, dtype=torch.float32)}, torch.tensor(2.5)],
    "bytes": torch.arange(4, dtype=torch.uint8),
    0: {1: "integer keys", "1": "text keys"},
    "empty": [{}, [], torch.zeros(0)],
}


def same(first, second):
    """True if two states are equal, tensors in dtype and every bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_round_trip(tmp_path):
    checkpoint.save(tmp_path / "new" / "folder", STATE, {"seconds": 1.5})
    state, clock = checkpoint.load(tmp_path / "new" / "folder")
    assert same(state, STATE)
    assert clock == {"seconds": 1.5}
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        checkpoint.READABLE,
        checkpoint.TENSORS,
    ]


@pytest.mark.parametrize(
    "state",
    [
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {1: torch.zeros(1), "1": torch.ones(1)},
        torch.ones(2),
        [torch.ones(4)[:2], torch.ones(4).expand(3, 4), torch.rand(3, 4).mT],
    ],
    ids=["slashes", "integer and text", "a tensor alone", "views"],
)
def test_round_trip_of_awkward_tensors(tmp_path, state):
    checkpoint.save(tmp_path, state)
    assert same(checkpoint.load(tmp_path)[0], state)


def test_tensors_that_share_memory(tmp_path):
    shared = torch.rand(3)
    checkpoint.save(tmp_path, {"first": shared, "second": shared})
    assert same(checkpoint.load(tmp_path)[0], {"first": shared, "second": shared})


def test_optimiser_state_round_trip(tmp_path):
    parameter = torch.nn.Parameter(torch.rand(3))
    adam = torch.optim.Adam([parameter], lr=0.1, fused=True)
    parameter.sum().backward()
    adam.step()
    checkpoint.save(tmp_path, adam.state_dict())
    other = torch.optim.Adam([parameter], fused=True)
    other.load_state_dict(checkpoint.load(tmp_path)[0])
    assert same(other.state_dict()["state"], adam.state_dict()["state"])
    assert other.param_groups[0]["lr"] == 0.1


def test_times_do_not_get_into_the_tensors(tmp_path):
    checkpoint.save(tmp_path / "a", STATE, {"seconds": 1.0})
    checkpoint.save(tmp_path / "b", STATE, {"seconds": 2.0})
    first, second = ((tmp_path / name / checkpoint.TENSORS).read_bytes() for name in "ab")
    assert first == second


def test_lost_clock_is_no_harm(tmp_path):
    checkpoint.save(tmp_path, STATE, {"seconds": 1.0})
    for damage in ("{", "[]", "3", "{}", None):
        if damage is None:
            (tmp_path / checkpoint.READABLE).unlink()
        else:
            (tmp_path / checkpoint.READABLE).write_text(damage)
        state, clock = checkpoint.load(tmp_path)
        assert same(state, STATE)
        assert clock == {}


def test_checkpoint_that_is_replaced_meanwhile_is_read_whole(tmp_path):
    states = [{"step": step, "tensors": [torch.full((1000,), float(step))] * 5} for step in range(2)]
    path = tmp_path / "run" / checkpoint.TENSORS
    for step, state in enumerate(states):
        checkpoint.save(path.parent, state)
        shutil.copy(path, tmp_path / str(step))
    done = threading.Event()

    def replace():
        for step in itertools.cycle("01"):
            if done.is_set():
                break
            os.link(tmp_path / step, tmp_path / "next")
            (tmp_path / "next").replace(path)

    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(replace)
        try:
            read = [checkpoint.load(path.parent)[0] for _ in range(2000)]
        finally:
            done.set()
        replacing.result()
    assert {state["step"] for state in read} == {0, 1}
    assert all(same(state, states[state["step"]]) for state in read)


def test_missing_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoint.load(tmp_path)


class Trap:
    def __reduce__(self):
        return os.abort, ()


def foreign(path):
    save_file({"x": torch.zeros(2)}, path)


def foreign_metadata(path):
    save_file({"x": torch.zeros(2)}, path, metadata={"state": '{"tensor": "y"}'})


def truncate(path):
    checkpoint.save(path.parent, STATE)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"hello"),
        lambda path: path.write_bytes(pickle.dumps(Trap())),
        lambda path: torch.save({"x": torch.zeros(2)}, path),
        truncate,
        foreign,
        foreign_metadata,
    ],
    ids=["empty", "text", "pickle", "torch.save", "truncated", "other safetensors", "other metadata"],
)
def test_damaged_checkpoint(tmp_path, damage):
    damage(tmp_path / checkpoint.TENSORS)
    with pytest.raises(ValueError, match=r"state\.safetensors: not a checkpoint"):
        checkpoint.load(tmp_path)


def test_state_that_cannot_be_kept_leaves_the_old_one(tmp_path):
    checkpoint.save(tmp_path, STATE)
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoint.save(tmp_path, {"x": object()})
    assert same(checkpoint.load(tmp_path)[0], STATE)


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half of the n")
        assert path.read_text() == "old"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.write_atomically(path, write)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_process_killed_in_the_middle_of_a_write(tmp_path):
    checkpoint.save(tmp_path, STATE)
    (tmp_path / f".{checkpoint.TENSORS}.{os.getpid()}.tmp").write_bytes(
        b"half of a new one"
    )  # what a kill leaves behind
    assert same(checkpoint.load(tmp_path)[0], STATE)
    checkpoint.save(tmp_path, {"new": 1})
    assert checkpoint.load(tmp_path)[0] == {"new": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_file_is_synced_before_it_is_renamed_and_the_folder_after(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(source, target):
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    checkpoint.write_atomically(tmp_path / "file", lambda path: path.write_text("text"))
    assert calls == [str(tmp_path / f".file.{os.getpid()}.tmp"), "rename", str(tmp_path)]


def test_two_processes_may_write_one_file(tmp_path):
    """The second one begins, and ends, while the first one writes."""
    imports = "from pathlib import Path; from pyro_fmvae import checkpoint"
    other = f"{imports}; checkpoint.save(Path({str(tmp_path)!r}), 2)"

    def write(temporary):
        temporary.write_text("first")
        subprocess.run([sys.executable, "-c", other], check=True)
        assert checkpoint.load(tmp_path)[0] == 2

    checkpoint.write_atomically(tmp_path / checkpoint.TENSORS, write)
    assert (tmp_path / checkpoint.TENSORS).read_text() == "first"


def test_clock_of_another_checkpoint(tmp_path):
    checkpoint.save(tmp_path, {"step": 1}, {"seconds": 1.0})
    before = (tmp_path / checkpoint.READABLE).read_text()
    checkpoint.save(tmp_path, {"step": 2}, {"seconds": 2.0})
    assert checkpoint.load(tmp_path) == ({"step": 2}, {"seconds": 2.0})
    (tmp_path / checkpoint.READABLE).write_text(before)  # as if the process had ended between the two files
    assert checkpoint.load(tmp_path) == ({"step": 2}, {})


def test_a_single_bit_is_noticed(tmp_path):
    checkpoint.save(tmp_path, {"a": torch.rand(1000), "b": [torch.arange(3)], "steps": 1000})
    path = tmp_path / checkpoint.TENSORS
    content = bytearray(path.read_bytes())
    for place in (-1, -1000, content.index(b"1000]")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged \(its sha256 is another\)"):
            checkpoint.load(tmp_path)
    path.write_bytes(content)
    checkpoint.load(tmp_path)


@pytest.mark.parametrize("key", [(1, 2), 0.5, None])
def test_keys_that_would_not_come_back(tmp_path, key):
    with pytest.raises(TypeError, match="state: expected keys that are strings or integers, got"):
        checkpoint.save(tmp_path, {"a": {key: 1}})
    assert not list(tmp_path.iterdir())


TRIES = """
import sys
from pathlib import Path
from pyro_fmvae.files.checkpoint import alone
for _ in sys.stdin:
    try:
        with alone(Path(sys.argv[1])):
            print("alone", flush=True)
    except ValueError as error:
        print(error, flush=True)
"""


def test_one_process_at_a_time(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", TRIES, str(tmp_path)], **pipes) as other:

        def found():
            print("again", file=other.stdin, flush=True)
            return other.stdout.readline()

        with checkpoint.alone(tmp_path):
            assert f"{tmp_path}: another process is training this run" in found()
        assert not list(tmp_path.iterdir())
        assert found() == "alone\n"
