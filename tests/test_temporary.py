"""Each case runs in a process of its own: what is set there stays set."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_fmvae

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="each user has a temporary folder")

ROOT = str(Path(pyro_fmvae.__file__).parents[1])
PLACES = """
import os, sys, tempfile
if len(sys.argv) > 1:
    os.geteuid = lambda: int(sys.argv[1])
from pyro_fmvae.temporary import keep_temporary_files_private
folder = keep_temporary_files_private()
from torch._inductor.runtime.runtime_utils import cache_dir, default_cache_dir
mode = oct(os.stat(folder).st_mode)
print(folder, mode, cache_dir(), default_cache_dir(), tempfile.mkdtemp(), sep="\\n")
"""
COMPILE = """
import sys
if sys.argv[1] == "private":
    from pyro_fmvae.temporary import keep_temporary_files_private
    keep_temporary_files_private()
import torch
torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(2))
"""
MINE = f"pyro-fmvae-{os.geteuid()}" if hasattr(os, "geteuid") else ""


def run(program, *arguments, temporary, **variables):
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment = kept | {"TMPDIR": str(temporary), "PYTHONPATH": ROOT} | variables
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_everything_is_in_one_private_folder_that_stays(tmp_path):
    found = [run(PLACES, temporary=tmp_path) for _ in range(2)]
    for folder, mode, *places in found:
        assert (Path(folder), mode) == (tmp_path / MINE, oct(stat.S_IFDIR | stat.S_IRWXU))
        assert len(places) == 3
        assert all(place.startswith(f"{folder}/") for place in places)
    assert found[0][2:4] == found[1][2:4]
    assert os.listdir(tmp_path) == [MINE]


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "somebody else's"])
def test_a_folder_that_others_may_have_written_to_is_not_used(tmp_path, kind):
    uid, place = os.geteuid(), tmp_path / MINE
    if kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    elif kind == "a file":
        place.touch()
    else:
        place.mkdir(mode=0o700)
    if kind == "open to others":
        place.chmod(0o770)
    elif kind == "somebody else's":
        uid += 1
        place.rename(tmp_path / f"pyro-fmvae-{uid}")
    before = set(tmp_path.rglob("*"))
    folder, mode, *places = run(PLACES, str(uid), temporary=tmp_path)
    assert (Path(folder).parent, mode) == (tmp_path, oct(stat.S_IFDIR | stat.S_IRWXU))
    assert all(place.startswith(f"{folder}/") for place in places)
    assert set(tmp_path.rglob("*")) == before  # nothing was written there, and its own folder is gone


def test_a_cache_of_the_users_own_stays(tmp_path):
    mine = tmp_path / "mine"
    folder, _, cache, default, _ = run(PLACES, temporary=tmp_path, TORCHINDUCTOR_CACHE_DIR=str(mine))
    assert cache == str(mine)
    assert default.startswith(f"{folder}/")


@pytest.mark.slow
def test_planted_code_is_not_run_and_compiled_code_is_kept(tmp_path):
    run(COMPILE, "default", temporary=tmp_path)
    (place,) = tmp_path.glob("torchinductor_*")
    marker = tmp_path / "marker"
    for path in place.rglob("*.py"):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n{path.read_text()}")
    run(COMPILE, "private", temporary=tmp_path)
    assert not marker.exists()
    kept = built(tmp_path / MINE)
    assert kept
    run(COMPILE, "private", temporary=tmp_path)
    assert built(tmp_path / MINE) == kept
    run(COMPILE, "default", temporary=tmp_path)
    assert marker.exists()  # as it would be without the private folder


def built(folder):
    """What the compiler made, with the times when it did."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in (".so", ".gch")}
