"""Replies of a model, many at once, with the last states that produced them.

The draft learns on such replies of the target (`train.py`), and is measured on others
(`report.py`). One matrix product turns a last state into the whole distribution. Keeping the states
costs a kilobyte per token, and the target need not run again.
"""

from dataclasses import dataclass

import torch

import data

MAX_TOKENS = 400  # maximum tokens of a reply
AT_ONCE = 128  # replies sampled together


@dataclass(frozen=True)
class Output:
    ids: list  # prompt, reply, and the end token unless the reply reached its limit
    begin: int  # index of the reply's first token in ids
    states: torch.Tensor  # [reply, hidden]: the last state before each token of the reply

    @property
    def tokens(self):
        """Returns the tokens of the reply."""
        return len(self.ids) - self.begin


def draw(logits, temperature, random):
    """Samples a token for each row of logits [rows, vocabulary]; greedy at temperature 0."""
    if temperature == 0:
        return logits.argmax(-1)
    chances = (logits.float() / temperature).softmax(-1)
    return torch.multinomial(chances, 1, generator=random).squeeze(-1)


@torch.no_grad()
def replies(model, prompts, stop, temperature, random, max_tokens=MAX_TOKENS):
    """Returns the Outputs for `prompts`, all generated at the same time.

    One pass reads as many tokens as the shortest prompt has. From there each step adds one token to
    every row, from its prompt while that lasts. So all rows are at the same position, and none
    needs padding.
    """
    begins = torch.tensor([len(ids) for ids in prompts])
    limits = (begins + max_tokens).clamp(max=model.shape.max_positions)
    ids = torch.zeros(len(prompts), int(limits.max()), dtype=torch.long)
    for row, known in enumerate(prompts):
        ids[row, : len(known)] = torch.tensor(known)
    states = torch.zeros(*ids.shape, model.shape.hidden)
    ends, stop = limits.clone(), torch.tensor(stop)
    rows, position, past = torch.arange(len(prompts)), int(begins.min()), None
    new = ids[:, :position]
    while len(rows):
        last, past = model.states(new, past)
        states[rows, position - 1] = last[:, -1].float()
        said = draw(model.logits(last[:, -1]), temperature, random)
        in_prompt = position < begins[rows]
        ids[rows, position] = torch.where(in_prompt, ids[rows, position], said)
        position += 1
        ended = ~in_prompt & torch.isin(said, stop) | (position == limits[rows])
        ends[rows[ended]] = position
        if ended.any():
            rows = rows[~ended]
            past = [(k[~ended], v[~ended]) for k, v in past]
        new = ids[rows, position - 1 : position]
    return [
        Output(ids[row, :end].tolist(), begin, states[row, begin - 1 : end - 1].clone())
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist()))
    ]


def sample(model, tokenizer, split, seed, indices, temperature, random=None):
    """Returns the Outputs for the prompts with these indices; `random` is a torch.Generator."""
    prompts = [data.prompt(tokenizer, split, seed, index) for index in indices]
    prompts.sort(key=len)  # so that the lengths of a group differ little
    for first in range(0, len(prompts), AT_ONCE):
        told = prompts[first : first + AT_ONCE]
        yield from replies(model, told, data.stop_ids(tokenizer), temperature, random)


def batches(outputs, filler, batch_tokens, seed, begin=0):
    """Yields (ids, labels, states) of the outputs without end, with the next round's number.

    The labels are -100 before the reply; the states belong to the other labels, in order.
    """
    rows = [(output.ids, output) for output in outputs]
    while True:
        for batch in data.cut(rows, batch_tokens, f"{seed}/{begin}"):
            ids, labels = data.pad([ids for ids, _ in batch], filler)
            for row, (_, output) in enumerate(batch):
                labels[row, : output.begin - 1] = -100
            yield (ids, labels, torch.cat([output.states for _, output in batch])), begin + 1
        begin += 1
