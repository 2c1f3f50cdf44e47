"""The tabs of the page: each connects gradio's components with functions of :mod:`pyro_fmvae.app.explorer`.

Only these modules and :mod:`~pyro_fmvae.app.explorer.serving` import gradio.
"""
