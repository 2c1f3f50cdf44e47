"""What the log says of the time that training takes."""

import logging

import torch

from pyro_fmvae.app.runs.training import Outlook
from pyro_fmvae.learn.fitting import Record


def test_estimate_comes_once_and_then_every_minute_what_is_left(caplog):
    outlook = Outlook(torch.device("cpu"))
    steps = [(1, None, None), (10, 0.04, 240.0), (11, 0.04, 239.0), (1500, 0.04, 180.0), (1501, 0.04, 179.0)]
    with caplog.at_level(logging.INFO, "pyro_fmvae"):
        for step, pace, left in steps:
            outlook(Record("joint", step, step, 0.1, 1.0, 0.04 * step, pace, left))
            if step == 1500:
                outlook(Record("joint", step, step, 0.1, 1.0, 61.0, pace, left))
    first, *others = caplog.messages
    assert first.startswith("about 4 min: 6,010 steps of 40 ms; ") and first.endswith("of memory so far")
    assert others == ["joint step 1500: about 3 min left"]
