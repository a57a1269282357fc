"""smolagents' model of OpenAI's API, and its agent with a tool."""

from report import KEY, MODEL, URL
from smolagents import ChatMessage, MessageRole, OpenAIServerModel, Tool, ToolCallingAgent
from smollm2 import AT_LEAST, TIMEOUT_S

model = OpenAIServerModel(
    MODEL,
    api_base=f"{URL}/v1",
    api_key=KEY,
    client_kwargs={"timeout": TIMEOUT_S},
    temperature=0,
    max_tokens=64,
    extra_body=AT_LEAST,
)
QUESTION = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "Is the sea calm today?"}])]


class SetMood(Tool):
    name = "set_mood"
    description = "Sets the mood."
    inputs = {"feeling": {"type": "string", "enum": ["happy", "sad"], "description": "How the sailor feels."}}
    output_type = "string"

    def forward(self, feeling: str) -> str:
        return "done"


def smolagents_chat_is_answered():
    reply = model.generate(QUESTION)
    assert reply.role == MessageRole.ASSISTANT, reply
    assert isinstance(reply.content, str) and reply.content, reply
    assert reply.token_usage.input_tokens > 0 and reply.token_usage.output_tokens > 0, reply


def smolagents_stream_has_the_text_of_the_chat():
    deltas = list(model.generate_stream(QUESTION))
    text = "".join(delta.content or "" for delta in deltas)
    assert text == model.generate(QUESTION).content, deltas
    assert sum(delta.token_usage.output_tokens for delta in deltas if delta.token_usage) > 0, deltas


def smolagents_tool_is_called():
    # The choice of a tool is `required` by default.
    reply = model.generate(QUESTION, tools_to_call_from=[SetMood()], parallel_tool_calls=False)
    (call,) = reply.tool_calls
    assert call.id and call.function.name == "set_mood", reply
    arguments = model.parse_tool_calls(reply).tool_calls[0].function.arguments
    assert arguments["feeling"] in ("happy", "sad"), arguments


def smolagents_agent_sends_the_results_of_its_steps_back():
    # The model may go on to call tools, so the agent ends at its limit of steps with an answer.
    agent = ToolCallingAgent(tools=[SetMood()], model=model, max_steps=2, verbosity_level=0)
    result = agent.run("Is the sea calm today?", return_full_result=True)
    assert result.output, result
    assert result.state in ("success", "max_steps_error"), result
    assert result.token_usage.output_tokens > 0, result
    assert all(step.tool_calls for step in agent.memory.steps[1:3]), agent.memory.steps


TESTS = [body for name, body in list(globals().items()) if name.startswith("smolagents_")]
