"""Self-contained HTML pages: a run's report, and runs side by side."""

from pyro_fmvae.app.runs.pages.comparison import write_comparison
from pyro_fmvae.app.runs.pages.run_page import PAGE, write_page

__all__ = ["PAGE", "write_comparison", "write_page"]
