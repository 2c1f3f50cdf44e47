import os
import signal

import matplotlib
import pyro
import pytest
import torch
from torch.utils._triton import has_triton

from pyro_fmvae.distributions.exponential_family import natural_classes_on

matplotlib.use("Agg")
torch.set_num_threads(1)

GPU = torch.cuda.is_available()
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run tests that are marked as slow, too")


def pytest_collection_modifyitems(config, items):
    lacking = {}
    if not GPU:
        lacking["gpu"] = pytest.mark.skip(reason="needs a CUDA device")
    if not config.getoption("--slow"):
        lacking["slow"] = pytest.mark.skip(reason="slow: run by pytest --slow")
    for item in items:
        for name, skip in lacking.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Where there is a GPU, tests that are not marked as its own run on the CPU all the same."""
    if not GPU:
        return
    seen = item.get_closest_marker("gpu") is not None
    torch.cuda.is_available = lambda: seen
    has_triton.cache_clear()  # what torch's compiler remembers of it
    if not seen:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of what a test starts
    elif VISIBLE is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = VISIBLE


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Ctrl-C is heard as in a terminal, also where they run in a shell's background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unsynced():
    """Files of tests need not outlast the machine; a tiny run would wait for the disk twenty times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def clean_slate():
    """Each test starts from the same seeds, in float64, with an empty parameter store and validation on."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)  # random, numpy and torch
    pyro.clear_param_store()
    with pyro.validation_enabled(True):
        yield
    pyro.clear_param_store()
    torch.set_default_dtype(dtype)


@pytest.fixture
def single_precision(clean_slate):
    """Torch's own default dtype, used by the loaders of data sets and by the command line."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def own_families(monkeypatch):
    """A reason offers every registered family: with this, not those that other tests have registered."""

    def on(*args):
        return [kind for kind in natural_classes_on(*args) if kind.__module__.startswith("pyro_fmvae.")]

    monkeypatch.setattr("pyro_fmvae.infer.elbo.recognition.natural_classes_on", on)
