"""Peak memory of tensors during a call."""

import json
import os
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def peak_mb(run: Callable[[], object], device: torch.device) -> float:
    """Peak memory of ``run`` above that allocated before it, in 10^6 bytes.

    On a CPU it comes from the allocator's events in torch's profiler. They include those of compiled kernels,
    which no handler of torch's operations sees.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages on standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    return max(accumulate((event["args"]["Bytes"] for event in changes), initial=0)) / 1e6
