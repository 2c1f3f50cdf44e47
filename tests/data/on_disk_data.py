"""Arrays for tests, and the same arrays as rows that are not in memory."""

import torch

from pyro_fmvae.data import Split


class Counted:
    """Rows of a tensor that count how often, and note in which pieces, they are read."""

    def __init__(self, x):
        self.x, self.asked = x, []
        self.shape, self.dtype = tuple(x.shape), x.dtype

    def __len__(self):
        return len(self.x)

    def read(self, rows):
        self.asked.append(rows)
        return self.x[rows]


def numbered(n, width=3):
    """Rows that hold their own number, float32 [n, width]."""
    return torch.arange(n, dtype=torch.float32)[:, None].expand(n, width).contiguous()


def both(n, labelled=False):
    """The same split in memory and not."""
    labels = torch.arange(n)[:, None] if labelled else None
    return Split(numbered(n), labels), Split(Counted(numbered(n)), labels)
