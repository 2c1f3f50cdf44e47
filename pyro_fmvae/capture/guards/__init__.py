"""The watch over what a recorded program takes for granted: rehearse a program, then hold its assumptions."""

from pyro_fmvae.capture.guards.assumptions import Assumptions
from pyro_fmvae.capture.guards.rehearsal import Rehearsal

__all__ = ["Assumptions", "Rehearsal"]
