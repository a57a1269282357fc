"""Replies of an OpenAI client, and the comparison of two of them."""

import inspect

# Of two log-probabilities.
TOLERANCE = 1e-3


def ask(client, endpoint, fields):
    """Sends a request and returns what its reply says, of a stream as of a whole reply."""
    create = client.completions.create if endpoint == "completions" else client.chat.completions.create
    known = inspect.signature(create).parameters
    own = {name: value for name, value in fields.items() if name in known}
    more = {name: value for name, value in fields.items() if name not in known}
    reply = create(model=client.served, extra_body=more, **own)
    if fields.get("stream"):
        return _joined(chunk.model_dump() for chunk in reply)
    return _whole(reply.model_dump())


def _whole(reply):
    choices = []
    for choice in reply["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        choices.append({"text": text or "", "finish_reason": choice["finish_reason"], "calls": _calls(choice),
                        "logprobs": _logprobs(choice), "prompt_logprobs": choice.get("prompt_logprobs")})
    return {"choices": choices, "usage": _usage(reply)}


def _joined(chunks):
    choices, usage = {}, None
    for chunk in chunks:
        usage = _usage(chunk) or usage
        for choice in chunk["choices"]:
            empty = {"finish_reason": None, "logprobs": None, "prompt_logprobs": None}
            whole = choices.setdefault(choice["index"], {"text": "", "calls": [], **empty})
            whole["text"] += (choice["text"] if "text" in choice else choice["delta"]["content"]) or ""
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
            for name, values in (_logprobs(choice) or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"][name] = whole["logprobs"].get(name, []) + values
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def _calls(choice):
    calls = choice.get("message", {}).get("tool_calls") or []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _logprobs(choice):
    """Returns the lists of log-probabilities. vLLM has other fields beside them, of no value here."""
    told = choice.get("logprobs") or {}
    return {name: values for name, values in told.items() if values is not None} or None


def _usage(reply):
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return reply["usage"] and {name: reply["usage"][name] for name in names}


def difference(expected, found, at="reply"):
    """Returns the first difference of two replies as a sentence; None if there is none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            return f"{at} has {sorted(map(repr, found))} instead of {sorted(map(repr, expected))}"
        pairs = [(f"{at}.{name}", expected[name], found[name]) for name in expected]
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{at} has {len(found)} entries and not {len(expected)}: {found!r} and not {expected!r}"
        pairs = [(f"{at}[{index}]", *pair) for index, pair in enumerate(zip(expected, found))]
    elif isinstance(expected, float) and isinstance(found, (int, float)):
        close = abs(expected - found) <= TOLERANCE
        return None if close else f"{at} is {found!r} instead of {expected!r}"
    else:
        return None if expected == found else f"{at} is {found!r} instead of {expected!r}"
    return next(filter(None, (difference(e, f, name) for name, e, f in pairs)), None)
