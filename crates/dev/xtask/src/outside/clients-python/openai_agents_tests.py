"""OpenAI's agents over chat completions and over responses."""

import asyncio
import functools

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, TIMEOUT_S, Feeling, Mood

SETTINGS = ModelSettings(
    temperature=0,
    max_tokens=100,
    extra_body=AT_LEAST,
    parallel_tool_calls=False,
    # The agents ask servers other than OpenAI's for the usage of a stream only if they are told to.
    include_usage=True,
)
# One event loop for all tests, because the agents keep their connections.
run = asyncio.new_event_loop().run_until_complete
QUESTION = "Is the sea calm today?"

# Traces would go to OpenAI.
set_tracing_disabled(True)


def chat():
    return OpenAIChatCompletionsModel(MODEL, openai_client())


def responses():
    return OpenAIResponsesModel(MODEL, openai_client())


def openai_client():
    return AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, timeout=TIMEOUT_S)


def agent_with_a_tool(model):
    """Returns an agent that must call a tool in its first turn, and the list of the tool's arguments."""
    feelings = []

    @function_tool
    def set_mood(feeling: Feeling) -> str:
        """Sets the mood.

        Args:
            feeling: How the sailor feels.
        """
        feelings.append(feeling)
        return "done"

    # The agent resets the choice after the first call, and the model then answers with a text.
    settings = SETTINGS.resolve(ModelSettings(tool_choice="required"))
    agent = Agent(name="sailor", instructions="Be short.", model=model(), model_settings=settings, tools=[set_mood])
    return agent, feelings


def check_items(result, feelings):
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds
    assert len(feelings) == 1 and isinstance(feelings[0], Feeling), feelings
    assert isinstance(result.final_output, str) and result.final_output, result
    assert all(response.usage.output_tokens > 0 for response in result.raw_responses), result.raw_responses


def loop_with_a_tool(model):
    agent, feelings = agent_with_a_tool(model)
    result = run(Runner.run(agent, QUESTION, max_turns=3))
    check_items(result, feelings)
    # The next turn has all items as its history.
    turn = [*result.to_input_list(), {"role": "user", "content": "And tomorrow?"}]
    again = run(Runner.run(agent.clone(tools=[], model=model(), model_settings=SETTINGS), turn))
    assert isinstance(again.final_output, str) and again.final_output, again


def streamed_loop_with_a_tool(model):
    async def streamed():
        agent, feelings = agent_with_a_tool(model)
        result = Runner.run_streamed(agent, QUESTION, max_turns=3)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        check_items(result, feelings)
        assert len(deltas) > 1 and "".join(deltas) == result.final_output, (deltas, result.final_output)

    run(streamed())


def output_type(model):
    agent = Agent(name="sailor", model=model(), model_settings=SETTINGS, output_type=Mood)
    result = run(Runner.run(agent, QUESTION))
    assert isinstance(result.final_output, Mood), result


def streamed_output_type(model):
    async def streamed():
        agent = Agent(name="sailor", model=model(), model_settings=SETTINGS, output_type=Mood)
        result = Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
        assert isinstance(result.final_output, Mood), result

    run(streamed())


def handoff(model):
    other = Agent(name="captain", model=model(), model_settings=SETTINGS)
    settings = SETTINGS.resolve(ModelSettings(tool_choice="required"))
    agent = Agent(name="sailor", model=model(), model_settings=settings, handoffs=[other])
    result = run(Runner.run(agent, QUESTION, max_turns=3))
    assert result.last_agent is other, result
    assert isinstance(result.final_output, str) and result.final_output, result


def named(body, model):
    test = functools.partial(body, model)
    test.__name__ = f"openai_agents_{body.__name__}_over_{model.__name__}"
    return test


BODIES = [loop_with_a_tool, streamed_loop_with_a_tool, output_type, streamed_output_type, handoff]
TESTS = [named(body, model) for model in (chat, responses) for body in BODIES]


def openai_agents_continue_a_previous_response():
    agent = Agent(name="sailor", model=responses(), model_settings=SETTINGS)
    first = run(Runner.run(agent, QUESTION))
    assert first.last_response_id.startswith("resp_"), first.last_response_id
    agent = agent.clone(model=responses())
    second = run(Runner.run(agent, "And tomorrow?", previous_response_id=first.last_response_id))
    assert second.final_output, second
    tokens = [result.raw_responses[0].usage.input_tokens for result in (first, second)]
    assert tokens[0] < tokens[1], tokens


TESTS.append(openai_agents_continue_a_previous_response)
