"""The official Anthropic client, unmodified, against a gateway with the bundled model.

Called with the address, the API key, the model and the name of a check; prints one JSON line.
Responses are validated strictly against the types of the client.
"""

import asyncio
import json
import sys

import anthropic

ADDRESS, KEY, MODEL, CHECK = sys.argv[1:5]
STORY = "クマが海辺に行って"


def client(key=KEY, **more):
    return anthropic.Anthropic(
        base_url=ADDRESS, api_key=key, timeout=60, _strict_response_validation=True, **more)


def ask(content="Once a bear", sampling=None, **more):
    """Parameters of a short reply, greedy if nothing else is said. The client has no parameters for
    sampling any more."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 16,
            "extra_body": {"temperature": 0} if sampling is None else sampling, **more}


def seeded(seed, **more):
    """Parameters of a reply to a greeting that is sampled as the model's files say."""
    return ask("hi", {"seed": seed}, **more)


def total(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def message():
    whole = client().messages.create(**ask())
    assert whole.id.startswith("msg_") and whole.model == MODEL and whole._request_id
    assert whole.stop_reason == "max_tokens" and whole.stop_sequence is None
    assert whole.usage.output_tokens == 16 and total(whole.usage) > 1, whole.usage
    with client().messages.stream(**ask()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text and text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 16
    assert total(final.usage) == total(whole.usage), (final.usage, whole.usage)
    events = [event.type for event in client().messages.create(**ask(), stream=True)]
    deltas = events[2:-3]
    assert events == ["message_start", "content_block_start", *deltas, "content_block_stop",
                      "message_delta", "message_stop"], events
    assert set(deltas) == {"content_block_delta"}, events
    return text


def blocks():
    """A history with all kinds of blocks that are read, and what clients send beside them."""
    mark = {"type": "ephemeral"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "sea"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
              "content": [{"type": "text", "text": "waves", "cache_control": mark}]}
    thinking = {"type": "thinking", "thinking": "Where?", "signature": ""}
    made = client().messages.create(
        model=MODEL, max_tokens=4, system=[{"type": "text", "text": "Be brief.", "cache_control": mark}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Once a bear"}]},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]}],
        tools=[{"name": "look", "description": "Looks.", "input_schema": {"type": "object"},
                "cache_control": mark}],
        tool_choice={"type": "none"}, thinking={"type": "enabled", "budget_tokens": 1024},
        metadata={"user_id": "u"}, service_tier="auto", extra_body={"top_k": 4, "top_p": 0.9})
    # What the client read can be sent back as it is.
    again = client().messages.create(
        model=MODEL, max_tokens=4, messages=[
            {"role": "user", "content": "Once a bear"},
            {"role": "assistant", "content": made.content or "Yes."},
            {"role": "user", "content": "And then?"}])
    return again.stop_reason


def stop_sequence():
    text = client().messages.create(**ask()).content[0].text
    words = text.split()
    stop = words[len(words) // 2] if len(words) > 2 else text.strip()[2]
    cut = client().messages.create(**ask(stop_sequences=[stop]))
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop, cut
    shown = "".join(block.text for block in cut.content)
    assert shown.strip() == text[:text.index(stop)].strip(), (shown, text, stop)
    several = client().messages.create(**ask(stop_sequences=[stop, "\u2603"]))
    assert several.stop_reason == "stop_sequence" and several.stop_sequence is None
    return stop


def prefill():
    """The reply goes on where the last message of the assistant ends."""
    text = client().messages.create(**ask(max_tokens=12)).content[0].text
    begun = text.strip()
    messages = [{"role": "user", "content": "Once a bear"}, {"role": "assistant", "content": begun}]
    rest = client().messages.create(model=MODEL, messages=messages, max_tokens=4)
    counted = client().messages.count_tokens(model=MODEL, messages=messages)
    assert counted.input_tokens == total(rest.usage)
    asked = client().messages.count_tokens(model=MODEL, messages=messages[:1])
    assert counted.input_tokens > asked.input_tokens
    return rest.stop_reason


def tools():
    """A required call is held by a grammar, so that a model of any size makes it."""
    tool = {"name": "set_mood", "description": "Sets the mood.", "input_schema": {
        "type": "object", "properties": {"mood": {"enum": ["happy", "sad"]}},
        "required": ["mood"], "additionalProperties": False}}
    asked = seeded(3, tools=[tool], max_tokens=100)
    for choice in [{"type": "any"}, {"type": "any", "disable_parallel_tool_use": True},
                   {"type": "tool", "name": "set_mood"}]:
        made = client().messages.create(**asked, tool_choice=choice)
        with client().messages.stream(**asked, tool_choice=choice) as stream:
            streamed = stream.get_final_message()
        call = made.content[0]
        assert call.type == "tool_use" and call.id.startswith("toolu_") and call.name == "set_mood"
        assert (streamed.stop_reason, len(streamed.content)) == (made.stop_reason, len(made.content))
        if made.stop_reason == "tool_use":
            assert all(call.input["mood"] in ["happy", "sad"] for call in made.content)
            assert [call.input for call in streamed.content] == [call.input for call in made.content]
    # The result of a call goes back in a message.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    again = client().messages.create(model=MODEL, max_tokens=8, tools=[tool], messages=[
        *asked["messages"], {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]}])
    return again.stop_reason


def structured():
    schema = {"type": "object", "properties": {"mood": {"enum": ["happy", "sad"]}},
              "required": ["mood"], "additionalProperties": False}
    made = client().messages.create(
        **seeded(1, max_tokens=60), output_config={"format": {"type": "json_schema", "schema": schema}})
    return json.loads(made.content[0].text)["mood"]


def count():
    asked = ask(STORY, system="Be brief.")
    prompt = {name: asked[name] for name in ["model", "messages", "system"]}
    counted = client().messages.count_tokens(**prompt).input_tokens
    usage = client().messages.create(**asked).usage
    assert counted == total(usage), (counted, usage)
    # Forced calls and a count of the same prompt do not exclude each other.
    tool = {"name": "f", "input_schema": {"type": "object"}}
    forced = client().messages.count_tokens(**prompt, tools=[tool], tool_choice={"type": "any"})
    assert forced.input_tokens >= counted
    return counted


def errors():
    told = []
    image = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}]
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    for kind, call in [
        (anthropic.AuthenticationError,
         lambda: client("nsk_00000000_" + 43 * "x").messages.create(**ask())),
        (anthropic.NotFoundError, lambda: client().messages.create(**{**ask(), "model": "nothing"})),
        (anthropic.BadRequestError, lambda: client().messages.create(**ask(STORY, {"top_p": 2}))),
        (anthropic.BadRequestError, lambda: client().messages.create(**ask(STORY, {"typo": 1}))),
        (anthropic.BadRequestError, lambda: client().messages.create(**ask("a " * 4000))),
        (anthropic.BadRequestError, lambda: client().messages.create(**ask(image))),
        (anthropic.BadRequestError, lambda: client().messages.create(**ask(tools=search))),
    ]:
        try:
            call()
            raise AssertionError(f"no {kind}")
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error
            assert error.request_id and error.body["request_id"] == error.request_id, error
            told.append(error.body["error"]["type"])
    # A stream that fails ends with the error.
    try:
        list(client().messages.create(**ask("a " * 4000), stream=True))
        raise AssertionError("no error in the stream")
    except anthropic.APIStatusError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error
    return told


def concurrent():
    async def many():
        made = anthropic.AsyncAnthropic(base_url=ADDRESS, api_key=KEY)

        async def one(seed):
            asked = ask(sampling={"temperature": 1, "seed": seed})
            async with made.messages.stream(**asked) as stream:
                return "".join([text async for text in stream.text_stream])
        return await asyncio.gather(*[one(seed) for seed in range(8)])

    def alone(seed):
        made = client().messages.create(**ask(sampling={"temperature": 1, "seed": seed}))
        return "".join(block.text for block in made.content)
    expected = [alone(seed) for seed in range(8)]
    assert asyncio.run(many()) == expected
    return len(set(expected))


print(json.dumps(globals()[CHECK](), ensure_ascii=False))
