"""The official OpenAI client, unmodified, against a gateway with the bundled model.

Called with the address, the API key, the model and the name of a check; prints one JSON line.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

ADDRESS, KEY, MODEL, CHECK = sys.argv[1:5]
STORY = "クマが海辺に行って"


def client(**more):
    return openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, timeout=60, **more)


def ask(**more):
    """Parameters of a short greedy reply."""
    return {"model": MODEL, "prompt": STORY, "max_tokens": 24, "temperature": 0, **more}


def completion():
    whole = client().completions.create(**ask())
    stream = client().completions.create(**ask(), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text and text, (text, whole)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert whole.choices[0].finish_reason == "length"
    return text


def echo_and_logprobs():
    """The request of lm-eval's local-completions."""
    ids = client().completions.create(**ask(echo=True, max_tokens=0, logprobs=0))
    tokens = ids.choices[0].logprobs.tokens
    assert "".join(tokens).endswith(STORY), tokens
    scored = client().completions.create(**ask(echo=True, max_tokens=1, logprobs=1))
    logprobs = scored.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and len(logprobs.tokens) == len(tokens) + 1
    assert all(number <= 0 for number in logprobs.token_logprobs[1:])
    likeliest = max(logprobs.top_logprobs[-1], key=logprobs.top_logprobs[-1].get)
    assert likeliest == logprobs.tokens[-1]
    return len(tokens)


def several():
    both = client().completions.create(**ask(prompt=[STORY, "Once a bear"], n=2, seed=7, temperature=1))
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = client().completions.create(**ask(prompt="Once a bear", n=2, seed=7, temperature=1))
    assert [c.text for c in both.choices[2:]] == [c.text for c in alone.choices]
    return both.usage.total_tokens


def tokens():
    """vLLM's endpoints beside OpenAI's."""
    made = client().post("/tokenize", cast_to=object, body={
        "model": MODEL, "prompt": STORY, "return_token_strs": True})
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"]) > 1, made
    assert "".join(made["token_strs"]).endswith(STORY) or "\ufffd" in "".join(made["token_strs"]), made
    usage = client().completions.create(**ask()).usage
    assert usage.prompt_tokens == made["count"], (usage, made)
    text = client().post("/detokenize", cast_to=object, body={"model": MODEL, "tokens": made["tokens"]})
    assert text["prompt"].endswith(STORY), text
    messages = [{"role": "user", "content": STORY}]
    chat = client().post("/tokenize", cast_to=object, body={"model": MODEL, "messages": messages})
    assert chat["count"] >= made["count"], chat
    return made["count"]


def chat():
    messages = [{"role": "user", "content": [{"type": "text", "text": "Once a bear"}]}]
    asked = {"model": MODEL, "messages": messages, "max_completion_tokens": 16, "temperature": 0}
    whole = client().chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    text, streamed = whole.choices[0].message.content, ""
    with client().chat.completions.stream(**asked) as stream:
        for event in stream:
            if event.type == "content.delta":
                streamed += event.delta
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            final = cut.completion
    assert text == streamed == final.choices[0].message.content and text
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens
    assert b"".join(bytes(token.bytes) for token in content).decode("utf-8", "replace").startswith(text[:4])
    assert all(len(token.top_logprobs) == 2 for token in content)
    return text


def structured():
    schema = {"type": "object", "properties": {"mood": {"enum": ["happy", "sad"]}},
              "required": ["mood"], "additionalProperties": False}
    made = client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=60, seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}})
    return json.loads(made.choices[0].message.content)["mood"]


def tools():
    """A required call is held by a grammar, so that a model of any size makes it."""
    tool = {"type": "function", "function": {"name": "set_mood", "parameters": {
        "type": "object", "properties": {"mood": {"enum": ["happy", "sad"]}},
        "required": ["mood"], "additionalProperties": False}}}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": [tool],
             "max_tokens": 100, "seed": 3}
    for choice in ["required", {"type": "function", "function": {"name": "set_mood"}}]:
        for parallel in [True, False]:
            made = client().chat.completions.create(
                **asked, tool_choice=choice, parallel_tool_calls=parallel)
            calls = made.choices[0].message.tool_calls
            chunks = list(client().chat.completions.create(
                **asked, tool_choice=choice, parallel_tool_calls=parallel, stream=True))
            deltas = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or []]
            arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.index == 0)
            if made.choices[0].finish_reason == "tool_calls":
                assert json.loads(calls[0].function.arguments)["mood"] in ["happy", "sad"]
                assert calls[0].function.name == "set_mood"
            assert arguments == calls[0].function.arguments
            assert deltas[0].id.startswith("call_") and deltas[0].function.name == "set_mood"
    # The result of a call goes back in a message.
    messages = [*asked["messages"], made.choices[0].message.to_dict(),
                {"role": "tool", "tool_call_id": calls[0].id, "content": "done"}]
    again = client().chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
    return again.choices[0].finish_reason


def responses():
    asked = {"model": MODEL, "input": "Once a bear", "max_output_tokens": 16, "temperature": 0,
             "instructions": "Tell a story."}
    whole = client().responses.create(**asked)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    with client().responses.stream(**asked) as stream:
        events = list(stream)
        final = events[-1].response
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == list(range(len(numbers))), numbers
    assert final.output_text == whole.output_text and whole.output_text
    items = client().responses.input_items.list(whole.id)
    assert items.data[0].content[0].text == "Once a bear"
    following = client().responses.create(
        model=MODEL, input="And then?", previous_response_id=whole.id, max_output_tokens=4)
    assert following.usage.input_tokens > whole.usage.input_tokens
    counted = client().responses.input_tokens.count(
        model=MODEL, input="Once a bear", instructions="Tell a story.")
    assert counted.input_tokens == whole.usage.input_tokens, (counted, whole.usage)
    counted = client().responses.input_tokens.count(
        model=MODEL, input="And then?", previous_response_id=whole.id)
    assert counted.input_tokens == following.usage.input_tokens, (counted, following.usage)
    try:
        client().responses.compact(model=MODEL, input="Once a bear")
        raise AssertionError("a conversation was compacted")
    except openai.InternalServerError as error:
        assert (error.status_code, error.code) == (501, "not_served"), error
    client().responses.delete(whole.id)
    try:
        client().responses.retrieve(whole.id)
        raise AssertionError("a deleted response was found")
    except openai.NotFoundError:
        pass
    return whole.output_text


def resume():
    """A stream in the background is read again from the event after the last one."""
    asked = {"model": MODEL, "input": STORY, "max_output_tokens": 40, "temperature": 0}
    stream = client().responses.create(**asked, background=True, stream=True)
    first = []
    for event in stream:
        first.append(event)
        if len(first) == 10:
            stream.close()
            break
    id, last = first[0].response.id, first[-1].sequence_number
    rest = list(client().responses.retrieve(id, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest][:1] == [last + 1]
    text = "".join(event.delta for event in first + rest if event.type == "response.output_text.delta")
    again = list(client().responses.retrieve(id, stream=True))
    assert [event.to_json() for event in again] == [event.to_json() for event in first + rest]
    assert text == client().responses.retrieve(id).output_text
    return text


def cancel():
    made = client().responses.create(model=MODEL, input=STORY, background=True)
    assert made.status in ["queued", "in_progress"], made.status
    stopped = client().responses.cancel(made.id)
    assert stopped.status in ["cancelled", "completed", "incomplete"], stopped.status
    return "stopped"


def errors():
    told = []
    for kind, call in [
        (openai.AuthenticationError, lambda: openai.OpenAI(
            base_url=f"{ADDRESS}/v1", api_key="nsk_00000000_" + 43 * "x").models.list()),
        (openai.NotFoundError, lambda: client().completions.create(**ask(model="nothing"))),
        (openai.BadRequestError, lambda: client().completions.create(**ask(top_p=2))),
        (openai.BadRequestError, lambda: client().completions.create(**ask(extra_body={"typo": 1}))),
        (openai.BadRequestError, lambda: client().completions.create(**ask(prompt="a " * 4000))),
    ]:
        try:
            call()
            raise AssertionError(f"no {kind}")
        except kind as error:
            assert error.request_id, error
            told.append(error.code)
    return told


def concurrent():
    async def many():
        made = openai.AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY)

        async def one(seed):
            stream = await made.completions.create(**ask(seed=seed, temperature=1, stream=True))
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
        return await asyncio.gather(*[one(seed) for seed in range(8)])
    alone = [client().completions.create(**ask(seed=seed, temperature=1)).choices[0].text for seed in range(8)]
    assert asyncio.run(many()) == alone
    return len(set(alone))


def long_reply():
    """A background reply, for a gateway that is killed meanwhile; prints its id first.

    The format makes it long, and the temperature makes its text depend on the seed.
    """
    words = {"format": {"type": "regex", "regex": "([a-z]{1,9} ){300}"}}
    asked = {"model": MODEL, "input": STORY, "max_output_tokens": 80, "temperature": 1,
             "extra_body": {"text": words}}
    stream = client(max_retries=0).responses.create(**asked, background=True, stream=True)
    events, id = [], None
    try:
        for event in stream:
            if event.type == "response.created":
                id = event.response.id
            events.append(event)
            if len(events) == 8:
                print(json.dumps({"id": id, "seen": 8}), flush=True)
    except Exception as error:  # The connection broke.
        print(json.dumps({"broken": type(error).__name__}), file=sys.stderr)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    return {"id": id, "last": events[-1].sequence_number, "text": "".join(deltas),
            "ended": events[-1].type}


def continued():
    """The rest of a reply after the event whose number is the sixth argument."""
    id, after = sys.argv[5], int(sys.argv[6])
    events = list(client(max_retries=5).responses.retrieve(id, stream=True, starting_after=after))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    error = getattr(getattr(events[-1], "response", None), "error", None)
    return {"first": events[0].sequence_number, "text": "".join(deltas), "ended": events[-1].type,
            "error": error and error.message}


def starting():
    """A request and a stream of a model whose first worker comes later."""
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(lambda: list(client(max_retries=0).completions.create(**ask(), stream=True)))
        raw = client().completions.with_raw_response.create(**ask())
        text = "".join(choice.text for chunk in stream.result() for choice in chunk.choices)
    assert text == raw.parse().choices[0].text and text, (text, raw)
    return {"retries": raw.retries_taken}


print(json.dumps(globals()[CHECK](), ensure_ascii=False))
