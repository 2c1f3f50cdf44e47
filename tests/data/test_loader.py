import pytest

from pyro_fmvae.data import PatchTransform, SparseOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 1}, "patch_size: expected 2 to 32 pixels, got 1"),
        ({"patch_size": 33}, "patch_size: expected 2 to 32 pixels, got 33"),
        ({"patches": 2}, "patches: expected at least 3, got 2"),
        ({"as_is": True, "patch_size": 8}, "as_is: expected no patch_size with it"),
        (
            {"patch_size": 8, "transform": PatchTransform(4, 9, False, 1.0, None)},
            "transform: expected one of patches of 8, got one of 4",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        SparseOptions(**options)


def test_defaults_change_nothing():
    options = SparseOptions()
    assert not options.as_is and options.patch_size is None and not options.on_off
