"""LangChain's standard tests of chat models, against a gateway with the bundled model."""

import os

import report

HERE = os.path.dirname(os.path.abspath(__file__))

report.version("langchain-openai", "langchain-tests", "openai")
# One event loop for all tests, because the clients share their connections.
loop = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session"]
options = [word for option in loop for word in ("-o", option)]
report.pytest(["--rootdir", HERE, "-c", os.devnull, *options, os.path.join(HERE, "test_chat.py")])
