"""litellm over chat completions, as OpenAI's and as vLLM's, over Anthropic's messages and over responses."""

import asyncio
import functools

import litellm
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, LONG, TIMEOUT_S, Mood, Weather, failure

# litellm prints advice with each error, and for each model that it does not know.
litellm.suppress_debug_info = True

QUESTION = {"role": "user", "content": "Is the sea calm today?"}
NEXT = {"role": "user", "content": "And tomorrow?"}
PROVIDERS = {"openai": f"{URL}/v1", "hosted_vllm": f"{URL}/v1", "anthropic": URL}
SET_MOOD = {"name": "set_mood", "description": "Sets the mood.", "parameters": Mood.model_json_schema()}
# The schema limits the arguments, so the limit of tokens does not cut them off.
CALL = {
    "max_tokens": 100,
    "tools": [{"type": "function", "function": SET_MOOD}],
    "tool_choice": {"type": "function", "function": {"name": "set_mood"}},
    "parallel_tool_calls": False,
}


def common(provider):
    # litellm passes a field that it does not know to the server, for some providers in `extra_body` alone.
    more = AT_LEAST if provider == "anthropic" else {"extra_body": AT_LEAST}
    model = {"model": f"{provider}/{MODEL}", "api_base": PROVIDERS[provider], "api_key": KEY}
    return {**model, **more, "temperature": 0, "timeout": TIMEOUT_S, "num_retries": 0}


def completion(provider, *messages, **more):
    return litellm.completion(messages=list(messages), **{**common(provider), "max_tokens": 24, **more})


def text_of(reply):
    assert reply.object == "chat.completion", reply
    choice = reply.choices[0]
    assert choice.finish_reason in ("stop", "length"), reply
    assert choice.message.role == "assistant" and choice.message.content, reply
    assert reply.usage.prompt_tokens > 0 and reply.usage.completion_tokens > 0, reply.usage
    return choice.message.content


def call_of(reply):
    assert reply.choices[0].finish_reason == "tool_calls", reply
    (call,) = reply.choices[0].message.tool_calls
    assert call.id and call.function.name == "set_mood", reply
    Mood.model_validate_json(call.function.arguments)
    return call


def message_is_sent_back(provider):
    reply = completion(provider, QUESTION)
    text_of(reply)
    text_of(completion(provider, QUESTION, reply.choices[0].message, NEXT))


def chunks_are_built_into_a_reply(provider):
    chunks = list(completion(provider, QUESTION, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=[QUESTION])
    assert text_of(built) == text_of(completion(provider, QUESTION)), built
    text_of(completion(provider, QUESTION, built.choices[0].message, NEXT))


def call_is_sent_back(provider):
    reply = completion(provider, QUESTION, **CALL)
    result = {"role": "tool", "tool_call_id": call_of(reply).id, "name": "set_mood", "content": "done"}
    # litellm wants the tools of a history for Anthropic's models.
    again = {**CALL, "tool_choice": "none", "max_tokens": 24}
    text_of(completion(provider, QUESTION, reply.choices[0].message, result, **again))


def streamed_call_is_sent_back(provider):
    chunks = list(completion(provider, QUESTION, stream=True, **CALL))
    reply = litellm.stream_chunk_builder(chunks, messages=[QUESTION])
    result = {"role": "tool", "tool_call_id": call_of(reply).id, "name": "set_mood", "content": "done"}
    again = {**CALL, "tool_choice": "none", "max_tokens": 24}
    text_of(completion(provider, QUESTION, reply.choices[0].message, result, **again))


def schema_is_followed(provider):
    # For Anthropic's API, litellm refers to definitions in a way that JSON Schema does not have.
    wanted = Weather if provider == "anthropic" else Mood
    reply = completion(provider, QUESTION, response_format=wanted, max_tokens=100)
    wanted.model_validate_json(text_of(reply))


def prompt_that_is_too_long_exceeds_the_context(provider):
    # A router of litellm tries a model with a longer context after this error alone.
    for stream in (False, True):
        error = failure(
            litellm.ContextWindowExceededError,
            lambda: list(completion(provider, {"role": "user", "content": LONG}, stream=stream)),
        )
        assert error.status_code == 400, repr(error)


def async_completions_have_the_text_of_one(provider):
    async def several():
        one = functools.partial(litellm.acompletion, messages=[QUESTION], max_tokens=24, **common(provider))
        return await asyncio.gather(*(one() for _ in range(4)))

    alone = text_of(completion(provider, QUESTION))
    assert [text_of(reply) for reply in asyncio.run(several())] == [alone] * 4


def response(**more):
    return litellm.responses(**{**common("openai"), "max_output_tokens": 24, **more})


def litellm_response_continues_a_previous_one():
    first = response(input="My name is Ann.")
    assert first.status in ("completed", "incomplete") and first.output_text, first
    second = response(input="What is my name?", previous_response_id=first.id)
    assert second.output_text, second
    assert second.usage.input_tokens > first.usage.input_tokens, (first.usage, second.usage)


def litellm_response_is_streamed():
    events = list(response(input="Hello", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text, events
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
    assert events[-1].response.output_text == text, events[-1]


def litellm_text_is_completed():
    model = {**common("openai"), "model": f"text-completion-openai/{MODEL}"}
    reply = litellm.text_completion(prompt="The sea", max_tokens=8, **model)
    assert reply.object == "text_completion" and reply.choices[0].text, reply


def named(body, provider):
    test = functools.partial(body, provider)
    test.__name__ = f"litellm_{body.__name__}_of_{provider}"
    return test


BODIES = [
    message_is_sent_back,
    chunks_are_built_into_a_reply,
    call_is_sent_back,
    streamed_call_is_sent_back,
    schema_is_followed,
    prompt_that_is_too_long_exceeds_the_context,
    async_completions_have_the_text_of_one,
]
TESTS = [named(body, provider) for provider in PROVIDERS for body in BODIES]
TESTS += [body for name, body in list(globals().items()) if name.startswith("litellm_")]
