"""Run:ai's model streamer, used as in its README: loads every tensor of every file into memory.

Prints the cost in the format of the bench's own clients.
"""

import json
import sys
import time

import numpy
import torch
from runai_model_streamer import SafetensorsStreamer, list_safetensors


def main(folder):
    cpu, wall = time.process_time(), time.monotonic()
    tensors = []
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list_safetensors(folder))
        for _, tensor in streamer.get_tensors():
            tensors.append(tensor)
    cost = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall}
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line for line in status if line.startswith("VmHWM:"))
    cost["peak_mb"] = int(peak.split()[1]) * 1024 / 1e6
    words = numpy.uint64(0)
    with numpy.errstate(over="ignore"):
        for tensor in tensors:
            view = tensor.contiguous().view(torch.int16).numpy().reshape(-1).view(numpy.uint64)
            words += view.sum(dtype=numpy.uint64)
    cost["bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    cost["words"] = int(words)
    print(json.dumps(cost))


main(sys.argv[1])
