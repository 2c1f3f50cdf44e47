"""Sphinx extension that draws formulas as SVG when the pages are built.

A browser then needs no script, no font and no network to show them. Each picture is labelled with its LaTeX
source, for screen readers.
"""

import html
import re

import ziamath
from docutils import nodes
from sphinx.util import logging

EM = 16  # pixels in which a formula is drawn; the page scales it to the text around it
SCALE = 1.05  # the formulas' font looks smaller than the theme's

REWRITTEN = {
    r"\\[lr]?Vert\b": r"\\|",  # the only double bar that ziamath does not stretch
    r"(\\operatorname\{\w+\}) (?=[\w\\])": r"\1\\,",  # ziamath sets no space behind a function's name
}

logger = logging.getLogger(__name__)
ziamath.config.svg2 = False  # one picture refers to no symbol of another
ziamath.config.precision = 2


def svg(node: nodes.Node, *, inline: bool) -> str:
    """Picture of a formula, sized in em and set on the baseline of its line.

    Args:
        node: Sphinx's node of the formula. A command that is not known is a warning at its place.
        inline: within a sentence, not on a line of its own.
    """
    latex = node.astext().strip()
    drawn = latex
    for pattern, replacement in REWRITTEN.items():
        drawn = re.sub(pattern, replacement, drawn)
    drawing = ziamath.Latex(drawn, size=EM, color="currentColor", inline=inline)
    if "\\" in drawing.mathmlstr():
        logger.warning("a command of this formula cannot be drawn: %s", latex, location=node)
    picture = drawing.svgxml()
    lengths = {name: float(picture.attrib.pop(name)) for name in ("width", "height")}
    lengths["vertical-align"] = drawing.getyofst()
    style = "; ".join(f"{name}: {SCALE * pixels / EM:.3f}em" for name, pixels in lengths.items())
    picture.attrib.update({"role": "img", "aria-label": latex, "style": style})
    return ziamath.zmath.ET.tostring(picture, encoding="unicode")


def visit_inline(translator, node):
    """Write a formula within a sentence."""
    translator.body.append(f'<span class="math">{svg(node, inline=True)}</span>')
    raise nodes.SkipNode


def visit_display(translator, node):
    """Write a formula on a line of its own, with its number if it has one."""
    number = f'<span class="eqno">({html.escape(node["number"])})</span>' if node.get("number") else ""
    translator.body.append(f'<div class="math">{number}{svg(node, inline=False)}</div>')
    raise nodes.SkipNode


def setup(app):
    """Register the renderer ``svg`` for ``html_math_renderer``."""
    app.add_html_math_renderer("svg", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
