"""The page: a heading and the tabs."""

from typing import Final

import gradio as gr

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.label_session import LabelSession
from pyro_fmvae.app.explorer.tabs.clusters_tab import clusters_tab
from pyro_fmvae.app.explorer.tabs.common import plain
from pyro_fmvae.app.explorer.tabs.edit_tab import edit_tab
from pyro_fmvae.app.explorer.tabs.factors_tab import factors_tab
from pyro_fmvae.app.explorer.tabs.generate_tab import generate_tab
from pyro_fmvae.app.explorer.tabs.labels_tab import labels_tab
from pyro_fmvae.app.explorer.tabs.outliers_tab import outliers_tab
from pyro_fmvae.app.runs.pages.run_page import describe_data

FONTS: Final = ("system-ui", "sans-serif")
THEME: Final = gr.themes.Default(
    primary_hue="blue", font=list(FONTS), font_mono=["ui-monospace", "monospace"], spacing_size="sm"
)
"""Fonts of the reader's machine."""
STYLE: Final = """
.gradio-container main { width: 100%; max-width: 1180px; margin: 0 auto; }
.grid-wrap { max-height: none !important; min-height: 0 !important; }
.block .empty { min-height: 3rem !important; height: auto !important; }
.pictures-10 .grid-container { grid-template-columns: repeat(10, minmax(0, 1fr)) !important; }
#clusters .grid-wrap { max-height: 352px !important; overflow-y: auto; }
.pictures-1 .grid-container { grid-template-columns: minmax(0, 300px) !important; }
.pictures-3 .grid-container { grid-template-columns: repeat(3, minmax(0, 1fr)) !important; }
.pictures-6 .grid-container { grid-template-columns: repeat(6, minmax(0, 1fr)) !important; }
.thumbnail-lg { height: auto !important; aspect-ratio: auto !important; }
.thumbnail-lg > img { height: auto !important; }
.thumbnail-lg .caption-label { position: static; max-width: none; white-space: normal; text-align: center;
  border: 0; opacity: 1 !important; }
#taken .grid-container { grid-template-columns: minmax(0, 160px) !important; }
#code table, #kept table { border-collapse: collapse; }
#code th, #code td, #kept th, #kept td { text-align: left; padding: .2rem .8rem;
  border: 1px solid var(--border-color-primary); }
"""


def layout(explored: Exploration) -> gr.Blocks:
    """Lay out the page of a run."""
    run = explored.run
    title = run.folder.resolve().name
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {plain(title)}\n{run.recipe.title}, {describe_data(run)}")
        if run.recipe.factorial:
            with gr.Tab("Factors"):
                factors_tab(explored, page)
        with gr.Tab("Generate"):
            generate_tab(explored, page)
        if run.recipe.factorial:
            with gr.Tab("Edit"):
                edit_tab(explored, page)
        if explored.rows is None:
            gr.Markdown(f"Clusters, labels and outliers need the training points. {plain(explored.note)}")
            return page
        if run.recipe.factorial:
            with gr.Tab("Clusters"):
                clusters_tab(explored, page)
            with gr.Tab("Label these next"):
                labels_tab(explored, LabelSession(explored), page)
        with gr.Tab("Outliers"):
            outliers_tab(explored)
    return page
