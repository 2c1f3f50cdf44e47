"""The commands behind the command line, one module each."""

from pyro_fmvae.commands.drawing import draw
from pyro_fmvae.commands.editing import edit
from pyro_fmvae.commands.encoding import encode
from pyro_fmvae.commands.evaluation import evaluate
from pyro_fmvae.commands.judging import judge
from pyro_fmvae.commands.restoring import restore
from pyro_fmvae.commands.sampling import sample
from pyro_fmvae.commands.scoring import score
from pyro_fmvae.commands.training import resume, train

__all__ = ["draw", "edit", "encode", "evaluate", "judge", "restore", "resume", "sample", "score", "train"]
