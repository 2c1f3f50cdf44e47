"""Pieces of HTML. Pages need nothing beside themselves: pictures are embedded, and there are no scripts.

Every function takes plain text, which it escapes, unless it says that it takes HTML.
"""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Final

import numpy as np
from PIL import Image

from pyro_fmvae.app.runs import closing_table
from pyro_fmvae.files import checkpoint

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c1f24; --quiet: #5d6572;
  --line: #dfe3e8; --accent: #16457f; --warn: #8a4b00; --warn-page: #fff4e0; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1d2126; --ink: #e6e9ed; --quiet: #9aa3af; --line: #343a42;
    --accent: #8db8ee; --warn: #ffc776; --warn-page: #33270f; }
  .chart img { filter: invert(0.885) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 64rem; margin: 0 auto; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 0 0 .6rem; font-size: 1.15rem; }
h3 { margin: 1.1rem 0 .3rem; font-size: 1rem; }
p { margin: .4rem 0; max-width: 46rem; }
.lead { color: var(--quiet); margin-bottom: 1.2rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; margin: 1rem 0; }
section.warn { background: var(--warn-page); border-color: var(--warn); }
section.warn h2 { color: var(--warn); }
ul { margin: .3rem 0; padding-left: 1.2rem; }
li { margin: .3rem 0; max-width: 46rem; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: nowrap; }
.wide { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; }
tbody th { font-weight: 500; color: var(--quiet); }
tr:last-child > * { border-bottom: 0; }
table.facts td { overflow-wrap: anywhere; }
figure { margin: .6rem 0; break-inside: avoid; }
figure img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
figcaption { color: var(--quiet); font-size: .9rem; margin-top: .3rem; max-width: 46rem; }
.cards { display: grid; gap: .4rem 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(18.8rem, 100%), 1fr)); }
.cards figure { margin: .4rem 0; }
.thumbs { display: flex; flex-wrap: wrap; gap: 4px; }
.thumbs img { width: 2.9rem; height: 2.9rem; object-fit: contain; image-rendering: pixelated;
  border: 1px solid var(--line); border-radius: 4px; background: #888; }
.thumbs img.large { image-rendering: auto; }
.beside { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(18rem, 1fr); gap: 1rem;
  overflow-x: auto; }
summary { cursor: pointer; color: var(--accent); }
@media (max-width: 40rem) { body { padding: 1rem .5rem 2rem; } section { padding: .8rem .8rem; } }
@media print {
  :root { --page: #fff; --card: #fff; --ink: #000; --quiet: #444; --line: #bbb; --warn-page: #fff; }
  .chart img { filter: none; }
  body { padding: 0; font-size: 11pt; }
  section { border: 0; padding: 0; margin: 1.2rem 0; }
  h2, h3 { break-after: avoid; }
  tr { break-inside: avoid; }
}
"""
# The policy forbids every request, so that a name with a URL in it could not cause one either.
PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
$body
</main>
</body>
</html>
""")
CODE = r"<code>\1</code>"
_OPTION = re.compile(r"(--[a-z][a-z-]+(?: [\d.]*\d)?)")
SMOOTH_FROM = 32  # pixels from which on an image is not shown with visible pixels


def write_document(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page in one step, so that no half-written file remains.

    Args:
        path: the file.
        title: of the page.
        parts: of its body, HTML; empty ones are left out.
    """
    body = "\n".join(part for part in parts if part)
    text = PAGE.substitute(title=escape(title), style=STYLE, body=body)
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def section(title: str, parts: Iterable[str], kind: str = "") -> str:
    """A card with a heading; nothing if all parts, HTML, are empty.

    Args:
        title: the heading.
        parts: HTML.
        kind: ``warn`` or nothing.
    """
    inside = "\n".join(part for part in parts if part)
    opening = f'<section class="{kind}">' if kind else "<section>"
    return f"{opening}\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


def heading(text: str) -> str:
    """A heading within a section."""
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, of a class if one is given."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(lines: Sequence[str]) -> str:
    """A list, in which options such as ``--seed 1`` are set as code; nothing if it is empty."""
    items = "".join(f"<li>{_OPTION.sub(CODE, escape(line))}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def facts(values: Mapping[str, str]) -> str:
    """A table of two columns: name → value."""
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in values.items()
    )
    return f'<div class="wide"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names its rows; nothing if there are no rows."""
    body = "".join(
        f"<tr><th scope='row'>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    columns = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    inside = f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>' if body else ""


def figure(png: bytes, alt: str, caption: str = "", chart: bool = False) -> str:
    """A picture with its caption.

    Args:
        png: contents of the file.
        alt: what it shows, for those who cannot see it.
        caption: below it.
        chart: lines on white, which dark pages show on black.
    """
    kind = ' class="chart"' if chart else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure{kind}><img alt="{escape(alt)}" src="{data_uri(png)}">{below}</figure>'


def thumbnails(pictures: Sequence[np.ndarray], caption: str, largest: int) -> str:
    """Small pictures in a row, with one caption.

    Args:
        pictures: uint8 [H, W] or [H, W, 3].
        caption: below them.
        largest: side in pixels that larger ones are shrunk to.
    """
    images = "".join(_thumbnail(picture, largest) for picture in pictures)
    text = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure><div class="thumbs">{images}</div>{text}</figure>'


def _thumbnail(picture: np.ndarray, largest: int) -> str:
    image, file = Image.fromarray(picture), io.BytesIO()
    large = max(image.size) > SMOOTH_FROM
    image.thumbnail((largest, largest))
    image.save(file, format="JPEG" if large else "PNG", quality=85)
    kind = ' class="large"' if large else ""
    return f'<img{kind} alt="" src="{data_uri(file.getvalue(), "jpeg" if large else "png")}">'


def data_uri(content: bytes, kind: str = "png") -> str:
    """A picture's file as the address of an image."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals and a true minus sign; nothing for None."""
    return closing_table.number(value, digits).replace("-", "−")
