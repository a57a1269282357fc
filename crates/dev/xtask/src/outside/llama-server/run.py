"""The tests of llama.cpp's server, from the sources of llama-cpp-python, against a gateway.

llama.cpp starts a server with other flags for each test. Here all of them find one gateway.
"""

import os
from urllib.parse import urlsplit

import report

SDIST = ("llama-cpp-python==0.3.36 "
         "--hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
# The interfaces that the gateway serves too.
FILES = ["basic", "chat_completion", "completion", "compat_anthropic", "compat_oai_responses"]

folder = os.path.join(report.sdist(SDIST, "sdist"), "vendor/llama.cpp/tools/server/tests")
report.write({"version": {"name": "llama-cpp-python", "version": SDIST.split()[0].split("==")[1]}})
environment = {**os.environ, "DEBUG_EXTERNAL": "1", "PORT": str(urlsplit(report.URL).port)}
report.pytest([f"unit/test_{file}.py" for file in FILES], cwd=folder, env=environment)
