"""A stand-in for CUDA's graphs on the CPU: what is recorded is frozen, and happens when it is replayed."""

import contextlib

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from pyro_fmvae.capture import captured_svi, playback
from pyro_fmvae.capture.playback import CUDAGraph


class Recorder:
    """Stands in for ``torch.cuda``.

    Attributes:
        graphs: all that were made.
        streams: how many calls ran on a stream of their own.
        refusal: what recording raises as a RuntimeError, if anything.
    """

    def __init__(self):
        self.graphs, self.recording, self.streams, self.refusal = [], None, 0, ""

    class Stream:
        def wait_stream(self, other):
            pass

    class Event:
        def record(self, stream):
            pass

        def synchronize(self):
            pass

    def current_stream(self, device=None):
        return self.Stream()

    @contextlib.contextmanager
    def stream(self, stream):
        self.streams += 1
        yield

    @contextlib.contextmanager
    def device(self, device):
        yield

    def CUDAGraph(self):
        graph = Graph()
        self.graphs.append(graph)
        return graph

    @contextlib.contextmanager
    def graph(self, graph):
        self.recording = graph
        try:
            yield
        finally:
            self.recording = None


class Graph:
    """The kernels of a call: whatever Python read from the host is a constant, as in a graph of CUDA's."""

    def __init__(self):
        self.kernels, self.result, self.replays = None, None, 0

    def record(self, function):
        """Freeze a call that changes tensors in place alone, and undo what it did."""
        writes, results = _Writes(), []

        def call():
            with writes:
                results.append(function())
            return results[0]

        with torch.random.fork_rng([]), torch.autograd.set_multithreading_enabled(False):
            self.kernels = make_fx(call, tracing_mode="real")()
        writes.undo()
        self.result = tree_map(lambda t: torch.full_like(t, torch.nan), results[0])
        return self.result

    def replay(self):
        self.replays += 1
        with torch.no_grad():
            for kept, value in zip(tree_leaves(self.result), tree_leaves(self.kernels()), strict=True):
                kept.copy_(value)


class _Writes(TorchDispatchMode):
    """Keeps the values that operations overwrite."""

    def __init__(self):
        super().__init__()
        self._kept = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(given):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in self._kept:
                    with _disable_current_modes():
                        self._kept[id(tensor)] = tensor, tensor.detach().clone()
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs))

    def undo(self):
        """Put them back, the latest first: a tensor and a view of it may both be among them."""
        with torch.no_grad():
            for tensor, value in reversed(self._kept.values()):
                tensor.copy_(value)


def _plain(value):
    """Parameters of a class of their own as what they are to a kernel."""
    if type(value) in (torch.Tensor, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
        return value
    with _disable_current_modes():
        return value.detach().as_subclass(torch.Tensor)


def stand_in(monkeypatch):
    """Put a recorder in the place of ``torch.cuda``, and graph everything on the CPU."""
    recorder = Recorder()
    for name in ("Stream", "Event", "current_stream", "stream", "device", "CUDAGraph", "graph"):
        monkeypatch.setattr(playback.torch.cuda, name, getattr(recorder, name))
    record = CUDAGraph._record

    def recording(graph):
        function = graph.function

        def frozen(*static):
            if recorder.refusal:
                raise RuntimeError(recorder.refusal)
            return recorder.recording.record(lambda: function(*static))

        graph.function = frozen
        try:
            return record(graph)
        finally:
            graph.function = function

    monkeypatch.setattr(CUDAGraph, "_record", recording)
    monkeypatch.setattr(captured_svi, "_on_gpu", lambda inputs: True)
    return recorder
