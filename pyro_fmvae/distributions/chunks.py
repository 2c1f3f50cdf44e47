"""Long sequences in chunks, with steps around each that help to tell its states."""

from typing import Any, TypeVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_fmvae.distributions.chain import check_lengths

T = TypeVar("T", bound="Sequences")


def cut(x: Tensor, length: int, buffer: int, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cut long sequences into chunks, with steps before and after each that help to tell its states.

    Every step counts in one chunk. So a minibatch of chunks, in a plate of their number, stands for the whole
    sequences (Foti et al., 2014, Stochastic variational inference for hidden Markov models). The same goes
    for a ``LinearGaussianChain``. ::

        values, spans = HiddenMarkov.chunks(x, length=100, buffer=20)
        ...
        with pyro.plate("chunks", len(spans), subsample=rows):
            fn = HiddenMarkov(start, rows, emissions, values.shape[1]).of_chunks(spans[rows])
            pyro.sample("x", fn, obs=values[rows])

    Args:
        x: sequences [B, T, *event], or anything else that goes with their steps, such as a mask.
        length: L, the number of steps of a chunk that count.
        buffer: the number of steps before these, and of steps after them.
        lengths: of each sequence, int64 [B], if they differ.

    Returns:
        Values of the C chunks, [C, min(L + 2 buffer, T), *event], and their spans, int64 [C, 4]: the step
        of the sequence that a chunk begins at; in the chunk, the first step that counts, the end of those
        that do, and the end of those that there are.

    Raises:
        ValueError: there is no sequence or step, ``length`` or one of ``lengths`` is below 1, or
            ``buffer`` below 0.
    """
    if x.dim() < 2 or not x.shape[:2].numel():
        raise ValueError(f"x: expected shape [B, T, ...], with B and T 1 or more, got {list(x.shape)}")
    if length < 1 or buffer < 0:
        raise ValueError(f"length, buffer: expected 1 or more and 0 or more, got {length} and {buffer}")
    number, duration = x.shape[:2]
    ends = torch.full((number,), duration, device=x.device) if lengths is None else lengths
    check_lengths(ends, duration)
    starts = torch.arange(0, duration, length, device=x.device)
    row, piece = (starts < ends.unsqueeze(-1)).nonzero(as_tuple=True)
    first, end = starts[piece], ends[row]
    last = torch.minimum(first + length, end)
    begin = (first - buffer).clamp(min=0)
    there = torch.minimum(last + buffer, end)
    spans = torch.stack([begin, first - begin, last - begin, there - begin], -1)
    steps = torch.arange(min(length + 2 * buffer, duration), device=x.device)
    return x[row.unsqueeze(-1), (begin.unsqueeze(-1) + steps).clamp(max=duration - 1)], spans


class Sequences(TorchDistribution):
    """Base of distributions of sequences [T, *event] that may have lengths, or be chunks of longer ones.

    Attributes:
        lengths: of each sequence, int64 [...], if they differ.
        spans: of each chunk, int64 [..., 4], if they are chunks.
    """

    lengths: Tensor | None
    spans: Tensor | None

    chunks = staticmethod(cut)

    def of_chunks(self: T, spans: Tensor) -> T:
        """Take values as those of :meth:`chunks`; densities are then the parts of the steps that count.

        Args:
            spans: int64 [..., 4], of :meth:`chunks`.

        Raises:
            ValueError: spans of another shape, or together with lengths.
        """
        if spans.shape[-1:] != (4,) or self.lengths is not None:
            raise ValueError(
                f"spans: expected shape [..., 4], and no lengths beside them, got {list(spans.shape)}"
            )
        new: Any = self.expand(broadcast_shape(self.batch_shape, spans.shape[:-1]))
        new.spans = spans
        chunks: T = new
        return chunks

    @property
    def present(self) -> Tensor | None:
        """Steps that count: in a chunk, those outside its buffer; otherwise, those before the end.

        Returns:
            Bool [..., T], or None if all do.
        """
        spans = self.all_spans
        return None if spans is None else counted(spans, self.event_shape[0])

    @property
    def all_spans(self) -> Tensor | None:
        """Spans [..., 4] of chunks, and of whole sequences that have lengths; None of others."""
        return self.spans if self.lengths is None else spans_of(self.lengths)


def spans_of(lengths: Tensor) -> Tensor:
    """Spans [..., 4] of sequences of some lengths [...], each of which is a chunk of all of its steps."""
    nothing = torch.zeros_like(lengths)
    return torch.stack([nothing, nothing, lengths, lengths], -1)


def counted(spans: Tensor, duration: int) -> Tensor:
    """The steps of chunks that count, bool [..., T]."""
    _, first, last, _ = spans.unsqueeze(-2).unbind(-1)
    steps = torch.arange(duration, device=spans.device)
    return (steps >= first) & (steps < last)


def masks_of(spans: Tensor, duration: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which chunks begin their sequences, which steps there are, and which of these count.

    Returns:
        0 or 1, float64 [..., 1, 1, 1] and twice [..., T, 1, 1].
    """
    begin, _, _, there = spans[..., None, None, None].unbind(-4)
    steps = torch.arange(duration, device=spans.device)[:, None, None]
    counts = counted(spans, duration)[..., None, None]
    return (begin == 0).double(), (steps < there).double(), counts.double()
