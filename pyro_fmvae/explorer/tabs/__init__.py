"""The tabs of the page: each connects gradio's components with functions of :mod:`pyro_fmvae.explorer`.

Only these modules and :mod:`~pyro_fmvae.explorer.serving` import gradio.
"""
