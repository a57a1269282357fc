"""pydantic-ai's agent over chat completions, over responses and over Anthropic's messages."""

import functools

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, TIMEOUT_S, Feeling, Mood

SETTINGS = {"temperature": 0, "max_tokens": 24, "timeout": TIMEOUT_S, "extra_body": AT_LEAST}
# The schema limits what is written, so the limit of tokens does not cut it off.
SHAPED = {**SETTINGS, "max_tokens": 100, "parallel_tool_calls": False}


def openai_provider():
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY))


def chat():
    return OpenAIChatModel(MODEL, provider=openai_provider())


def responses():
    return OpenAIResponsesModel(MODEL, provider=openai_provider())


def messages():
    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY))
    # The library knows what a model can do by the names of Anthropic's models alone.
    return AnthropicModel(MODEL, provider=provider, profile={"supports_json_schema_output": True})


def text(model):
    result = Agent(model(), model_settings=SETTINGS).run_sync("Is the sea calm today?")
    assert isinstance(result.output, str) and result.output, result
    assert result.usage.input_tokens > 0 and result.usage.output_tokens > 0, result.usage
    assert result.response.finish_reason in ("stop", "length"), result.response


def history(model):
    agent = Agent(model(), model_settings=SETTINGS, instructions="Be short.")
    first = agent.run_sync("Is the sea calm today?")
    second = agent.run_sync("And tomorrow?", message_history=first.all_messages())
    assert isinstance(second.output, str) and second.output, second
    assert len(second.all_messages()) == 4, second.all_messages()
    assert second.usage.input_tokens > first.usage.input_tokens, (first.usage, second.usage)


def tool_output(model):
    agent = Agent(model(), model_settings=SHAPED, output_type=ToolOutput(Mood, name="set_mood"))
    first = agent.run_sync("Is the sea calm today?")
    assert isinstance(first.output, Mood), first
    parts = [type(part) for message in first.all_messages() for part in message.parts]
    assert ToolCallPart in parts and ToolReturnPart in parts, parts
    # The history has the call and its result.
    second = agent.run_sync("And tomorrow?", message_history=first.all_messages())
    assert isinstance(second.output, Mood), second


def outputs_of_several_tools(model):
    tools = [ToolOutput(Mood, name="set_mood"), ToolOutput(bool, name="set_calm")]
    result = Agent(model(), model_settings=SHAPED, output_type=tools).run_sync("Is the sea calm today?")
    assert isinstance(result.output, (Mood, bool)), result


def native_output(model):
    agent = Agent(model(), model_settings=SHAPED, output_type=NativeOutput([Mood, Feeling]))
    result = agent.run_sync("Is the sea calm today?")
    assert isinstance(result.output, (Mood, Feeling)), result
    result = agent.run_sync("Is the sea calm today?", output_type=NativeOutput(Mood))
    assert isinstance(result.output, Mood), result


def function_tool(model):
    feelings = []

    # The first turn must call the function, and the second one must not, since the model does not decide.
    def settings(context):
        return {**SHAPED, "tool_choice": "required" if context.run_step == 1 else "none"}

    agent = Agent(model(), model_settings=settings)

    @agent.tool_plain
    def set_mood(feeling: Feeling) -> str:
        """Sets the mood.

        Args:
            feeling: How the sailor feels.
        """
        feelings.append(feeling)
        return "done"

    result = agent.run_sync("Is the sea calm today?")
    assert len(feelings) == 1 and isinstance(feelings[0], Feeling), feelings
    assert isinstance(result.output, str) and result.output, result
    assert result.usage.requests == 2, result.usage


def stream(model):
    agent = Agent(model(), model_settings=SETTINGS)
    result = agent.run_stream_sync("Is the sea calm today?")
    pieces = list(result.stream_text(delta=True, debounce_by=None))
    assert len(pieces) > 1, pieces
    whole = agent.run_sync("Is the sea calm today?").output
    assert "".join(pieces) == whole, (pieces, whole)
    assert result.usage.output_tokens > 0, result.usage


def stream_of_an_output(model):
    agent = Agent(model(), model_settings=SHAPED, output_type=ToolOutput(Mood))
    output = agent.run_stream_sync("Is the sea calm today?").get_output()
    assert isinstance(output, Mood), output


def named(body, model):
    test = functools.partial(body, model)
    test.__name__ = f"pydantic_ai_{body.__name__}_over_{model.__name__}"
    return test


BODIES = [
    text,
    history,
    tool_output,
    outputs_of_several_tools,
    native_output,
    function_tool,
    stream,
    stream_of_an_output,
]
TESTS = [named(body, model) for model in (chat, responses, messages) for body in BODIES]
