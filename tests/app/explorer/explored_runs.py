"""Tiny runs to explore, of pictures with labels and of a table without."""

import csv

import numpy as np
from PIL import Image

from tests.small_runs import train_all

SIDE, PICTURES, ROWS = 8, 48, 60


def write_pictures(folder):
    """Pictures with a bright left or right half; every third one has no label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "side"])
        for number in range(PICTURES):
            pixels = rng.integers(0, 60, (SIDE, SIDE)).astype(np.uint8)
            half = slice(0, 4) if number % 2 else slice(4, 8)
            pixels[:, half] += np.uint8(180)
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
            writer.writerow([f"{number:02d}.png", "" if number % 3 == 0 else ("right", "left")[number % 2]])
    return folder


def write_table(folder):
    """Two clusters of numbers, and a column of words."""
    rng = np.random.default_rng(1)
    path = folder / "fruit.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["weight", "length", "colour"])
        for number in range(ROWS):
            kind = number % 2
            weight, length = rng.normal((100 + 80 * kind, 6 + 3 * kind), (5, 0.5))
            writer.writerow([f"{weight:.1f}", f"{length:.2f}", ("green", "red")[kind]])
    return path


ELSEWHERE = "127.0.0.1:9"
POISON = f"![a](http:/{ELSEWHERE}/pixel.png) [b](http:/{ELSEWHERE}/) <img src=//{ELSEWHERE}/pixel.png> $x$"
"""A name that is a picture elsewhere in Markdown, in HTML, and a formula."""


def write_poisoned(folder):
    """Two clusters, whose columns and labels have such names; so has the file."""
    path = folder / f"{POISON.replace('/', chr(92))}.csv"  # browsers take a backslash for a slash
    rows = [f"{POISON}1,{POISON}2,label:{POISON}3"]
    for number in range(ROWS):
        kind = number % 2
        label = f"{POISON}{('left', 'right')[kind]}" if number % 3 else ""
        rows.append(f"{number % 7 + 20 * kind},{number % 5 - 9 * kind},{label}")
    path.write_text("\n".join(rows) + "\n")
    return path


def train_runs(folder):
    files = {"pictures": write_pictures(folder / "photos"), "table": write_table(folder), "plain": None}
    files["plain"], files["poisoned"] = files["pictures"], write_poisoned(folder)
    options = {
        "pictures": {"labels": 1, "factors": "2,3", "network": "mlp"},
        "table": {"factors": 2, "model": "mixture"},
        "poisoned": {"labels": 1, "factors": "2,2"},
        "plain": {"model": "vae", "network": "mlp"},
    }
    return train_all(folder / "runs", files, options)
