"""Several processes that train one model together: see the folder's README."""

from pyro_fmvae.ranks.flat_sums import FlatSums
from pyro_fmvae.ranks.gathering import anywhere, by_rows, gathered, own_rows, whole_batch
from pyro_fmvae.ranks.group import AnotherRankError, LostRankError, Ranks
from pyro_fmvae.ranks.own_rows import OwnRows, drawing, row_dimension
from pyro_fmvae.ranks.share import Share
from pyro_fmvae.ranks.world import now, together, world

__all__ = [
    "AnotherRankError",
    "FlatSums",
    "LostRankError",
    "OwnRows",
    "Ranks",
    "Share",
    "anywhere",
    "by_rows",
    "drawing",
    "gathered",
    "now",
    "own_rows",
    "row_dimension",
    "together",
    "whole_batch",
    "world",
]
