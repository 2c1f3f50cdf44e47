"""The command line, of which one rank sends itself a signal after a step of its first attempt.

python signalled.py RANK STEP SIGNAL train ...
"""

import os
import signal
import sys
from pathlib import Path

from pyro_fmvae.__main__ import main
from pyro_fmvae.app.runs.trainer import Trainer

rank, step, name, *arguments = sys.argv[1:]
records = Trainer.records


def signalled(self, resumed=False):
    for record in records(self, resumed):
        yield record
        mine = os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if mine and record.total_steps == int(step):
            Path("signalled").touch()
            os.kill(os.getpid(), getattr(signal, name))


Trainer.records = signalled
main(arguments)
