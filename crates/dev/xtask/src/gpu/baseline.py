"""Steps of a model in PyTorch with the shapes of gpu_bench, in bf16, as a peer on the same card.

As in gpt-fast: static keys and values, fused q, k and v, fused gate and up, scaled dot product
attention, CUDA graphs. `graph` runs PyTorch's own kernels; `compiled` those of torch.compile.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch.nn import functional

# Hidden size, width, layers, heads, key-value heads, vocabulary.
SHAPES = {
    "tiny": (256, 512, 2, 4, 2, 512),
    "llama-8b": (4096, 14336, 32, 32, 8, 128256),
    "llama-70b": (8192, 28672, 80, 64, 8, 128256),
}


class Network:
    """Layers with random weights."""

    def __init__(self, shape, device):
        hidden, wide, layers, self.heads, self.keys, vocabulary = shape
        self.dim = hidden // self.heads
        drawn = lambda *size: torch.empty(*size, dtype=torch.bfloat16, device=device).normal_(0, 0.02)
        both = (self.heads + 2 * self.keys) * self.dim
        self.embedding, self.output = drawn(vocabulary, hidden), drawn(vocabulary, hidden)
        self.norm = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        self.layers = [(drawn(both, hidden), drawn(hidden, hidden), drawn(2 * wide, hidden), drawn(hidden, wide))
                       for _ in range(layers)]

    def bytes(self):
        """Returns the bytes that a step reads."""
        own = [self.output] + [weight for layer in self.layers for weight in layer]
        return sum(weight.numel() * weight.element_size() for weight in own)

    def caches(self, rows, context, device):
        """Returns the keys and values of each layer."""
        size = (2, rows, self.keys, context, self.dim)
        return [torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in self.layers]

    def rotated(self, x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def forward(self, tokens, positions, caches, causal):
        """Computes the logits of the last token of each row of `tokens`."""
        rows, count = tokens.shape
        hidden = self.norm.numel()
        x = functional.embedding(tokens, self.embedding)
        rates = 500000.0 ** (-torch.arange(0, self.dim, 2, device=x.device, dtype=torch.float32) / self.dim)
        angles = positions[:, None].float() * rates
        cos, sin = angles.cos(), angles.sin()
        norm = lambda x: functional.rms_norm(x, (hidden,), self.norm, 1e-5)
        for (qkv, out, gate_up, down), cache in zip(self.layers, caches):
            parts = functional.linear(norm(x), qkv).view(rows, count, -1, self.dim).transpose(1, 2)
            q, k, v = parts.split((self.heads, self.keys, self.keys), 1)
            q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
            cache[0].index_copy_(2, positions, k)
            cache[1].index_copy_(2, positions, v)
            own = functional.scaled_dot_product_attention(q, cache[0], cache[1], is_causal=causal, enable_gqa=True)
            x = x + functional.linear(own.transpose(1, 2).reshape(rows, count, hidden), out)
            gate, up = functional.linear(norm(x), gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(norm(x[:, -1:]), self.output).float()


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def times(run, device, least=10, seconds=2.0):
    """Returns the milliseconds of calls."""
    took, begun = [], time.monotonic()
    while len(took) < least or time.monotonic() - begun < 0.5:
        since = time.perf_counter()
        run()
        wait(device)
        took.append((time.perf_counter() - since) * 1e3)
        if time.monotonic() - begun > seconds:
            break
    return took


def recorded(run, device):
    """Returns a call that replays the kernels of `run` in a CUDA graph."""
    if device == "cpu":
        return run
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def step(network, forward, rows, context, device):
    """Returns the milliseconds of steps of one token, which is sampled on the device."""
    caches = network.caches(rows, context + 1, device)
    tokens = torch.full((rows, 1), 7, device=device)
    positions = torch.tensor([context], device=device)
    result = {}

    def once():
        chances = functional.softmax(forward(tokens, positions, caches, False)[:, 0], -1)
        # The largest of a race has the distribution, without a wait for the device.
        result["tokens"] = (chances / torch.empty_like(chances).exponential_(1)).argmax(-1)

    replay = recorded(once, device)

    def run():
        replay()
        result["tokens"].cpu()

    for _ in range(3):
        run()
    return times(run, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device, small = arguments.device, arguments.model == "tiny"
    torch.manual_seed(7)
    network = Network(SHAPES[arguments.model], device)
    named = {"model": arguments.model, "format": "bf16", "device": device, "torch": torch.__version__}
    say = lambda **fields: print(json.dumps({**named, **fields}), flush=True)
    contexts, cases = ([40], [1, 3]) if small else ([1024, 8192], [1, 5, 16, 64])
    ways = [("graph", network.forward, cases)]
    if not small:
        # Each shape compiles for half a minute.
        ways.append(("compiled", torch.compile(network.forward, dynamic=False), [1, 16]))
    torch._dynamo.config.cache_size_limit = 64
    with torch.inference_mode():
        for way, forward, own in ways:
            for context in contexts:
                for rows in own:
                    try:
                        took = step(network, forward, rows, context, device)
                    except Exception as error:  # The other shapes are worth as much.
                        say(kind="skipped", way=way, rows=rows, context=context, why=repr(error)[:300])
                        continue
                    say(kind="peer-step", way=way, rows=rows, context=context, median_ms=statistics.median(took),
                        min_ms=min(took), max_ms=max(took), steps=len(took), bytes=network.bytes())
        for count in [70] if small else contexts:
            caches = network.caches(1, count, device)
            tokens, positions = torch.full((1, count), 7, device=device), torch.arange(count, device=device)
            run = lambda: network.forward(tokens, positions, caches, True)
            run()
            took = times(run, device, least=3)
            say(kind="peer-prefill", tokens=count, ms=min(took), tokens_per_s=count / min(took) * 1e3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
