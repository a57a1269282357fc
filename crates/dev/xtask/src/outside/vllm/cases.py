"""Requests that the gateway and vLLM's own server must answer alike.

`VLLM_PROMPTS` is how many prompts each set of parameters is sent with; all of them by default.
"""

import os

PROMPTS = (
    "The sea is",
    "def add(a, b):\n    return",
    "Die Kapitänin sagte: „Über Bord",
    "東京は",
    "Emoji: 🌟🐻🌊",
)
CHATS = (
    [{"role": "user", "content": "Who lives by the sea?"}],
    [{"role": "system", "content": "You are a captain."}, {"role": "user", "content": "Wie heißt die 🐻?"}],
    [
        {"role": "user", "content": "Count to three."},
        {"role": "assistant", "content": "1, 2, 3"},
        {"role": "user", "content": [{"type": "text", "text": "And on to six."}]},
    ],
)
SCHEMA = {
    "type": "object",
    "properties": {
        "sky": {"enum": ["clear", "gray"]},
        "boats": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["sky", "boats"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
FUNCTION = {"name": "weather", "description": "Weather at sea.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}

MOST_PROMPTS = int(os.environ.get("VLLM_PROMPTS", len(PROMPTS)))

# For both endpoints. A reply has at most 10 tokens and is greedy where nothing else is said.
BOTH = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "seed": {"temperature": 1.5, "seed": 2**40 + 5},
    "top_p": {"temperature": 0.7, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "min_p": {"temperature": 1.2, "min_p": 0.1},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"temperature": 1.0, "presence_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "logit_bias": {"temperature": 1.0, "logit_bias": {"253": -100, "260": 3.5, "28": -5}},
    "stop": {"stop": [" the", "\n", "."]},
    "stop_sampled": {"temperature": 1.0, "stop": ["a", "e"]},
    "stop_token_ids": {"stop_token_ids": [28, 30, 198], "min_tokens": 6},
    "min_tokens": {"temperature": 1.0, "min_tokens": 10},
    "ignore_eos": {"temperature": 1.0, "ignore_eos": True, "max_tokens": 24},
    "one_token": {"max_tokens": 1},
    "n": {"temperature": 1.0, "n": 3},
    "response_format": {"response_format": JSON_SCHEMA, "max_tokens": 40},
    "regex": {"temperature": 1.0, "structured_outputs": {"regex": "[A-Z][a-z]{3,8}!"}},
    "choice": {"structured_outputs": {"choice": ["a bear", "a whale", "no one"]}},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "stream_stop": {"stream": True, "stream_options": {"include_usage": True}, "stop": [" the", "\n", "."]},
}
COMPLETIONS = {
    "logprobs": {"logprobs": 0},
    "top_logprobs": {"logprobs": 5},
    "top_logprobs_sampled": {"temperature": 1.0, "logprobs": 3},
    "logprobs_n": {"temperature": 1.0, "logprobs": 2, "n": 2},
    "logprobs_format": {"logprobs": 2, "structured_outputs": {"regex": "[A-Z][a-z]{3,8}!"}},
    "echo": {"echo": True},
    "echo_logprobs": {"echo": True, "logprobs": 2},
    "echo_alone": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "prompt_logprobs": {"prompt_logprobs": 3},
}
CHAT = {
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 5},
    "top_logprobs_sampled": {"temperature": 1.0, "logprobs": True, "top_logprobs": 3},
    "logprobs_stream": {"logprobs": True, "top_logprobs": 2, "stream": True},
    "logprobs_n": {"temperature": 1.0, "logprobs": True, "n": 2},
    "json_object": {"response_format": {"type": "json_object"}, "max_tokens": 24},
    "tool_choice_none": {"tools": [TOOL], "tool_choice": "none"},
    "max_completion_tokens": {"max_completion_tokens": 7, "max_tokens": None},
    "no_generation_prompt": {"add_generation_prompt": False},
}
_COMMON = {"temperature": 0, "max_tokens": 10, "seed": 7}


def requests():
    """Yields the name, the endpoint and the fields of each request."""
    for endpoint, key, prompts, own in (
        ("completions", "prompt", PROMPTS, COMPLETIONS),
        ("chat", "messages", CHATS, CHAT),
    ):
        for name, fields in {**BOTH, **own}.items():
            for number, prompt in [*enumerate(prompts)][-MOST_PROMPTS:]:
                asked = {key: prompt, **_COMMON, **fields}
                given = {field: value for field, value in asked.items() if value is not None}
                yield f"{endpoint}::{name}[{number}]", endpoint, given
    begun = [*CHATS[0], {"role": "assistant", "content": "The whale"}]
    asked = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False, **_COMMON}
    yield "chat::continue_final_message", "chat", asked
    yield "completions::prompts", "completions", {"prompt": list(PROMPTS), **_COMMON}
    yield "completions::token_ids", "completions", {"prompt": [504, 4261, 314], **_COMMON}
