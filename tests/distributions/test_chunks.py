"""Cutting long sequences."""

import pytest
import torch

from pyro_fmvae.distributions.chunks import cut


def test_chunks_are_pieces_of_the_sequences():
    x = torch.arange(46.0).view(2, 23, 1)
    values, spans = cut(x, 10, 2, torch.tensor([23, 9]))
    assert spans.tolist() == [[0, 0, 10, 12], [8, 2, 12, 14], [18, 2, 5, 5], [0, 0, 9, 9]]
    for (row, begin), each, (_, _, _, there) in zip(
        ((0, 0), (0, 8), (0, 18), (1, 0)), values, spans, strict=True
    ):
        assert torch.equal(each[:there], x[row, begin : begin + there])
    assert cut(x[:, :1], 10, 2)[0].shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(3), 2, 1), r"x: expected shape \[B, T, ...\], with B and T 1 or more, got \[3\]"),
        ((torch.zeros(3, 0), 2, 1), r"x: expected shape .* got \[3, 0\]"),
        ((torch.zeros(3, 4), 0, 1), "length, buffer: expected 1 or more and 0 or more, got 0 and 1"),
        ((torch.zeros(3, 4), 2, -1), "length, buffer: expected 1 or more and 0 or more, got 2 and -1"),
        (
            (torch.zeros(2, 4), 2, 1, torch.tensor([4, 0])),
            "lengths: expected numbers from 1 to the duration 4",
        ),
    ],
)
def test_chunks_that_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        cut(*arguments)
