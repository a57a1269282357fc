"""Conversations as `transformers` renders them by the chat templates in llama.cpp's sources.

    python3 tests/templates/record.py FOLDER
    cargo run --release -p nsbridge-llama --features testing --example templates -- FOLDER

`cargo xtask templates` runs both. Each subfolder of FOLDER gets a template in a `tokenizer_config.json`, and
the requests in `cases.json`, each with the texts that transformers makes of it: one with an empty content of
messages that have calls alone, and one with null. A null text says that the template refuses the request.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

SDIST = ("llama-cpp-python==0.3.36 "
         "--hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
INSIDE = "vendor/llama.cpp/models/templates/"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, \"now\" & here",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "東京 or <other>"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2]}}}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "Time", "parameters": {"type": "object", "properties": {}}}}


def call(number, name, **arguments):
    return {"id": f"call{number:05}", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(number, name, content):
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": name, "content": content}


USER = {"role": "user", "content": " What is it like in 東京 & \"Paris\"? "}
SYSTEM = {"role": "system", "content": "You are brief."}
SUNNY = {"role": "assistant", "content": "It is sunny."}
THANKS = {"role": "user", "content": "Thanks"}
ONE_CALL = {"role": "assistant", "content": None,
            "tool_calls": [call(1, "get_weather", city="東京", unit="C", days=[1])]}
TWO_CALLS = {"role": "assistant", "content": None,
             "tool_calls": [call(1, "get_weather", city="Paris"), call(2, "clock")]}
REASONED = {"role": "assistant", "content": "It is sunny.", "reasoning_content": "They want the weather."}

REQUESTS = {
    "user": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [USER, SUNNY, THANKS]},
    "tools": {"messages": [USER], "tools": [WEATHER, CLOCK]},
    "system and tools": {"messages": [SYSTEM, USER], "tools": [WEATHER]},
    "call": {"messages": [USER, ONE_CALL, result(1, "get_weather", "21 °C")], "tools": [WEATHER, CLOCK]},
    "two calls": {"messages": [USER, TWO_CALLS, result(1, "get_weather", "{\"c\": 21}"), result(2, "clock", "noon"),
                               SUNNY, THANKS], "tools": [WEATHER, CLOCK]},
    "reasoning": {"messages": [USER, REASONED, THANKS]},
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "no turn": {"messages": [USER, SUNNY], "add_generation_prompt": False},
}


def templates(folder):
    """The templates by name, from a package of PyPI that has llama.cpp's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(SDIST + "\n")
    if not list(folder.glob("*.tar.gz")):
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                        "--no-build-isolation", "--require-hashes", "--disable-pip-version-check",
                        "-d", folder, "-r", wanted], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:
            if INSIDE in member.name and member.name.endswith(".jinja"):
                yield Path(member.name).stem, archive.extractfile(member).read().decode()


def shaped(message, content, as_text):
    """A message as transformers expects it: arguments are objects, where the template takes them."""
    message = dict(message)
    if message["content"] is None:
        message["content"] = content
    if "tool_calls" in message and not as_text:
        message["tool_calls"] = [
            {**each, "function": {**each["function"], "arguments": json.loads(each["function"]["arguments"])}}
            for each in message["tool_calls"]]
    return message


def rendered(template, request, content):
    """The text of a request; None if the template refuses it in both forms of arguments."""
    for as_text in (False, True):
        messages = [shaped(message, content, as_text) for message in request["messages"]]
        try:
            texts, _ = render_jinja_template(
                conversations=[messages], tools=request.get("tools"), chat_template=template,
                add_generation_prompt=request.get("add_generation_prompt", True),
                **SPECIAL, **request.get("chat_template_kwargs", {}))
            return texts[0]
        except Exception:  # Each error of a template is a refusal.
            continue
    return None


def main(folder):
    count = 0
    for name, template in templates(folder / "packages"):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "tokenizer.json").write_text("{}")
        (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **SPECIAL}))
        cases = [{"name": case, "request": request,
                  "texts": [rendered(template, request, content) for content in ("", None)]}
                 for case, request in REQUESTS.items()]
        (place / "cases.json").write_text(json.dumps(cases))
        count += 1
    if count < 50:
        sys.exit(f"only {count} templates were found")


main(Path(sys.argv[1]))
