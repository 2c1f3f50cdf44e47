"""A local web page for a run: generate, edit, look at clusters, label, and find outliers.

What each tab computes is plain functions of an :class:`Exploration`. The page itself needs gradio, which
:func:`~pyro_fmvae.app.explorer.serving.serve` imports when it is called.
"""

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.label_session import LabelSession, most_telling
from pyro_fmvae.app.explorer.serving import serve

__all__ = ["Exploration", "LabelSession", "most_telling", "serve"]
