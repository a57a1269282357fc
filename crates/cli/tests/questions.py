"""Answers of a chat model to eight natural questions with seeds 1 to 8, as `nsbridge demo --chat` gives them.

    python3 crates/cli/tests/questions.py target/release/nsbridge MODEL.gguf
    python3 crates/cli/tests/questions.py target/release/nsbridge MODEL.gguf --greedy

prints the answers, for a person to judge. With `--greedy`, each answer at temperature 0 is compared with
that of transformers, which reads the same GGUF file (packages torch, transformers and gguf); the program fails
if one differs.
"""

import json
import os
import subprocess
import sys

QUESTIONS = ["What is 2+2?", "What is the capital of France?", "Write a short poem about the sea.",
             "How do I boil an egg?", "Say hi", "Who wrote Romeo and Juliet?", "Name three fruits.",
             "Explain gravity to a child."]
MOST_TOKENS = 64


def answer(binary, model, question, *options):
    command = [binary, "demo", "--chat", "--model", model, "--json", "--max-tokens", str(MOST_TOKENS), *options]
    lines = subprocess.run([*command, question], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(lines.splitlines()[-1])["text"]


def sampled(binary, model):
    for question in QUESTIONS:
        print(question)
        for seed in range(1, 9):
            text = answer(binary, model, question, "--seed", str(seed))
            print(f"  {seed}: {' '.join(text.split())}", flush=True)


def greedy(binary, model):
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = os.path.split(os.path.abspath(model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    peer = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    # transformers converts the tokenizer and gives its end another id.
    end = int(GGUFReader(model).fields["tokenizer.ggml.eos_token_id"].contents())
    differing = 0
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            all_ids = peer.generate(**ids, do_sample=False, max_new_tokens=MOST_TOKENS, repetition_penalty=1.0,
                                    eos_token_id=end)
        expected = tokenizer.decode(all_ids[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)
        text = answer(binary, model, question, "--temperature", "0")
        is_equal = text == expected
        differing += not is_equal
        print(f"{question}\n  {'equal' if is_equal else 'DIFFERS'}: {' '.join(text.split())}", flush=True)
        if not is_equal:
            print(f"  transformers: {' '.join(expected.split())}", flush=True)
    sys.exit(f"{differing} answers differ" if differing else 0)


(greedy if sys.argv[3:] == ["--greedy"] else sampled)(*sys.argv[1:3])
