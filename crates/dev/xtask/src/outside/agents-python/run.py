"""Clients and agents on an earlier client of OpenAI: their helpers, histories and schemas.

The model is SmolLM2-135M-Instruct, which chats but does not understand much. The tests check the form
of its replies, and schemas and required calls give them a form.
"""

import os

# litellm would fetch a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import instructor_tests
import litellm_tests
import llama_index_tests
import report
import smolagents_tests

report.version("litellm", "instructor", "smolagents", "llama-index-llms-openai-like", "openai")
for module in (litellm_tests, instructor_tests, smolagents_tests, llama_index_tests):
    for test in module.TESTS:
        report.test(test)
