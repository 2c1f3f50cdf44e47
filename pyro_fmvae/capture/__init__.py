"""Steps recorded as plain tensor programs: as they are, compiled, or as CUDA graphs."""

from pyro_fmvae.capture.captured_free_gaussian import CapturedFreeGaussian
from pyro_fmvae.capture.captured_svi import CapturedSVI
from pyro_fmvae.capture.kernels import CapturedNUTS, ConjugateGibbs
from pyro_fmvae.capture.recording import CaptureError

__all__ = ["CaptureError", "CapturedFreeGaussian", "CapturedNUTS", "CapturedSVI", "ConjugateGibbs"]
