"""Options that the scripts of this folder share, and a description of the machine."""

import argparse
import os
import platform
from typing import NoReturn

import pyro
import torch


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors and the options of every script.

    Args:
        description: the script's docstring.
        devices: True if the script also runs on a GPU.
        pictures: True if it draws a picture.
    """

    def __init__(self, description: str | None, devices: bool = True, pictures: bool = True) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--seed", type=int, default=0)
        self.add_argument("--threads", type=natural_number, help="threads of torch; default: its own choice")
        if devices:
            self.add_argument("--device", type=usable_device, default=torch.device("cpu"))
        self.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
        if pictures:
            self.add_argument("--plot", metavar="FILE.png", help="also draw a picture")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def natural_number(text: str) -> int:
    """A whole number >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got '{text}'")
    return int(text)


def usable_device(text: str) -> torch.device:
    """Parse ``cpu``, ``cuda`` or ``cuda:N``, which must exist."""
    try:
        device = torch.device(text)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise argparse.ArgumentTypeError(
            f"expected cpu or a CUDA device that is there, got '{text}'"
        ) from None
    return device


def machine(device: torch.device) -> str:
    """Describe the machine and the software that the numbers depend on."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return f"{kind} ({device}), {cores}, torch {torch.__version__}, pyro {pyro.__version__}"
