#!/usr/bin/env python3
"""Trains the bundled models: a target, and two drafts that predict it.

    python train.py --out ../models                  writes tale-7m, tale-1m-plain and tale-1m there
    python train.py --out ../models --target ../models/tale-7m      only the drafts, for that target
    python train.py --check                          tests in a minute that training works

There are four stages. The target learns the stories by cross entropy. So does the plain draft,
independently of the target. The target then generates stories of its own, at temperature 1. On
these, a copy of the plain draft learns the target's distribution by the KL divergence at every
token of the reply: one of the methods for drafts that DistillSpec (Zhou et al., 2023) compares.
"""

import os

# Spinning threads starve each other as soon as another program needs a core: a step then takes
# fifty times as long. Must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import hashlib
import math
import platform
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

import data
import outputs
import report
from model import DRAFT, TARGET, Llama, config_json, save_weights
from sample import load

TARGET_NAME, PLAIN_NAME, DRAFT_NAME = "tale-7m", "tale-1m-plain", "tale-1m"
TARGET_RATE, PLAIN_RATE, DISTIL_RATE = 1e-3, 2e-3, 2e-3
WARM_UP_STEPS = 100
POOL = 512  # prompts whose replies are sampled between two checks for enough tokens
PAUSE = 20.0  # seconds: a longer step means that the process was suspended


def machine():
    """Returns a description of the processor for a model card."""
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
    # Norm weights are few and close to one: weight decay towards zero would only hurt.
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8)


def rate_factor(step, warm_up, progress):
    """Returns the rate factor: warm-up over `warm_up` steps, a cosine to 2 % at `progress` 1."""
    return min(1, (step + 1) / warm_up) * (0.51 + 0.49 * math.cos(math.pi * min(1, progress)))


def step(model, optimizer, loss, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def cross_entropy(model, batch):
    """Loss of a target and a plain draft: nats per token of the stories."""
    ids, labels = batch
    known = labels != -100
    return F.cross_entropy(model.logits(model.states(ids)[0][known]).float(), labels[known])


def divergence_from(target):
    """Returns the distillation loss as a function: KL(target, model) in nats per reply token."""

    def divergence(model, batch):
        ids, labels, states = batch
        with torch.no_grad():
            wanted = F.log_softmax(target.logits(states).float(), -1)
        ours = F.log_softmax(model.logits(model.states(ids)[0][labels != -100]).float(), -1)
        return F.kl_div(ours, wanted, log_target=True, reduction="batchmean")

    return divergence


def export(folder, model, tokenizer):
    """Writes all files that a program needs to load the model."""
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


def save_checkpoint(path, state):
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


class Training:
    """Training of a model for a number of minutes, with its progress and its checkpoints."""

    def __init__(self, name, model, rate, minutes, checkpoints=None, warm_up=WARM_UP_STEPS):
        self.name, self.model, self.minutes = name, model, minutes
        self.rate, self.warm_up = rate, warm_up
        self.optimizer = optimizer_for(model, rate)
        self.steps, self.tokens, self.seconds = 0, 0, 0.0
        self.next = 0  # next sample, or round over the outputs
        self.checkpoint = checkpoints / f"{name.replace(' ', '-')}.ckpt" if checkpoints else None
        if self.checkpoint and self.checkpoint.exists():
            self.load()

    def load(self):
        state = torch.load(self.checkpoint, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.tokens, self.seconds, self.next = state["done"]
        print(f"going on from {self.checkpoint} at step {self.steps}")

    def save(self):
        if self.checkpoint:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "done": (self.steps, self.tokens, self.seconds, self.next),
            }
            save_checkpoint(self.checkpoint, state)

    def learn(self, batches, loss_of, bf16=False):
        """Runs one step on the next batch. Returns the loss."""
        began = time.monotonic()
        batch, self.next = next(batches)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = loss_of(self.model, batch)
        progress = self.seconds / (60 * self.minutes)
        rate = self.rate * rate_factor(self.steps, self.warm_up, progress)
        step(self.model, self.optimizer, loss, rate)
        self.steps += 1
        self.tokens += int((batch[1] != -100).sum())
        took = time.monotonic() - began
        self.seconds += took if took < PAUSE else 0
        return loss.item()

    def run(self, batches, loss_of, save, args):
        """Trains until the minutes are used up; calls `save` regularly and at the end."""
        smooth, last_save = None, time.monotonic()
        bar = tqdm(initial=self.steps, unit="step", desc=self.name, mininterval=5)
        while self.seconds < 60 * self.minutes:
            loss = self.learn(batches, loss_of, args.bf16)
            smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
            bar.update()
            bar.set_postfix_str(
                f"loss {smooth:.4f} {self.tokens / self.seconds:.0f} tok/s, "
                f"{self.minutes - self.seconds / 60:.1f} min left",
                refresh=False,
            )
            if time.monotonic() - last_save > 60 * args.export_minutes:
                self.save()
                save()
                last_save = time.monotonic()
        bar.close()
        self.save()
        save()

    def facts(self, **more):
        done = {"steps": self.steps, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
        return {**done, "rate": self.rate, **more}


def train_on_stories(name, shape, rate, minutes, folder, tokenizer, args):
    """Trains a model from random weights on the generator's stories. Returns facts about it."""
    torch.manual_seed(args.seed)
    training = Training(name, Llama(shape), rate, minutes, args.checkpoints)
    batches = data.batches(tokenizer, args.seed, args.batch_tokens, training.next)
    training.run(batches, cross_entropy, lambda: export(folder, training.model, tokenizer), args)
    return {"stories": training.facts(samples=training.next)}


def fingerprint(model):
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.numpy().tobytes())
    return digest.hexdigest()


def sample_outputs(target, tokenizer, tokens, args):
    """Samples at least `tokens` tokens from the target. Returns them with facts about them."""
    checkpoint = args.checkpoints / "outputs.ckpt" if args.checkpoints else None
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location="cpu")
        if state["target"] != fingerprint(target):
            raise SystemExit(f"train.py: {checkpoint} holds what another target told")
        told = [outputs.Output(*fields) for fields in zip(*state["outputs"])]
        return told, {"outputs": state["facts"]}
    random, told, count = torch.Generator().manual_seed(args.seed), [], 0
    began = time.monotonic()
    bar = tqdm(total=tokens, unit="tok", desc="outputs", mininterval=5)
    for index in range(0, sys.maxsize, POOL):
        indices = range(index, index + POOL)
        for output in outputs.sample(
            target, tokenizer, "prompts", args.seed, indices, temperature=1.0, random=random
        ):
            told.append(output)
            count += output.tokens
            bar.update(output.tokens)
        if count >= tokens:
            break
    bar.close()
    seconds = round(time.monotonic() - began, 1)
    facts = {"stories": len(told), "tokens": count, "temperature": 1.0, "seconds": seconds}
    if checkpoint:
        fields = [[getattr(o, name) for o in told] for name in ("ids", "begin", "states")]
        state = {"target": fingerprint(target), "outputs": fields, "facts": facts}
        save_checkpoint(checkpoint, state)
    return told, {"outputs": facts}


def distil(target, draft, told, minutes, folder, tokenizer, args):
    """Distills the target's distribution into `draft` on `told`. Returns facts about it."""
    training = Training("distillation", draft, DISTIL_RATE, minutes, args.checkpoints)
    filler = tokenizer.token_to_id(data.END)
    batches = outputs.batches(told, filler, args.batch_tokens, args.seed, training.next)
    training.run(batches, divergence_from(target), lambda: export(folder, draft, tokenizer), args)
    return {"distillation": training.facts(rounds=training.next)}


def write_facts(folder, stages, args):
    facts = {
        "stages": stages,
        "batch_tokens": args.batch_tokens,
        "seed": args.seed,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "arithmetic": "bf16 products" if args.bf16 else "f32",
        "machine": machine(),
        "command": " ".join(["python train.py", *sys.argv[1:]]),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    data.write_json(folder / "training.json", facts)


def train(args):
    for path in filter(None, (args.out, args.checkpoints)):
        if not path.parent.is_dir():
            raise SystemExit(f"train.py: there is no folder {path.parent} to put {path.name} in")
        path.mkdir(exist_ok=True)
    folders = [args.out / name for name in (TARGET_NAME, PLAIN_NAME, DRAFT_NAME)]
    if args.target:
        folders[0] = args.target
    else:
        tokenizer = data.build_tokenizer(args.seed)
        facts = train_on_stories(
            "target", TARGET, TARGET_RATE, args.target_minutes, folders[0], tokenizer, args
        )
        write_facts(folders[0], facts, args)
    # Loaded from the exported bf16 weights, as users will load it.
    target, tokenizer = load(folders[0])
    plain = train_on_stories(
        "plain draft", DRAFT, PLAIN_RATE, args.plain_minutes, folders[1], tokenizer, args
    )
    write_facts(folders[1], plain, args)
    told, of_outputs = sample_outputs(target, tokenizer, args.output_tokens, args)
    draft, _ = load(folders[1])
    learnt = distil(target, draft, told, args.distil_minutes, folders[2], tokenizer, args)
    write_facts(folders[2], {**plain, **of_outputs, **learnt}, args)
    report.write_cards(folders[0], folders[1:], with_target=not args.target)


def fell(name, losses):
    """Returns True if the losses of a stage fell; otherwise prints an error and returns False."""
    first, last = losses[0], sum(losses[-3:]) / 3
    print(f"{name}: loss first {first:.3f} last {last:.3f}")
    # Neither a cross entropy nor a divergence can be negative.
    good = 0 < last < 0.9 * first
    if not good:
        print(f"train.py: the loss of the {name} did not fall", file=sys.stderr)
    return good


CHECK_TOKENS = 40  # maximum tokens of a reply


def sampled_well(model, tokenizer, prompts, told):
    """Returns True if the outputs are valid samples; otherwise prints an error and returns False.

    They must continue their prompts and end where they should. The states computed with the cache
    must equal those of a pass over the whole text without it. The tokens must be drawn by the
    distribution: the average of log p is then minus the entropy.
    """
    stop = data.stop_ids(tokenizer)
    shaped = [output.ids[: output.begin] for output in told] == prompts and all(
        not set(stop) & set(output.ids[output.begin : -1])
        and (output.ids[-1] in stop or output.tokens == CHECK_TOKENS)
        for output in told
    )
    apart, surprise, variance, count = 0.0, 0.0, 0.0, 0
    with torch.no_grad():
        for output in told:
            whole = model.states(torch.tensor([output.ids[:-1]]))[0][0, output.begin - 1 :]
            apart = max(apart, (whole - output.states).abs().max().item())
            log = F.log_softmax(model.logits(whole), -1)
            mean = (log.exp() * log).sum(-1)
            said = log[torch.arange(len(log)), torch.tensor(output.ids[output.begin :])]
            surprise += (said - mean).sum().item()
            variance += ((log.exp() * log**2).sum(-1) - mean**2).sum().item()
            count += len(log)
    off = surprise / math.sqrt(variance)
    print(f"outputs: {count} tokens, states {apart:.0e} apart, {off:+.1f} sigma from the entropy")
    good = shaped and apart < 1e-3 and abs(off) < 4
    if not good:
        print("train.py: the outputs are not what the target would say", file=sys.stderr)
    return good


def check(args):
    """Runs twenty small steps of every stage and checks losses and samples. Writes nothing."""
    tokenizer = data.build_tokenizer(args.seed, samples=500)

    def learns(name, model, batches, loss_of):
        training = Training(name, model, TARGET_RATE, minutes=60, warm_up=10)
        return fell(name, [training.learn(batches, loss_of, args.bf16) for _ in range(20)])

    torch.manual_seed(args.seed)
    target, draft = Llama(TARGET), Llama(DRAFT)
    good = []
    for name, model in (("target", target), ("plain draft", draft)):
        stories = data.batches(tokenizer, args.seed, 300, pool=32)
        good.append(learns(name, model, stories, cross_entropy))
    prompts = [data.prompt(tokenizer, "prompts", args.seed, index) for index in range(12)]
    random = torch.Generator().manual_seed(args.seed)
    told = outputs.replies(
        target, prompts, data.stop_ids(tokenizer), 1.0, random, max_tokens=CHECK_TOKENS
    )
    good.append(sampled_well(target, tokenizer, prompts, told))
    replies = outputs.batches(told, tokenizer.token_to_id(data.END), 300, args.seed)
    divergence = divergence_from(target)
    with torch.no_grad():
        itself = divergence(target, next(replies)[0]).item()
    print(f"divergence of the target from itself: {itself:.0e}")
    if abs(itself) > 1e-4:
        print("train.py: the kept states do not belong to their tokens", file=sys.stderr)
    good.append(abs(itself) <= 1e-4)
    good.append(learns("distilled draft", draft, replies, divergence))
    return 0 if all(good) else 1


def arguments():
    parser = argparse.ArgumentParser(description="Train the bundled models.")
    number, path = parser.add_argument, Path
    number("--out", type=path, default=path("models"), help="folder for the models (models)")
    number("--target", type=path, metavar="FOLDER", help="take this target, train only the drafts")
    number("--target-minutes", type=float, default=40, help="time for the target (40)")
    number("--plain-minutes", type=float, default=12, help="time for the plain draft (12)")
    number("--output-tokens", type=int, default=400_000, help="of the target's to learn (400000)")
    number("--distil-minutes", type=float, default=16, help="time for the distillation (16)")
    number("--batch-tokens", type=int, default=400, help="tokens in a batch (400)")
    number("--seed", type=int, default=0, help="seed of the stories and the weights (0)")
    number("--threads", type=int, default=2, help="processor threads (2)")
    number("--bf16", action="store_true", help="bf16 products: fast only with AMX or AVX-512 BF16")
    number("--checkpoints", type=path, metavar="FOLDER", help="save state here, go on from it")
    number("--export-minutes", type=float, default=4, help="time between exports (4)")
    number("--check", action="store_true", help="a few steps of each stage; writes nothing")
    args = parser.parse_args()
    minutes = (args.target_minutes, args.plain_minutes, args.distil_minutes, args.export_minutes)
    if min(*minutes, args.output_tokens, args.batch_tokens, args.threads) <= 0:
        parser.error("numbers must be positive")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    return check(args) if args.check else train(args)


if __name__ == "__main__":
    sys.exit(main())
