"""Online latent Dirichlet allocation: perplexity and seconds, beside scikit-learn's.

    python examples/benchmarks/topics.py [--corpus generated] [--documents 20000] [--topics 20] [--passes 6]
    python examples/benchmarks/topics.py --corpus docstrings
    python examples/benchmarks/topics.py --memory

Both methods have the same priors, minibatches, step sizes and kind of random start, and take turns to pass
over all documents. Batches are padded to a quarter, half, three quarters or the whole of the longest
document. A generated corpus has documents of about 100 words, out of 2,000. ``docstrings`` are those in the
sources of NumPy, SciPy, scikit-learn and torch. One line is printed for each pass: seconds of process time in
one thread so far, without imports, and the perplexity of a tenth of the documents, which are kept apart: half
of their words are predicted from the other half, by the same fixed-point iteration for both methods.
"""

import argparse
import ast
import json
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
import torch._dynamo  # the first capture of a process would import it, in about a second
from peak_memory import peak_mb
from scipy.sparse import csr_matrix
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

from pyro_fmvae import (
    AutoConjugate,
    CapturedSVI,
    ConjugateSVI,
    NaturalGradient,
    RobbinsMonro,
    TraceConjugate_ELBO,
)

ALPHA, ETA, BATCH, DELAY, FORGETTING = 0.1, 0.05, 256, 10.0, 0.7
WORDS, LENGTH = 2000, 100  # of a generated corpus
SOURCES = ("numpy", "scipy", "sklearn", "torch")


def model(words, counts, rows, sizes):
    """Different words of documents and how often they occur, [B, W] each, and the documents' numbers [B]."""
    documents, topics, vocabulary = sizes
    with pyro.plate("number", topics):
        probabilities = pyro.sample("topics", dist.Dirichlet(ETA * torch.ones(vocabulary)))
    with pyro.plate("documents", documents, subsample=rows):
        shares = pyro.sample("shares", dist.Dirichlet(ALPHA * torch.ones(topics)))
        word = dist.Categorical(probabilities).expand([len(words), topics])
        times, occurs = poutine.scale(scale=counts.T.clamp(min=1)), poutine.mask(mask=counts.T > 0)
        with pyro.plate("words", words.shape[1], dim=-2), times, occurs:
            pyro.sample("word", dist.MixtureSameFamily(dist.Categorical(shares), word), obs=words.T)


def generated(documents, topics, rng):
    """Counts of words, sparse [documents, WORDS]."""
    probabilities = rng.dirichlet(np.full(WORDS, ETA), topics)
    rows = []
    for block in np.array_split(np.arange(documents), max(documents // 500, 1)):
        shares = rng.dirichlet(np.full(topics, ALPHA), len(block))
        rows += list(rng.multinomial(rng.poisson(LENGTH, len(block)), shares @ probabilities))
    return csr_matrix(np.stack(rows))


def docstrings(documents, rng):
    """Counts of words in docstrings of 20 different words or more, in random order, sparse."""
    found = set()
    for package in SOURCES:
        for path in sorted(Path(find_spec(package).submodule_search_locations[0]).rglob("*.py")):
            try:
                with warnings.catch_warnings(action="ignore"):
                    tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
            except SyntaxError:  # a file for a later Python
                continue
            kinds = ast.FunctionDef | ast.ClassDef | ast.Module
            found |= {ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)}
    counts = CountVectorizer(max_features=5000, max_df=0.3, stop_words="english").fit_transform(sorted(found))
    counts = counts[np.diff(counts.indptr) >= 20]
    return csr_matrix(counts[rng.permutation(counts.shape[0])[:documents]])


def padded(corpus):
    """Numbers of the different words of each document and their counts, [N, W] each, 0 beyond the last."""
    width = int(np.diff(corpus.indptr).max())
    words, counts = (
        torch.zeros(corpus.shape[0], width, dtype=torch.int64),
        torch.zeros(corpus.shape[0], width),
    )
    for row, (begin, end) in enumerate(zip(corpus.indptr, corpus.indptr[1:], strict=False)):
        words[row, : end - begin] = torch.from_numpy(corpus.indices[begin:end]).long()
        counts[row, : end - begin] = torch.from_numpy(corpus.data[begin:end])
    return words, counts


def perplexity(topics, first, rest):
    """Of counts ``rest``, with shares of topics from ``first``, given the weights of words in topics."""
    topics = topics / topics.sum(1, keepdims=True)
    shares = np.full((len(first), len(topics)), 1 / len(topics))
    for _ in range(100):
        shares = shares * ((first / (shares @ topics)) @ topics.T) + ALPHA
        shares /= shares.sum(1, keepdims=True)
    return float(np.exp(-(rest * np.log(shares @ topics)).sum() / rest.sum()))


def memory(kind, width, topics, steps):
    """Peak memory of a step in MB, on a batch of documents of so many different words."""
    words = torch.rand(BATCH, WORDS).topk(width).indices
    data = words, torch.ones(BATCH, width), torch.arange(BATCH), (BATCH, topics, WORDS)
    guide = AutoConjugate(model, local=["documents"], local_steps=steps)
    svi = kind(model, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
    for _ in range(2):
        svi.step(*data)
    return peak_mb(lambda: svi.step(*data), torch.device("cpu"))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", choices=["generated", "docstrings"], default="generated")
    for name, default in (("documents", 20000), ("topics", 20), ("passes", 6), ("steps", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", action="store_true", help="peak memory of steps alone")
    parser.add_argument("--warm", action="store_true", help="start at what a document's last visit found")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pyro.set_rng_seed(chosen.seed)
    if chosen.memory:
        for width, topics in ((WORDS // 40, 20), (WORDS // 20, 20), (WORDS // 10, 20), (WORDS // 20, 100)):
            peaks = {
                kind.__name__: round(memory(kind, width, topics, chosen.steps), 1)
                for kind in (CapturedSVI, ConjugateSVI)
            }
            print(json.dumps({"words": width, "topics": topics, **peaks}), flush=True)
        return
    rng = np.random.default_rng(chosen.seed)
    if chosen.corpus == "generated":
        corpus = generated(chosen.documents * 10 // 9, chosen.topics, rng)
    else:
        corpus = docstrings(chosen.documents * 10 // 9, rng)
    apart = corpus.shape[0] // 10
    test, train = corpus[:apart].toarray(), corpus[apart:]
    first = rng.binomial(test, 0.5)
    words, counts = padded(train)
    sizes = (train.shape[0], chosen.topics, train.shape[1])
    guide = AutoConjugate(model, local=["documents"], local_steps=chosen.steps, local_warm=chosen.warm)
    lengths = (counts > 0).sum(1)
    widths = [-(-words.shape[1] * part // 4) for part in (1, 2, 3, 4)]  # few, as each is captured
    begun = time.process_time()
    guide.setup(words[:BATCH], counts[:BATCH], torch.arange(len(words[:BATCH])), sizes)
    seconds = {"ours": time.process_time() - begun, "scikit-learn": 0.0}
    start = guide.posterior("topics").natural
    with torch.no_grad():  # as scikit-learn starts
        start.copy_(torch.distributions.Gamma(100.0, 100.0).sample(start.shape))
    optim = NaturalGradient(RobbinsMonro(DELAY, FORGETTING))
    svi = CapturedSVI(model, guide, optim, TraceConjugate_ELBO())
    peer = LatentDirichletAllocation(
        chosen.topics,
        doc_topic_prior=ALPHA,
        topic_word_prior=ETA,
        learning_decay=FORGETTING,
        learning_offset=DELAY,
        batch_size=BATCH,
        total_samples=train.shape[0],
        random_state=chosen.seed,
    )
    batch = min(BATCH, train.shape[0])
    for number in range(1, chosen.passes + 1):
        order = rng.permutation(train.shape[0])[: train.shape[0] // batch * batch]
        begun = time.process_time()
        for rows in torch.from_numpy(order).split(batch):
            width = next(each for each in widths if each >= lengths[rows].max())
            svi.step(words[rows, :width], counts[rows, :width], rows, sizes)
        seconds["ours"] += time.process_time() - begun
        begun = time.process_time()
        peer.partial_fit(train[order])
        seconds["scikit-learn"] += time.process_time() - begun
        found = guide.posterior("topics").natural_value().numpy(), peer.components_
        for name, topics in zip(seconds, found, strict=True):
            value = round(perplexity(topics, first, test - first), 2)
            record = {"pass": number, "method": name, "seconds": round(seconds[name], 2), "perplexity": value}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
