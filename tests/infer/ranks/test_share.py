import pytest
import torch

from pyro_fmvae.infer.ranks import FlatSums, Ranks, Share


@pytest.mark.parametrize(("total", "size"), [(7, 2), (7, 3), (1, 2), (2, 5), (64, 8), (5, 1)])
def test_shares_are_all_rows_in_order(total, size):
    shares = [Share.of(total, rank, size) for rank in range(size)]
    rows = [row for share in shares if share.weight for row in range(share.start, share.stop)]
    assert rows == list(range(total))
    assert sum(share.weight for share in shares) == pytest.approx(1)
    assert {share.stop - share.start for share in shares} <= {total // size or 1, total // size + 1}
    assert all(0 <= share.start < share.stop <= total for share in shares)  # programs need a row


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="batch: expected at least one row, got none"):
        Share.of(0, 0, 2)


def test_cuts_the_dimension_of_the_rows():
    x, labels, weight = torch.arange(21).view(7, 3), torch.arange(14).view(2, 7), torch.tensor(2.0)
    args, kwargs = Share.of(7, 1, 2).cut(((x, "text"), {"labels": labels, "weight": weight}))
    assert torch.equal(args[0], x[3:])
    assert torch.equal(kwargs["labels"], labels[:, 3:])
    assert (args[1], kwargs["weight"]) == ("text", weight)


def test_vectors_have_a_piece_for_each_tensor():
    double, single = torch.float64, torch.float32
    tensors = [torch.tensor(3.0, dtype=double), torch.arange(6, dtype=single).view(2, 3)]
    tensors += [torch.ones(2, dtype=double), torch.ones((), dtype=single)]
    sums = FlatSums(tensors, 0.5)
    assert [(flat.dtype, len(flat)) for flat in sums.flats] == [(double, 3), (single, 7)]
    for part, tensor in zip(sums.parts(), tensors, strict=True):
        assert torch.equal(part, 0.5 * tensor) and part.dtype == tensor.dtype


def test_each_rank_draws_numbers_of_its_own_and_the_common_generator_moves_on_alike():
    inside, behind = [], []
    for rank in range(3):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, 3
        torch.manual_seed(0)
        for _ in range(2):
            with ranks.own_draws():
                inside.append(torch.rand(()).item())
        behind.append(torch.rand(()).item())
    assert len(set(inside)) == 6
    assert len(set(behind)) == 1


def test_a_process_that_is_alone_draws_from_the_common_generator():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with Ranks().own_draws():
        assert torch.equal(torch.rand(2), expected)
