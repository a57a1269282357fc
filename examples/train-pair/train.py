#!/usr/bin/env python3
"""Trains the bundled pair: a target model and a draft model that foresees it.

    python train.py --out ../models --minutes 60     writes ../models/tale-7m and ../models/tale-1m
    python train.py --check                          a minute's proof that training works

Both models see the same batches at the same time. The target learns by cross entropy; the draft
by cross entropy plus the KL divergence from the target's distribution, which costs little because
the target's logits are at hand. After the target is done the draft goes on alone for a while
(--draft-minutes), so that it ends up close to the target as it finally is.
"""

import os

# Threads that wait by spinning starve each other as soon as another program wants a core: the
# step then takes fifty times as long. Must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import math
import platform
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

import data
import report
from model import DRAFT, TARGET, Llama, config_json, save_weights

TARGET_NAME, DRAFT_NAME = "tale-7m", "tale-1m"
TARGET_RATE, DRAFT_RATE = 1e-3, 2e-3
WARM_UP_STEPS = 100


def machine():
    """The processor in the words of a model card."""
    extensions = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()  # not Linux
    has = [name for flag, name in extensions.items() if flag in flags]
    kind = platform.machine().replace("_", "-")
    extras = f" with {' and '.join(has)}" if has else ""
    return f"{os.cpu_count()} {kind} cores{extras}, no GPU"


def optimizer_for(model, rate):
    # Norm weights are few and sit around one: decaying them towards zero would only hurt.
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8)


def rate_factor(step, progress):
    """Warm-up by steps, then a cosine down to 2 % over `progress` 0..1."""
    return min(1, (step + 1) / WARM_UP_STEPS) * (0.51 + 0.49 * math.cos(math.pi * min(1, progress)))


def losses(target, draft, ids, labels, target_learns, bf16):
    """(target loss or None, draft loss or None, draft cross entropy or None)."""
    known = labels != -100
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        with torch.set_grad_enabled(target_learns):
            target_logits = target(ids)[0][known].float()
        draft_logits = draft(ids)[0][known].float() if draft is not None else None
    wanted = labels[known]
    target_loss = F.cross_entropy(target_logits, wanted) if target_learns else None
    if draft is None:
        return target_loss, None, None
    draft_cross = F.cross_entropy(draft_logits, wanted)
    divergence = F.kl_div(
        F.log_softmax(draft_logits, -1),
        F.log_softmax(target_logits.detach(), -1),
        log_target=True,
        reduction="batchmean",
    )
    return target_loss, draft_cross + divergence, draft_cross


def step(model, optimizer, loss, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def export(folder, model, tokenizer):
    """Everything that a program needs to load the model."""
    folder.mkdir(parents=True, exist_ok=True)
    special = data.special_ids(tokenizer)
    config = config_json(model.shape, special)
    data.write_json(folder / "config.json", config)
    data.write_json(
        folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    data.write_json(folder / "tokenizer_config.json", data.tokenizer_config())
    save_weights(model, folder / "model.safetensors")


class Run:
    """The state of a training run: the models, how far they are, and how to come back to it."""

    def __init__(self, args):
        self.args = args
        self.tokenizer = data.build_tokenizer(args.seed)
        torch.manual_seed(args.seed)
        self.target = Llama(TARGET)
        self.draft = None if args.target_only else Llama(DRAFT)
        self.target_optimizer = optimizer_for(self.target, TARGET_RATE)
        self.draft_optimizer = optimizer_for(self.draft, DRAFT_RATE) if self.draft else None
        # For each phase: steps, tokens and seconds, as the model cards report them.
        self.done = {"together": [0, 0, 0.0], "draft": [0, 0, 0.0]}
        self.next_sample = 0
        if args.checkpoint and args.checkpoint.exists():
            self.load(args.checkpoint)

    def load(self, path):
        state = torch.load(path, map_location="cpu")
        if (state["draft"] is None) != (self.draft is None):
            raise SystemExit(f"train.py: {path} was made with another --target-only")
        self.target.load_state_dict(state["target"])
        self.target_optimizer.load_state_dict(state["target_optimizer"])
        if self.draft:
            self.draft.load_state_dict(state["draft"])
            self.draft_optimizer.load_state_dict(state["draft_optimizer"])
        self.done, self.next_sample = state["done"], state["next_sample"]
        print(f"going on from {path} at step {self.done['together'][0]}")

    def save(self):
        """Exports what there is, so that a broken run still leaves loadable models."""
        args = self.args
        if args.checkpoint:
            state = {
                "target": self.target.state_dict(),
                "target_optimizer": self.target_optimizer.state_dict(),
                "draft": self.draft.state_dict() if self.draft else None,
                "draft_optimizer": self.draft_optimizer.state_dict() if self.draft else None,
                "done": self.done,
                "next_sample": self.next_sample,
            }
            partial = args.checkpoint.with_name(args.checkpoint.name + ".partial")
            torch.save(state, partial)
            partial.replace(args.checkpoint)
        export(args.out / TARGET_NAME, self.target, self.tokenizer)
        if self.draft:
            export(args.out / DRAFT_NAME, self.draft, self.tokenizer)

    def facts(self):
        return {
            "together": dict(zip(("steps", "tokens", "seconds"), self.done["together"])),
            "draft alone": dict(zip(("steps", "tokens", "seconds"), self.done["draft"])),
            "samples": self.next_sample,
            "batch_tokens": self.args.batch_tokens,
            "seed": self.args.seed,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "arithmetic": "bf16 products" if self.args.bf16 else "f32",
            "machine": machine(),
            "command": " ".join(["python train.py", *sys.argv[1:]]),
            "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def phase(self, name, max_steps, minutes):
        """Trains until `max_steps` or `minutes` of this phase are used up, whichever is first."""
        args, done = self.args, self.done[name]
        target_learns = name == "together"
        both = 60 * (args.minutes + args.draft_minutes)
        last_save = time.monotonic()
        source = data.batches(self.tokenizer, args.seed, args.batch_tokens, self.next_sample)
        bar = tqdm(total=max_steps, initial=done[0], unit="step", desc=name, mininterval=5)
        smooth = {}
        while done[0] < max_steps and done[2] < 60 * minutes:
            began = time.monotonic()
            ids, labels, self.next_sample = next(source)
            target_loss, draft_loss, draft_cross = losses(
                self.target, self.draft, ids, labels, target_learns, args.bf16
            )
            progress = max(done[0] / max_steps, done[2] / (60 * minutes))
            if target_learns:
                rate = TARGET_RATE * rate_factor(done[0], progress)
                step(self.target, self.target_optimizer, target_loss, rate)
            if self.draft:
                # One schedule over both phases, by time: the draft keeps learning to the end.
                share = minutes * progress * 60 / both if both else progress
                share += 0 if target_learns else 60 * args.minutes / both
                rate = DRAFT_RATE * rate_factor(self.done["together"][0], share)
                step(self.draft, self.draft_optimizer, draft_loss, rate)
            done[0] += 1
            done[1] += int((labels != -100).sum())
            done[2] += time.monotonic() - began
            for key, value in (("loss", target_loss), ("draft", draft_cross)):
                if value is not None:
                    smooth[key] = 0.95 * smooth.get(key, value.item()) + 0.05 * value.item()
            bar.update()
            left = 60 * minutes - done[2]
            bar.set_postfix_str(
                " ".join(f"{key} {value:.3f}" for key, value in smooth.items())
                + f" {done[1] / done[2]:.0f} tok/s, at most {left / 60:.1f} min left",
                refresh=False,
            )
            if time.monotonic() - last_save > 60 * args.export_minutes:
                self.save()
                last_save = time.monotonic()
        bar.close()
        self.save()


def train(args):
    for path in filter(None, (args.out, args.checkpoint)):
        if not path.parent.is_dir():
            raise SystemExit(f"train.py: there is no folder {path.parent} to put {path.name} in")
    run = Run(args)
    run.phase("together", args.steps, args.minutes)
    if run.draft:
        run.phase("draft", args.steps, args.draft_minutes)
    target = args.out / TARGET_NAME
    draft = None if args.target_only else args.out / DRAFT_NAME
    facts = run.facts()
    for folder in filter(None, (target, draft)):
        data.write_json(folder / "training.json", facts)
    report.write_cards(target, draft)


def check(args):
    """Twenty small steps of both models: the loss must fall. Writes nothing."""
    tokenizer = data.build_tokenizer(args.seed, samples=500)
    torch.manual_seed(args.seed)
    target, draft = Llama(TARGET), Llama(DRAFT)
    pairs = [(m, optimizer_for(m, TARGET_RATE)) for m in (target, draft)]
    source = data.batches(tokenizer, args.seed, 300, pool=32)
    seen = []
    for _ in tqdm(range(20), desc="check", unit="step"):
        ids, labels, _ = next(source)
        target_loss, draft_loss, _ = losses(target, draft, ids, labels, True, args.bf16)
        for (model, optimizer), loss in zip(pairs, (target_loss, draft_loss)):
            step(model, optimizer, loss, TARGET_RATE / 2)
        seen.append((target_loss.item(), draft_loss.item()))
    first, last = seen[0], [sum(values[-3:]) / 3 for values in zip(*seen)]
    print(f"loss first {first[0]:.3f} last {last[0]:.3f}")
    print(f"draft loss first {first[1]:.3f} last {last[1]:.3f}")
    for name, before, after in zip(("target", "draft"), first, last):
        if not after < 0.95 * before:
            print(f"train.py: the loss of the {name} did not fall", file=sys.stderr)
            return 1
    return 0


def arguments():
    parser = argparse.ArgumentParser(description="Train the bundled pair of models.")
    number, path = parser.add_argument, Path
    number("--out", type=path, default=path("models"), help="folder for both models (models)")
    number("--steps", type=int, default=100_000, help="at most so many steps in each phase")
    number("--minutes", type=float, default=60, help="time for training both together (60)")
    number("--draft-minutes", type=float, default=10, help="time for the draft alone after it (10)")
    number("--batch-tokens", type=int, default=400, help="tokens in a batch (400)")
    number("--seed", type=int, default=0, help="seed of the stories and the weights (0)")
    number("--threads", type=int, default=2, help="processor threads (2)")
    number("--target-only", action="store_true", help="train no draft")
    number("--bf16", action="store_true", help="bf16 products: fast only with AMX or AVX-512 BF16")
    number("--checkpoint", type=path, metavar="FILE", help="save state here, go on if it exists")
    number("--export-minutes", type=float, default=4, help="time between exports (4)")
    number("--check", action="store_true", help="train 20 steps, write nothing, see the loss fall")
    args = parser.parse_args()
    if min(args.steps, args.minutes, args.batch_tokens, args.threads, args.export_minutes) <= 0:
        parser.error("numbers must be positive")
    if args.draft_minutes < 0:
        parser.error("--draft-minutes must not be negative")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    return check(args) if args.check else train(args)


if __name__ == "__main__":
    sys.exit(main())
