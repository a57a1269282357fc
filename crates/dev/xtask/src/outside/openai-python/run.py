"""The tests of OpenAI's Python client, from its sources, against a gateway."""

import os

import report

SDIST = "openai==3.54.0 --hash=sha256:2e393e63f8a38be6452806f9ef0b6534fecd6d41ab3b2165180dfce3599249cd"
# Resources of which the gateway serves a part.
FILES = [
    "chat/test_completions.py", "test_completions.py", "test_models.py", "test_responses.py",
    "responses/test_input_items.py", "responses/test_input_tokens.py", "test_embeddings.py",
    "test_files.py", "test_batches.py",
]

folder = report.sdist(SDIST, "sdist")
report.version("openai")
environment = {**os.environ, "TEST_API_BASE_URL": f"{report.URL}/v1"}
# The sources run their tests in several processes, whose reports would be mixed.
report.pytest(["-o", "addopts=", *[f"tests/api_resources/{file}" for file in FILES]], cwd=folder, env=environment)
