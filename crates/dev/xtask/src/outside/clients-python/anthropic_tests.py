"""Anthropic's client: its helpers, blocks that are sent back, and fields of current versions."""

import asyncio
from typing import Literal

import anthropic
from anthropic import beta_tool
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, LONG, TIMEOUT_S, Mood, failure

BASE = {"base_url": URL, "api_key": KEY, "timeout": TIMEOUT_S}
client = anthropic.Anthropic(**BASE)
QUESTION = {"role": "user", "content": "Is the sea calm today?"}
NEXT = {"role": "user", "content": "And tomorrow?"}
# This version has no parameter `temperature`.
COMMON = {"model": MODEL, "extra_body": {**AT_LEAST, "temperature": 0}}
ASKED = {**COMMON, "max_tokens": 24}
# The schema limits what is written, so the limit of tokens does not cut it off.
SHAPED = {**COMMON, "max_tokens": 100}
SCHEMA = Mood.model_json_schema()
TOOL = {"name": "set_mood", "description": "Sets the mood.", "input_schema": SCHEMA}
FORCED = {"type": "tool", "name": "set_mood", "disable_parallel_tool_use": True}


def text_of(message):
    """Checks a message that has a text, and returns the text."""
    assert message.type == "message" and message.role == "assistant", message
    assert message.stop_reason in ("end_turn", "max_tokens"), message
    assert [block.type for block in message.content] == ["text"], message
    assert message.content[0].text, message
    assert message.usage.output_tokens > 0, message
    return message.content[0].text


def call_of(message):
    """Checks a message that has one call of the tool, and returns its block."""
    assert message.stop_reason == "tool_use", message
    assert [block.type for block in message.content] == ["tool_use"], message
    (block,) = message.content
    assert block.id and block.name == "set_mood", message
    Mood.model_validate(block.input)
    return block


def anthropic_message_is_created_and_sent_back():
    message = client.messages.create(messages=[QUESTION], **ASKED)
    text_of(message)
    turn = {"role": "assistant", "content": message.content}
    text_of(client.messages.create(messages=[QUESTION, turn, NEXT], **ASKED))


def anthropic_stream_has_the_text_of_its_final_message():
    with client.messages.stream(messages=[QUESTION], **ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text_of(final) == text, final
    assert text == text_of(client.messages.create(messages=[QUESTION], **ASKED))


def anthropic_stream_of_a_tool_call_has_its_input():
    with client.messages.stream(messages=[QUESTION], tools=[TOOL], tool_choice=FORCED, **SHAPED) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    call_of(final)
    assert {"message_start", "content_block_start", "input_json", "content_block_stop"} <= kinds, kinds


def anthropic_tokens_are_counted_as_a_message_counts_them():
    counted = client.messages.count_tokens(model=MODEL, messages=[QUESTION], system="Be short.").input_tokens
    usage = client.messages.create(messages=[QUESTION], system="Be short.", **ASKED).usage
    assert counted > 0
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)


def anthropic_output_is_parsed():
    message = client.messages.parse(messages=[QUESTION], output_format=Mood, **SHAPED)
    assert isinstance(message.parsed_output, Mood), message
    # The block of a parsed message has the field `parsed_output` beside its text.
    turn = {"role": "assistant", "content": message.content}
    text_of(client.messages.create(messages=[QUESTION, turn, NEXT], **ASKED))


def anthropic_beta_output_is_parsed():
    message = client.beta.messages.parse(messages=[QUESTION], output_format=Mood, **SHAPED)
    assert isinstance(message.parsed_output, Mood), message


def anthropic_stream_of_an_output_is_parsed():
    with client.messages.stream(messages=[QUESTION], output_format=Mood, **SHAPED) as stream:
        final = stream.get_final_message()
    assert isinstance(final.parsed_output, Mood), final


def after_the_call(block, result="done", **more):
    """Sends a block of a call back with its result, and checks the answer."""
    turn = {"role": "assistant", "content": [block]}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": result, **more}
    results = {"role": "user", "content": [result]}
    text_of(client.messages.create(messages=[QUESTION, turn, results], **ASKED))


def called():
    return call_of(client.messages.create(messages=[QUESTION], tools=[TOOL], tool_choice=FORCED, **SHAPED))


def anthropic_tool_use_is_sent_back_with_all_its_fields():
    block = called().model_dump()
    assert {"id", "caller", "input", "name", "type"} <= set(block), block
    after_the_call(block)
    after_the_call({**block, "caller": {"type": "direct"}})


def anthropic_tool_results_are_blocks_or_errors():
    block = called().to_dict()
    after_the_call(block, [{"type": "text", "text": "done"}])
    after_the_call(block, "the sailor is away", is_error=True)


def anthropic_tool_runner_calls_a_function():
    feelings = []

    @beta_tool
    def set_mood(feeling: Literal["happy", "sad"]) -> str:
        """Sets the mood.

        Args:
            feeling: How the sailor feels.
        """
        feelings.append(feeling)
        return "done"

    # The model calls a function only if it must, so each turn has a call, up to the limit of turns.
    runner = client.beta.messages.tool_runner(
        messages=[QUESTION],
        tools=[set_mood],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
        **SHAPED,
    )
    messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use"] * 2, messages
    assert feelings and set(feelings) <= {"happy", "sad"}, feelings
    # The second turn has the first one as its history, whether the client or the server keeps it.
    tokens = [message.usage.input_tokens + message.usage.cache_read_input_tokens for message in messages]
    assert tokens[0] < tokens[1], tokens


def anthropic_tool_runner_ends_with_a_message():
    @beta_tool
    def rain(city: str) -> str:
        """Tells whether it rains.

        Args:
            city: Name of a city.
        """
        return "no"

    # No field but those that are required: the others have their defaults.
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=24, messages=[QUESTION], tools=[rain], max_iterations=2
    )
    final = runner.until_done()
    assert final.type == "message" and final.role == "assistant", final
    assert final.stop_reason in ("end_turn", "max_tokens", "tool_use"), final
    assert final.usage.output_tokens > 0, final


def anthropic_context_management_keeps_all_thinking():
    edit = {"type": "clear_thinking_20251015", "keep": "all"}
    message = client.beta.messages.create(
        messages=[QUESTION],
        context_management={"edits": [edit]},
        betas=["context-management-2025-06-27"],
        **ASKED,
    )
    text_of(message)


def anthropic_list_of_mcp_servers_may_be_empty():
    text_of(client.beta.messages.create(messages=[QUESTION], mcp_servers=[], **ASKED))


def anthropic_thinking_may_be_adaptive():
    text_of(client.messages.create(messages=[QUESTION], thinking={"type": "adaptive"}, **ASKED))
    text_of(client.messages.create(messages=[QUESTION], thinking={"type": "disabled"}, **ASKED))


def anthropic_cache_control_is_taken_everywhere():
    mark = {"cache_control": {"type": "ephemeral"}}
    message = client.messages.create(
        system=[{"type": "text", "text": "Be short.", **mark}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Is the sea calm today?", **mark}]}],
        tools=[{**TOOL, **mark}],
        tool_choice={"type": "none"},
        **ASKED,
    )
    text_of(message)
    assert message.usage.cache_read_input_tokens is not None, message.usage
    block = {**called().to_dict(), **mark}
    after_the_call(block, cache_control={"type": "ephemeral", "ttl": "1h"})


def anthropic_prompt_that_is_too_long_is_a_bad_request():
    message = {"role": "user", "content": LONG}
    for stream in (False, True):
        error = failure(
            anthropic.APIError, lambda: client.messages.create(messages=[message], stream=stream, **ASKED)
        )
        assert type(error) is anthropic.BadRequestError, repr(error)
        assert error.body["error"]["type"] == "invalid_request_error", error.body
        # Agents look for these words to know that they must compact the conversation.
        assert "prompt is too long" in error.body["error"]["message"], error.body


def anthropic_async_messages_and_streams_have_the_text_of_one():
    alone = text_of(client.messages.create(messages=[QUESTION], **ASKED))

    async def streamed(several):
        async with several.messages.stream(messages=[QUESTION], **ASKED) as stream:
            return await stream.get_final_message()

    async def messages():
        async with anthropic.AsyncAnthropic(**BASE) as several:
            whole = [several.messages.create(messages=[QUESTION], **ASKED) for _ in range(4)]
            return await asyncio.gather(*whole, *(streamed(several) for _ in range(4)))

    replies = asyncio.run(messages())
    assert [text_of(reply) for reply in replies] == [alone] * 8, replies


TESTS = [body for name, body in list(globals().items()) if name.startswith("anthropic_")]
