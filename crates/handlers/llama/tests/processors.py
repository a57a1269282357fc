"""Output of Hugging Face's logits processors for random logits.

    python3 tests/processors.py > tests/processors.json

Needs torch and transformers; written with transformers 5.23 and torch 2.15. The method of
`generate` builds and orders the processors, so that the order is theirs too.
"""

import json

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

VOCABULARY = 50
EOS = [7, 19]

# Parameters by our names; `banned` and `ends` are lists of ids. Each [length, last] of
# `banned_after` becomes a sequence: the last `length` tokens of prompt and reply, then `last`.
# `spared_after` changes the first of these tokens, so that the sequence does not match.
CASES = [
    dict(),
    dict(temperature=0.4),
    dict(temperature=2.5),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.8),
    dict(top_k=1),
    dict(top_k=7),
    dict(top_k=50),
    dict(top_p=0.05),
    dict(top_p=0.5),
    dict(top_p=0.9),
    dict(top_p=0.999),
    dict(min_p=0.02),
    dict(min_p=0.3),
    dict(min_p=1.0),
    dict(min_tokens=6),
    dict(min_tokens=5),
    dict(banned=[0, 3, 30, 49]),
    dict(logit_bias=[[4, 6.0], [11, -8.0], [3, 0.5]]),
    dict(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05),
    dict(temperature=1.5, top_k=30, top_p=0.8),
    dict(temperature=1.8, top_p=0.95, min_p=0.1),
    dict(temperature=0.9, top_k=10, min_p=0.2),
    dict(logit_bias=[[3, 4.0], [20, 3.0]], repetition_penalty=1.5, top_p=0.9),
    dict(logit_bias=[[4, -3.0]], banned=[4, 9], repetition_penalty=1.2, min_tokens=9,
         temperature=0.8, top_k=25, top_p=0.85, min_p=0.02),
    dict(banned=[1, 2], repetition_penalty=1.1, temperature=3.0, top_p=0.97),
    dict(banned_after=[[0, 4], [1, 11], [2, 12], [5, 20], [6, 30], [10, 49]],
         spared_after=[[1, 5], [2, 13], [6, 31], [10, 48], [11, 47]]),
    dict(banned_after=[[1, 4], [3, 4], [7, 21]], spared_after=[[4, 22], [9, 3]], banned=[4, 9],
         repetition_penalty=1.3, temperature=0.8, top_k=25, top_p=0.9, min_p=0.02),
]


def sequences(case, before):
    made = [before[len(before) - length:] + [last] for length, last in case.get("banned_after", [])]
    for length, last in case.get("spared_after", []):
        # A sequence that is longer than prompt and reply cannot match in any case.
        prefix = ([0] * length + before)[-length:]
        prefix[0] = (prefix[0] + 1) % VOCABULARY
        made.append(prefix + [last])
    return made


def generation_config(case):
    theirs = dict(do_sample=True, eos_token_id=EOS, top_k=case.get("top_k", 0), top_p=1.0)
    for same in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if same in case:
            theirs[same] = case[same]
    if "min_tokens" in case:
        theirs["min_new_tokens"] = case["min_tokens"]
    bad = [[token] for token in case.get("banned", [])] + case.get("banned_sequences", [])
    if bad:
        theirs["bad_words_ids"] = bad
    if "logit_bias" in case:
        theirs["sequence_bias"] = [[[token], bias] for token, bias in case["logit_bias"]]
    return GenerationConfig(**theirs)


def survivors(model, case, logits, prompt, reply):
    config = generation_config(case)
    model._prepare_special_tokens(config, device="cpu")
    ids = torch.tensor([prompt + reply])
    processors = model._get_logits_processor(config, input_ids_seq_length=len(prompt),
                                             encoder_input_ids=None)
    scores = torch.log_softmax(processors(ids, logits[None].clone()).double(), -1)[0]
    left = [token for token in range(VOCABULARY) if scores[token] > -float("inf")]
    return [[token, round(scores[token].item(), 8)] for token in left]


def main():
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1))
    generator = torch.Generator().manual_seed(3)
    cases = []
    for case in CASES:
        logits = torch.randn(VOCABULARY, generator=generator) * 3
        prompt, reply = torch.randint(VOCABULARY, (2, 5), generator=generator).tolist()
        # One token that occurs in prompt and reply, and one that occurs twice.
        prompt[1], reply[3] = reply[0], reply[2]
        made = sequences(case, prompt + reply)
        case = {name: value for name, value in case.items() if not name.endswith("_after")}
        if made:
            case["banned_sequences"] = made
        cases.append(dict(parameters=dict(case, ends=EOS), logits=logits.tolist(), prompt=prompt,
                          reply=reply, left=survivors(model, case, logits, prompt, reply)))
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(f"[\n{lines}\n]")


main()
