"""OpenAI's client: its helpers, and messages of a reply that are sent back in the next turn."""

import asyncio
import json
from typing import Literal

import openai
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, LONG, TIMEOUT_S, Closed, Mood, failure

BASE = {"base_url": f"{URL}/v1", "api_key": KEY, "timeout": TIMEOUT_S}
client = openai.OpenAI(**BASE)
QUESTION = {"role": "user", "content": "Is the sea calm today?"}
NEXT = {"role": "user", "content": "And tomorrow?"}
COMMON = {"model": MODEL, "temperature": 0, "extra_body": AT_LEAST}
CHAT = {**COMMON, "max_tokens": 24}
RESPONSE = {**COMMON, "max_output_tokens": 24}
# The arguments are limited by the schema, so the limit of tokens does not cut them off.
CALL = {**COMMON, "max_tokens": 100, "parallel_tool_calls": False, "tool_choice": "required"}
PARAMETERS = Mood.model_json_schema()
SET_MOOD = {"name": "set_mood", "description": "Sets the mood.", "parameters": PARAMETERS, "strict": True}
TOOLS = [{"type": "function", "function": SET_MOOD}]


def answered(message):
    """Sends a message of the assistant back, with the next question, and checks the answer."""
    calls = message["tool_calls"] if isinstance(message, dict) else message.tool_calls
    results = [
        {"role": "tool", "tool_call_id": call["id"] if isinstance(call, dict) else call.id, "content": "done"}
        for call in calls or []
    ]
    chat = client.chat.completions.create(messages=[QUESTION, message, *results, NEXT], **CHAT)
    assert chat.object == "chat.completion", chat
    assert chat.choices[0].message.role == "assistant", chat
    assert chat.choices[0].message.content, chat
    assert chat.choices[0].finish_reason in ("stop", "length"), chat
    return chat


def openai_parsed_message_is_sent_back():
    chat = client.chat.completions.parse(messages=[QUESTION], response_format=Mood, **{**CHAT, "max_tokens": 100})
    message = chat.choices[0].message
    assert isinstance(message.parsed, Mood), chat
    assert json.loads(message.content) == message.parsed.model_dump(mode="json"), chat
    answered(message)


def openai_parsed_tool_call_is_sent_back():
    tool = openai.pydantic_function_tool(Mood, name="set_mood")
    chat = client.chat.completions.parse(messages=[QUESTION], tools=[tool], **CALL)
    assert chat.choices[0].finish_reason == "tool_calls", chat
    message = chat.choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["set_mood"], chat
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Mood), chat
    answered(message)


class Harbors(Closed):
    names: set[Literal["Oslo", "Rome"]]


def openai_strict_set_is_refused_by_name():
    # No grammar enforces `uniqueItems`, which a set has, and the client's helper always asks for `strict`.
    chat = {"messages": [QUESTION], **CHAT}
    error = failure(openai.APIError, lambda: client.chat.completions.parse(response_format=Harbors, **chat))
    assert type(error) is openai.BadRequestError, repr(error)
    assert error.code == "schema_not_enforceable", error.body
    assert "uniqueItems" in error.message, error.body


def openai_final_message_of_a_stream_is_sent_back():
    with client.chat.completions.stream(messages=[QUESTION], **CHAT) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text, final
    assert final.choices[0].message.content == text, final
    answered(final.choices[0].message)


def openai_parsed_final_message_of_a_stream_is_sent_back():
    with client.chat.completions.stream(
        messages=[QUESTION], response_format=Mood, **{**CHAT, "max_tokens": 100}
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Mood), final
    answered(final.choices[0].message)


def openai_final_tool_call_of_a_stream_is_sent_back():
    with client.chat.completions.stream(messages=[QUESTION], tools=TOOLS, **CALL) as stream:
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert final.choices[0].finish_reason == "tool_calls", final
    Mood.model_validate_json(message.tool_calls[0].function.arguments)
    answered(message)


def summed(chunks):
    """Sums up the tool calls of a stream as many programs do: with every field that comes, `index` too."""
    calls = {}
    for chunk in chunks:
        for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            piece = delta.model_dump(exclude_unset=True)
            call = calls.setdefault(delta.index, {**piece, "function": {"name": "", "arguments": ""}})
            for field in ("name", "arguments"):
                call["function"][field] += piece.get("function", {}).get(field) or ""
    return list(calls.values())


def openai_summed_tool_calls_are_sent_back_with_their_index():
    calls = summed(client.chat.completions.create(messages=[QUESTION], tools=TOOLS, stream=True, **CALL))
    assert [call["index"] for call in calls] == [0], calls
    assert calls[0]["id"] and calls[0]["type"] == "function", calls
    assert calls[0]["function"]["name"] == "set_mood", calls
    Mood.model_validate_json(calls[0]["function"]["arguments"])
    answered({"role": "assistant", "content": None, "tool_calls": calls})


def openai_usage_is_in_the_last_chunk_if_asked_for():
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(messages=[QUESTION], **CHAT, **options))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1]
    assert all(chunk.usage is None for chunk in chunks[:-1]), chunks[:-1]


def openai_response_continues_a_previous_one():
    first = client.responses.create(input="My name is Ann.", **RESPONSE)
    assert first.status in ("completed", "incomplete"), first
    assert first.output_text, first
    assert first.output_text == first.output[-1].content[0].text, first
    second = client.responses.create(input="What is my name?", previous_response_id=first.id, **RESPONSE)
    assert second.previous_response_id == first.id, second
    assert second.output_text, second
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens, second.usage
    assert client.responses.retrieve(second.id).output_text == second.output_text


def openai_response_that_is_not_stored_is_not_found():
    response = client.responses.create(input="Hello", store=False, **RESPONSE)
    assert response.output_text, response
    assert response.store is False, response
    error = failure(openai.NotFoundError, lambda: client.responses.retrieve(response.id))
    assert error.status_code == 404, error
    following = {"input": "And then?", "previous_response_id": response.id}
    failure(openai.APIStatusError, lambda: client.responses.create(**following, **RESPONSE))


def openai_response_is_parsed_and_its_items_are_sent_back():
    response = client.responses.parse(input=[QUESTION], text_format=Mood, **{**RESPONSE, "max_output_tokens": 100})
    assert isinstance(response.output_parsed, Mood), response
    again = client.responses.create(input=[QUESTION, *response.output, NEXT], **RESPONSE)
    assert again.output_text, again


def openai_response_calls_a_tool_and_reads_its_result():
    tools = [{"type": "function", **SET_MOOD}]
    call = {**RESPONSE, "max_output_tokens": 100, "tools": tools, "parallel_tool_calls": False}
    # Without a stored history, the client sends the items of the response.
    first = client.responses.create(input=[QUESTION], tool_choice="required", store=False, **call)
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["set_mood"], first
    Mood.model_validate_json(calls[0].arguments)
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "done"}
    again = client.responses.create(input=[QUESTION, *first.output, result], store=False, **RESPONSE)
    assert again.output_text, again


def openai_stream_of_a_response_ends_with_the_response():
    with client.responses.stream(input="Hello", **RESPONSE) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text, final
    assert final.output_text == text, final


def too_long(error):
    assert type(error) is openai.BadRequestError, repr(error)
    assert error.status_code == 400, repr(error)
    assert error.code == "context_length_exceeded", repr(error)


def openai_stream_of_a_prompt_that_is_too_long_is_a_bad_request():
    message = {"role": "user", "content": LONG}
    # The error must come with the status: an error in a stream would be an APIError.
    too_long(failure(openai.APIError, lambda: client.chat.completions.create(messages=[message], stream=True, **CHAT)))


def openai_stream_of_a_response_to_a_long_prompt_names_the_length():
    # The stream begins with the id of the response, so the error comes as an event.
    events = list(client.responses.create(input=LONG, stream=True, **RESPONSE))
    assert events[-1].type == "response.failed", events
    assert events[-1].response.error.code == "context_length_exceeded", events


def openai_eight_async_chats_have_the_texts_of_one():
    alone = client.chat.completions.create(messages=[QUESTION], **CHAT).choices[0].message.content

    async def chats():
        async with openai.AsyncOpenAI(**BASE) as several:
            chat = several.chat.completions.create
            return await asyncio.gather(*(chat(messages=[QUESTION], **CHAT) for _ in range(8)))

    replies = asyncio.run(chats())
    assert len({reply.id for reply in replies}) == 8, replies
    assert [reply.choices[0].message.content for reply in replies] == [alone] * 8, replies


TESTS = [body for name, body in list(globals().items()) if name.startswith("openai_")]
