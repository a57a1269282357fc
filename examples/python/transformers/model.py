"""A language model of transformers: one piece for each token that its `generate` makes."""

from dataclasses import dataclass, field
from typing import List, Optional, TypedDict

import torch
from jinja2 import TemplateError
from nsbridge_handler import BadInput
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class Message(TypedDict):
    role: str
    content: str


@dataclass
class Prompt:
    prompt: Optional[str] = None
    messages: List[Message] = field(default_factory=list)
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self):
        if (self.prompt is None) != bool(self.messages):
            raise ValueError("the input has either a prompt or messages")
        if self.max_tokens < 1:
            raise ValueError("max_tokens must be positive")
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError("temperature, top_p or top_k is out of range")


class Model:
    def load(self, models):
        folder = models["target"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
        ends = self.model.generation_config.eos_token_id
        self.ends = ends if isinstance(ends, list) else [ends]
        self.context = self.model.config.max_position_embeddings

    def handle(self, input: Prompt, job):
        prompt = self.tokens(input)
        room = self.context - prompt.shape[1]
        if room < 1:
            raise BadInput("the prompt leaves no room in %d tokens" % self.context)
        most = min(input.max_tokens, room)
        job.at_most(most)
        reply = Reply(self.tokenizer, self.ends, job)
        known = [piece["token"] for piece in job.resumed()]
        torch.manual_seed(job.seed)
        for token in known:
            reply.add(token)
            if input.temperature:
                # The other worker has drawn this token.
                torch.multinomial(torch.ones(1, self.model.config.vocab_size), 1)
        if len(known) < most:
            self.generate(torch.cat([prompt, torch.tensor([known]).long()], 1), input, reply, most)
        reason = "stop" if reply.ended else "length"
        job.finish(reason, input_tokens=prompt.shape[1], output_tokens=len(reply.tokens))

    def tokens(self, input):
        """Returns the tokens of the prompt, or of the messages by the chat template."""
        if input.prompt is not None:
            return self.tokenizer(input.prompt, return_tensors="pt").input_ids
        if not self.tokenizer.chat_template:
            raise BadInput("the model has no chat template: send a prompt instead of messages")
        try:
            text = self.tokenizer.apply_chat_template(
                input.messages, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise BadInput("the chat template refuses the messages: %s" % error)
        # The template writes the start token itself.
        return self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids

    def generate(self, tokens, input, reply, most):
        options = {"do_sample": False}
        if input.temperature:
            options = dict(temperature=input.temperature, top_p=input.top_p, top_k=input.top_k)
            options["do_sample"] = True
        self.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            pad_token_id=self.ends[0],
            max_new_tokens=most - len(reply.tokens),
            streamer=reply,
            **options,
        )


class Reply(BaseStreamer):
    """Emits each token with the text that it completes, in the thread that calls `generate`."""

    def __init__(self, tokenizer, ends, job):
        self.tokenizer, self.ends, self.job = tokenizer, ends, job
        self.tokens, self.shown = [], 0
        self.started = self.ended = False

    def add(self, token):
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if text.endswith("\ufffd"):
            # The first bytes of a character.
            return ""
        new, self.shown = text[self.shown :], len(text)
        return new

    def put(self, tokens):
        # The prompt comes first.
        if self.started:
            [token] = tokens.tolist()
            if token in self.ends:
                self.ended = True
            else:
                self.job.emit({"token": token, "text": self.add(token)})
        self.started = True

    def end(self):
        pass
