"""OpenAI's and Anthropic's clients and agents on them: their helpers, histories and schemas.

The model is SmolLM2-135M-Instruct, which chats but does not understand much. The tests check the form
of its replies, and schemas and required calls give them a form.
"""

import anthropic_tests
import openai_agents_tests
import openai_tests
import pydantic_ai_tests
import report

report.version("openai", "anthropic", "pydantic-ai-slim", "openai-agents")
for module in (openai_tests, anthropic_tests, pydantic_ai_tests, openai_agents_tests):
    for test in module.TESTS:
        report.test(test)
