"""Topics of real corpora: perplexity of new words and coherence, beside scikit-learn, gensim and tomotopy.

    python examples/benchmarks/others/topics.py [CORPUS.tsv] [--topics 20] [--seeds 5]

The corpus is in the form of OCTIS (Terragni et al., 2021): a document, split and label by tabs. Without one,
a corpus is generated from 20 topics. Models learn from ``train``. Half of each document's words in ``test``
give its shares, and the others are predicted. NPMI is that of ten top words in the documents of ``train``.
Libraries that are not installed are left out.

All have one start and one thread, and 1 / K and 0.1 as concentrations of shares and words; scikit-learn also
has its own, 1 / K for both.
"""

import argparse
import json
import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.decomposition import LatentDirichletAllocation

from pyro_fmvae.sklearn import TopicModel

WORDS = 0.1


def counted(documents, vocabulary):
    """Counts of the words of a vocabulary, [N, V]."""
    columns = [vocabulary[word] for document in documents for word in document]
    ends = np.cumsum([0, *map(len, documents)])
    counts = csr_matrix((np.ones(len(columns)), columns, ends), (len(documents), len(vocabulary)))
    counts.sum_duplicates()
    return counts


def ours(documents, counts, first, topics, seed):
    """Shares of the documents of ``first`` [n, K], and topics [K, V]."""
    model = TopicModel(topics, random_state=seed).fit(counts)
    return lambda: model.transform(counted(first, ours.vocabulary)), normalised(model.components_)


def sklearn(documents, counts, first, topics, seed, words=WORDS):
    model = LatentDirichletAllocation(
        topics, topic_word_prior=words, max_iter=100, random_state=seed, learning_method="batch"
    ).fit(counts)
    return lambda: model.transform(counted(first, ours.vocabulary)), normalised(model.components_)


def sklearn_defaults(documents, counts, first, topics, seed):
    return sklearn(documents, counts, first, topics, seed, None)


def gensim(documents, counts, first, topics, seed):
    from gensim.matutils import corpus2dense
    from gensim.models import LdaModel

    def bags(table):
        return [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in table]

    names = dict(enumerate(ours.vocabulary))
    model = LdaModel(
        bags(counts), topics, names, passes=20, alpha=1 / topics, eta=WORDS, random_state=seed, iterations=100
    )

    def shares():
        found = model.get_document_topics(bags(counted(first, ours.vocabulary)), minimum_probability=0)
        return corpus2dense(found, topics).T

    return shares, model.get_topics()


def tomotopy(documents, counts, first, topics, seed):
    import tomotopy

    model = tomotopy.LDAModel(k=topics, alpha=1 / topics, eta=WORDS, seed=seed)
    for document in documents:
        model.add_doc(document)
    model.train(1000, workers=1)
    places = [ours.vocabulary[word] for word in model.used_vocabs]
    found = np.zeros((topics, len(ours.vocabulary)))
    found[:, places] = [model.get_topic_word_dist(topic) for topic in range(topics)]

    def shares():
        prior = np.asarray(model.alpha) / np.sum(model.alpha)
        made = [model.make_doc(document) if document else None for document in first]
        model.infer([document for document in made if document is not None], iterations=200, workers=1)
        return np.array([prior if document is None else document.get_topic_dist() for document in made])

    return shares, found


def generated():
    """Lines of a corpus: 400 documents of 60 words, of 20 topics over 500 words."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(500, 0.05), 20)
    for number, shares in enumerate(rng.dirichlet(np.full(20, 0.1), 400)):
        words = " ".join(f"word{place}" for place in rng.choice(500, 60, p=shares @ topics))
        yield f"{words}\t{'test' if number % 4 == 0 else 'train'}\tnone"


def normalised(components):
    return components / components.sum(1, keepdims=True)


def coherence(topics, counts):
    """Mean NPMI of two of a topic's ten top words."""
    judge = TopicModel(len(topics))
    judge.components_, judge.n_features_in_ = topics, topics.shape[1]
    return float(judge.coherence(counts).mean())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    text = Path(chosen.corpus).read_text(encoding="utf-8").splitlines() if chosen.corpus else generated()
    lines = [line.split("\t") for line in text]
    train, test = ([line[0].split() for line in lines if line[1] == split] for split in ("train", "test"))
    ours.vocabulary = {word: number for number, word in enumerate(sorted({w for d in train for w in d}))}
    rng, first, rest = np.random.default_rng(0), [], []
    for document in test:
        known = [word for word in document if word in ours.vocabulary]
        order = rng.permutation(len(known))
        first.append([known[place] for place in order[: len(known) // 2]])
        rest.append([known[place] for place in order[len(known) // 2 :]])
    counts, new = counted(train, ours.vocabulary), counted(rest, ours.vocabulary).tocoo()
    methods = {"TopicModel": ours, "scikit-learn": sklearn, "scikit-learn, its priors": sklearn_defaults}
    methods |= {
        name: method for name, method in (("gensim", gensim), ("tomotopy", tomotopy)) if find_spec(name)
    }
    found = {name: [] for name in methods}
    for seed in range(chosen.seeds):
        for name, method in methods.items():
            begun = time.process_time()
            shares, topics = method(train, counts, first, chosen.topics, seed)
            seconds, shares = time.process_time() - begun, shares()
            density = np.einsum("nk,nk->n", shares[new.row], topics.T[new.col])
            perplexity = np.exp(-(new.data @ np.log(density)) / new.data.sum())
            found[name].append((perplexity, coherence(topics, counts), seconds))
    for name, rows in found.items():
        perplexity, npmi, seconds = zip(*rows, strict=True)
        spread = statistics.stdev(perplexity) if len(rows) > 1 else 0.0
        record = {
            "method": name,
            "perplexity": round(statistics.mean(perplexity), 1),
            "deviation": round(spread, 1),
        }
        print(
            json.dumps(
                {
                    **record,
                    "npmi": round(statistics.mean(npmi), 3),
                    "seconds": round(statistics.mean(seconds), 2),
                }
            )
        )


if __name__ == "__main__":
    main()
