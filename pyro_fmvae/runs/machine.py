"""The machine that a run is trained on."""

import os
import platform

import torch


def machine() -> str:
    """The kind of machine that this is, in words, without its name."""
    cores = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} CPU cores"
    return f"{cores}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else cores
