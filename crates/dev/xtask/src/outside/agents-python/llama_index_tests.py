"""LlamaIndex's client of APIs like OpenAI's."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from report import KEY, MODEL, URL
from smollm2 import AT_LEAST, TIMEOUT_S, Feeling, Mood

model = OpenAILike(
    model=MODEL,
    api_base=f"{URL}/v1",
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=8192,
    temperature=0,
    max_tokens=64,
    timeout=TIMEOUT_S,
    max_retries=0,
    additional_kwargs={"extra_body": AT_LEAST},
)
QUESTION = ChatMessage(role="user", content="Is the sea calm today?")


def set_mood(feeling: Feeling) -> str:
    """Sets the mood."""
    return "done"


def llama_index_chat_is_sent_back():
    reply = model.chat([QUESTION])
    assert reply.message.role == "assistant" and reply.message.content, reply
    again = model.chat([QUESTION, reply.message, ChatMessage(role="user", content="And tomorrow?")])
    assert again.message.content, again


def llama_index_stream_has_the_text_of_the_chat():
    parts = list(model.stream_chat([QUESTION]))
    assert len(parts) > 1, parts
    text = "".join(part.delta or "" for part in parts)
    assert text == parts[-1].message.content == model.chat([QUESTION]).message.content, text


def llama_index_call_is_sent_back_with_its_result():
    tool = FunctionTool.from_defaults(set_mood)
    reply = model.chat_with_tools([tool], chat_history=[QUESTION], tool_required=True)
    (call,) = model.get_tool_calls_from_response(reply)
    assert call.tool_id and call.tool_name == "set_mood", call
    Feeling(call.tool_kwargs["feeling"])
    result = ChatMessage(role="tool", content="done", additional_kwargs={"tool_call_id": call.tool_id})
    again = model.chat([QUESTION, reply.message, result])
    assert again.message.content, again


def llama_index_streamed_call_has_its_arguments():
    tool = FunctionTool.from_defaults(set_mood)
    *_, last = model.stream_chat_with_tools([tool], chat_history=[QUESTION], tool_required=True)
    (call,) = model.get_tool_calls_from_response(last)
    assert call.tool_name == "set_mood", call
    Feeling(call.tool_kwargs["feeling"])


def llama_index_output_is_structured():
    reply = model.as_structured_llm(Mood).chat([QUESTION])
    assert isinstance(reply.raw, Mood), reply


def llama_index_text_is_completed():
    assert model.complete("The sea").text


TESTS = [body for name, body in list(globals().items()) if name.startswith("llama_index_")]
