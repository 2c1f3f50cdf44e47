import io
import pickle
import zipfile

import numpy as np
import pytest

from pyro_fmvae.data.npz_arrays import read_arrays

X = np.arange(24.0).reshape(4, 6)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def with_member(path, name, content):
    """A zip archive with one member."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


def truncated_member():
    buffer = io.BytesIO()
    np.save(buffer, X)
    return buffer.getvalue()[:-8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a .npz file"),
        (b"some text", "not a .npz file"),
        (pickle.dumps({"x": [1]}), "not a .npz file"),
    ],
)
def test_files_of_another_format(tmp_path, content, message):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.npz: {message}"):
        read_arrays(path, ("x",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x", b"text", "'x' is not an array in .npy format"),
        ("x.npy", pickle.dumps([1, 2]), "'x' is not an array in .npy format"),
        ("x.npy", truncated_member(), "'x' is damaged"),
        ("x.npy", b"\x93NUMPY\x01\x00", "'x' is damaged"),
    ],
)
def test_archives_with_strange_members(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=rf"a\.npz: {message}"):
        read_arrays(with_member(tmp_path / "a.npz", name, content), ("x",))


def test_a_flipped_bit_is_noticed(tmp_path):
    path = write(tmp_path / "a.npz", x=X)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="'x' is damaged"):
        read_arrays(path, ("x",))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.npz: no such file"):
        read_arrays(tmp_path / "a.npz", ("x",))


def test_only_the_named_arrays_are_read(tmp_path):
    path = write(tmp_path / "a.npz", x=X, other=np.zeros(2, object))
    assert list(read_arrays(path, ("x",), ("absent",))) == ["x"]


def test_a_damaged_directory(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)))
    content = path.read_bytes()
    for signature in (b"PK\x01\x02", b"PK\x03\x04"):  # of the directory, of the first member
        path.write_bytes(content.replace(signature, b"QQQQ"))
        with pytest.raises(ValueError, match=r"a\.npz: (not a .npz file|'x' is damaged)") as caught:
            read_arrays(path, ("x",))
        assert "unsafely" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), [(6, 1), (8, 99)], ids=["encrypted", "compressed in an unknown way"]
)
def test_members_that_cannot_be_unpacked(tmp_path, field, value):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)))
    content = bytearray(path.read_bytes())
    content[field] = value  # of the member, and two bytes later of its entry in the directory
    content[content.index(b"PK\x01\x02") + field + 2] = value
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: 'x' is damaged"):
        read_arrays(path, ("x",))
