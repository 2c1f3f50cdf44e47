import importlib
import pkgutil

import pytest

from pyro_fmvae.data import sets
from pyro_fmvae.data.download import Source, downloaded
from tests.data.published import published


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "a").write_text("contents of a")
    (tmp_path / "server" / "b").write_text("contents of b")
    with published(tmp_path / "server") as source:
        yield source


def test_files_are_there_until_the_end(source, tmp_path):
    root = tmp_path / "new" / "root"
    with downloaded("Data", source, root) as files:
        assert {path.name: path.read_text() for path in files.iterdir()} == {
            "a": "contents of a",
            "b": "contents of b",
        }
        (files / "a").rename(root / "kept")
    assert [path.name for path in root.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256": {"a": "0" * 64}}, "SHA256 hash of downloaded file .* does not match"),
        ({"sha256": {"a": None, "c": "0" * 64}}, "404 Client Error"),
        ({"url": "http://127.0.0.1:9/"}, "refused"),
    ],
)
def test_what_fails_leaves_nothing(source, tmp_path, change, reason):
    sums = change.get("sha256", source.sha256)
    sums = {name: digest or source.sha256[name] for name, digest in sums.items()}
    root = tmp_path / "root"
    message = f"data_root: Data could not be downloaded to {root}: .*{reason}"
    with (
        pytest.raises(FileNotFoundError, match=message),
        downloaded("Data", source._replace(**change | {"sha256": sums}), root),
    ):
        raise AssertionError("there is nothing to use")
    assert list(root.iterdir()) == []


def test_a_root_that_cannot_be_made(source, tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(FileNotFoundError, match="data_root: Data could not be downloaded"),
        downloaded("Data", source, tmp_path / "file"),
    ):
        raise AssertionError("there is nothing to use")


def test_published_files_come_over_https_and_have_a_sha256():
    modules = [
        importlib.import_module(f"{sets.__name__}.{one.name}") for one in pkgutil.iter_modules(sets.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Source)]
    assert len(found) == 4
    for source in found:
        assert source.url.startswith("https://") and source.url.endswith("/")
        assert all(len(bytes.fromhex(digest)) == 32 for digest in source.sha256.values())
