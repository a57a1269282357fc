"""Runs the stages of a GPU's measurement, and goes on where an earlier call was cut.

Each stage has a time limit. A result is written as soon as a stage ends: one JSON object a line in
$OUT/results.jsonl, with the output in $OUT/<stage>.log. A stage that has ended, well or badly, does
not run again with the same programs, unless --again names it. A stage that --limit cuts does.
"""

import argparse
import glob
import hashlib
import importlib.util
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# Seconds below which no stage is begun.
TOO_SHORT = 15

# Bandwidths in GB/s by NVIDIA's data sheets, by a part of the name.
BANDWIDTHS = [("H200", 4800), ("H100 NVL", 3900), ("H100 PCIe", 2000), ("H100", 3350), ("A100", 2039), ("B200", 8000)]

# Tools of a toolkit that may not be in PATH.
TOOLS = ["/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda/nsight-compute*"]

# Kernels that ncu looks at, as patterns of names.
KERNELS = "products_brains|products_q4_k|attend"


class Stage:
    """One command, with a limit in seconds."""

    def __init__(self, name, limit, command, skip=None):
        self.name, self.limit, self.command, self.skip = name, limit, command, skip


class Machine:
    """The device, and where its libraries and tools are."""

    def __init__(self, device):
        self.device = device
        self.emulated = device == "emulator"
        self.environment = dict(os.environ)
        folders = library_folders()
        before = os.environ.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join(folders + ([before] if before else []))
        self.facts = {"device": device, "cores": os.cpu_count(), "libraries": folders}
        self.facts["torch"] = None if importlib.util.find_spec("torch") is None else output(
            [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"])
        fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        card = output(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"])
        self.facts["card"] = card
        words = (card or "").splitlines()[:1]
        words = [word.strip() for word in words[0].split(",")] if words else []
        self.name = words[0] if words else ""
        self.memory = float(words[2]) * 1.048576e-3 if len(words) > 2 else None
        known = [speed for part, speed in BANDWIDTHS if part in self.name]
        self.bandwidth = known[0] if known else None
        self.facts.update(memory_gb=self.memory, bandwidth_gb_s=self.bandwidth)
        smi = output(["nvidia-smi"]) or ""
        self.facts["cuda"] = smi.split("CUDA Version:")[1].split()[0] if "CUDA Version:" in smi else None

    def tool(self, name):
        """Returns the path of a tool, or None."""
        folders = [folder for pattern in TOOLS for folder in glob.glob(pattern)]
        return shutil.which(name) or shutil.which(name, path=":".join(folders))


def output(command):
    """Returns what a command prints, or None if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def library_folders():
    """Returns the folders of CUDA's libraries: the system's, and those of PyTorch's wheels."""
    places = [place for place in sys.path if place.endswith("-packages")]
    patterns = ["/usr/local/cuda/lib64", "/usr/local/cuda-13*/lib64"]
    patterns += [os.path.join(place, "nvidia", own, "lib") for place in places for own in ("cu13", "*")]
    found = []
    for pattern in patterns:
        for folder in sorted(glob.glob(pattern)):
            if folder not in found and glob.glob(os.path.join(folder, "lib*.so*")):
                found.append(folder)
    return found


def unpack(state):
    """Unpacks the programs, and returns a digest of them."""
    digest = hashlib.sha256()
    programs = os.path.join(state, "programs")
    os.makedirs(programs, exist_ok=True)
    for name in ("self_test", "gpu_bench", "nsbridge"):
        with open(os.path.join(HERE, name + ".xz"), "rb") as file:
            packed = file.read()
        own = hashlib.sha256(packed).hexdigest()
        digest.update(own.encode())
        path = os.path.join(programs, name)
        mark = path + ".sha256"
        if not (os.path.exists(mark) and read(mark) == own):
            with open(path + ".new", "wb") as file:
                file.write(lzma.decompress(packed))
            os.chmod(path + ".new", 0o755)
            os.replace(path + ".new", path)
            write(mark, own)
    return digest.hexdigest()


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def stages(machine, state):
    """Returns the stages in order of worth."""
    device, emulated = machine.device, machine.emulated
    program = lambda name: os.path.join(state, "programs", name)
    bench = program("gpu_bench")
    models = [os.path.join(HERE, "examples/models", name) for name in ("tale-7m", "tale-1m")]
    self_test = [program("self_test"), device]
    expected = ["--expect", os.path.join(HERE, "expected.txt")]
    known = [("--bandwidth", machine.bandwidth), ("--memory", machine.memory)]
    known = [str(word) for pair in known if pair[1] for word in pair]
    steps = lambda model, kind, *more: [bench, "steps", device, model, kind, *known, *more]
    script = os.path.abspath(__file__)
    worker = [sys.executable, script, "--device", device, "--state", state, "--worker", "4" if emulated else "64"]
    no_torch = None if machine.facts["torch"] else "there is no PyTorch"
    absent = lambda tool: None if machine.tool(tool) else "there is no " + tool
    sanitizer = machine.tool("compute-sanitizer") or "compute-sanitizer"
    sanitize = lambda tool: [sanitizer, "--tool", tool, "--error-exitcode", "9", *self_test]
    baseline = [sys.executable, os.path.join(HERE, "baseline.py")]
    if emulated:
        small = ["--cases", "1x1,3x1,1x5", "--contexts", "40", "--prefill", "70"]
        return [
            Stage("self-test", 300, self_test + expected),
            Stage("memcheck", 60, sanitize("memcheck"), "the emulator checks accesses itself"),
            Stage("exact", 600, [bench, "exact", device, models[1]]),
            *[Stage("bench-tiny-" + kind, 200, steps("tiny", kind, *small)) for kind in ("bf16", "f8_e4m3", "q8_0", "q4_k", "q6_k")],
            Stage("bench-tiny-2-ranks", 200, steps("tiny", "q8_0", "--ranks", "2", *small)),
            Stage("baseline-tiny", 200, baseline + ["tiny", "--device", "cpu"], no_torch),
            Stage("worker", 300, worker),
        ]
    little = machine.memory is not None and machine.memory < 120
    # 141 GB leave room for few keys and values.
    few = ["--cases", "1x1,5x1,16x1,1x5"]
    ncu = [machine.tool("ncu") or "ncu", "--kernel-name", "regex:" + KERNELS, "--launch-skip", "200"]
    ncu += ["--launch-count", "12", "--set", "full"]
    once = ["--cases", "1x1", "--contexts", "1024", "--prefill", "1024"]
    return [
        Stage("self-test", 120, self_test + expected),
        Stage("memcheck", 200, sanitize("memcheck"), absent("compute-sanitizer")),
        Stage("racecheck", 200, sanitize("racecheck"), absent("compute-sanitizer")),
        Stage("exact", 200, [bench, "exact", device, *models]),
        Stage("bench-8b-bf16", 200, steps("llama-8b", "bf16")),
        Stage("baseline-8b", 400, baseline + ["llama-8b"], no_torch),
        Stage("bench-8b-q8_0", 200, steps("llama-8b", "q8_0")),
        Stage("bench-8b-q4_k", 200, steps("llama-8b", "q4_k")),
        Stage("bench-70b-q4_k", 400, steps("llama-70b", "q4_k")),
        Stage("worker", 200, worker),
        Stage("bench-70b-f8_e4m3", 400, steps("llama-70b", "f8_e4m3", *(few if little else []))),
        Stage("bench-70b-q8_0", 400, steps("llama-70b", "q8_0"), "80 GB are too few" if little else None),
        Stage("bench-70b-bf16", 500, steps("llama-70b", "bf16", *few), "80 GB are too few" if little else None),
        Stage("bench-8b-q6_k", 200, steps("llama-8b", "q6_k")),
        Stage("bench-8b-bf16-exact", 300, steps("llama-8b", "bf16", "--arithmetic", "portable", *few)),
        Stage("bench-8b-q4_k-2-ranks", 200, steps("llama-8b", "q4_k", "--ranks", "2", *few)),
        Stage("ncu-bf16", 250, ncu + steps("llama-8b", "bf16", *once), absent("ncu")),
        Stage("ncu-q4_k", 250, ncu + steps("llama-8b", "q4_k", *once), absent("ncu")),
    ]


def run(stage, machine, seconds, log):
    """Runs a stage for at most this many seconds. Returns its exit status, or None, and its figures."""
    with open(log, "wb") as file:
        try:
            child = subprocess.Popen(stage.command, cwd=HERE, env=machine.environment, stdout=file,
                                     stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            file.write(str(error).encode())
            return 127, []
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            # The whole session: a worker is a child of its stage.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
    return status, figures(log)


def figures(log):
    """Returns the JSON objects among the lines of a log, and the verdicts of a self-test."""
    found, wrong = [], []
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass
            elif "WRONG" in line or " difference " in line or "ERROR SUMMARY" in line:
                wrong.append(line.strip())
    return found + ([{"kind": "lines", "lines": wrong[:80]}] if wrong else [])


def short(figure):
    """Returns the figure as a person reads it."""
    if figure.get("kind") == "lines":
        return "\n".join("    " + line for line in figure["lines"])
    left_out = ("kind", "model", "device", "format", "kv", "bytes", "steps", "min_ms", "max_ms", "passed")
    words = []
    for name, value in figure.items():
        if name not in left_out and value is not None:
            words.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return f"    {figure.get('kind')}: " + ", ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N or emulator")
    parser.add_argument("--limit", type=float, default=570, help="seconds for this call")
    parser.add_argument("--again", default="", help="stages that run again, with commas; or all")
    parser.add_argument("--only", default="", help="runs only these stages, with commas")
    parser.add_argument("--state", default=HERE + "-state", help="folder of the state")
    parser.add_argument("--list", action="store_true", help="prints the stages")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    begun = time.monotonic()
    state = os.path.abspath(arguments.state)
    if arguments.worker:
        from clients import measure
        return measure(os.path.join(state, "programs/nsbridge"), arguments.device, arguments.worker)
    if arguments.device == "emulator" and arguments.limit == 570:
        arguments.limit = 3600
    machine = Machine(arguments.device)
    everything = stages(machine, state)
    if arguments.list:
        for stage in everything:
            print(stage.name, f"{stage.limit} s", stage.skip or "")
        return 0
    os.makedirs(state, exist_ok=True)
    out = os.environ.get("OUT") or os.path.join(state, "out")
    os.makedirs(out, exist_ok=True)

    def record(result):
        line = json.dumps(result) + "\n"
        for folder in {out, state}:
            with open(os.path.join(folder, "results.jsonl"), "a", encoding="utf-8") as file:
                file.write(line)

    print(json.dumps(machine.facts, indent=1), flush=True)
    digest = unpack(state)
    record({"stage": "machine", "programs": digest, **machine.facts})
    names = [stage.name for stage in everything]
    chosen = lambda text: [name for name in text.split(",") if name]
    again, only = chosen(arguments.again), chosen(arguments.only)
    unknown = [name for name in again + only if name not in names + ["all"]]
    if unknown:
        parser.error("no such stage: " + ", ".join(unknown) + "; --list names them")
    finished_at = os.path.join(state, "finished.json")
    finished = json.loads(read(finished_at)) if os.path.exists(finished_at) else {}
    failed, left = [], []
    for stage in everything:
        if only and stage.name not in only:
            continue
        if finished.get(stage.name) == digest and stage.name not in again and "all" not in again:
            print(f"== {stage.name}: ran before")
            continue
        if stage.skip:
            print(f"== {stage.name}: not run, {stage.skip}")
            record({"stage": stage.name, "skipped": stage.skip})
            continue
        rest = arguments.limit - (time.monotonic() - begun)
        if rest < TOO_SHORT:
            left.append(stage.name)
            continue
        print(f"== {stage.name}", flush=True)
        since = time.monotonic()
        log = os.path.join(out, stage.name + ".log")
        status, found = run(stage, machine, min(stage.limit, rest), log)
        took = time.monotonic() - since
        cut = status is None and rest < stage.limit
        record({"stage": stage.name, "command": stage.command, "seconds": round(took, 1), "status": status,
                "cut": cut, "figures": found})
        if cut:
            left.append(stage.name)
        else:
            finished[stage.name] = digest
            write(finished_at, json.dumps(finished))
        print("\n".join(short(figure) for figure in found))
        print(f"   {took:.1f} s, status {'none, it was ended' if status is None else status}", flush=True)
        if status != 0 and not cut:
            failed.append(stage.name)
            print(read_end(log), flush=True)
    if left:
        print("left for the next call: " + ", ".join(left))
    if failed:
        print(f"failed: {', '.join(failed)}; the logs are in {out}")
    return 1 if failed else 0


def read_end(path):
    """Returns the last lines of a log."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join("    | " + line[:300].rstrip() + "\n" for line in file.readlines()[-12:])


if __name__ == "__main__":
    sys.exit(main())
