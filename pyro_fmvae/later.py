"""Names of the package that are imported when they are asked for.

They need runs, and so figures and measures: matplotlib takes a while.
"""

from importlib import import_module
from typing import Any

_MODULES = dict.fromkeys(("TrainedRun", "from_pretrained", "load"), "pyro_fmvae.runs")
_MODULES["train"] = "pyro_fmvae.commands.from_python"


def attribute(name: str) -> Any:
    """The attribute of ``pyro_fmvae`` of that name, as a module's ``__getattr__`` gives it.

    Raises:
        AttributeError: there is none.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'pyro_fmvae' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
