"""The handler kit: in the runner of a worker, in a plain interpreter, and the two against each other."""

from __future__ import annotations

import importlib.util
import inspect
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest
from pathlib import Path
from typing import Any

import nsbridge_handler
from nsbridge_handler import testing
from runner import CRATE, Runner, Socket, files

PYTHON = Path(__file__).resolve().parents[1]
MODELS = PYTHON / "tests" / "models"


def module(name: str) -> types.ModuleType:
    """Imports a model of `tests/models`, as a test of its author does."""
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    assert spec and spec.loader
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def run(*command: str | Path) -> str:
    """Runs Python with the sources of the package, and returns its stdout."""
    command = (sys.executable, *command)
    done = subprocess.run(
        command, env={"PYTHONPATH": "src"}, cwd=PYTHON, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class Answers(unittest.TestCase):
    """Answers of the same models in the runner and in `nsbridge_handler.testing`."""

    def same(
        self, file: str, name: str | None, model: Any, input: Any, plain: Any = None, **more: Any
    ) -> testing.Answer:
        """Compares the answers, and returns that of this process. `plain` is the input as JSON."""
        answer = testing.answer(model, input, **more)
        with Runner(MODELS / f"{file}.py", name) as runner:
            told = runner.answer(input if plain is None else plain, **more)
        end = {"reason": answer.reason, **({"usage": answer.usage} if answer.usage else {})}
        expected = {"pieces": answer.pieces, "at_most": answer.most, "end": end}
        self.assertEqual(told, expected)
        return answer

    def test_a_generator_and_its_resumed_reply(self):
        generator = module("generator")
        model = generator.Words()
        model.load({}, {})
        pieces = [{"token": token, "text": f"a{7 + token}!"} for token in range(3)]
        for resumed in ([], pieces[:2]):
            answer = self.same(
                "generator",
                "Words",
                model,
                generator.Prompt("a"),
                {"prompt": "a"},
                seed=7,
                resumed=resumed,
            )
            self.assertEqual((answer.pieces, answer.reason, answer.most), (pieces, "length", 3))

    def test_a_function_that_emits_in_a_subclass_of_the_protocol(self):
        model = module("function").Spelling()
        answer = self.same("function", "Spelling", model, "bear", resumed=["b"])
        self.assertEqual((answer.pieces, answer.usage["cached_tokens"]), (list("bear"), 2))

    def test_a_module_whose_function_takes_the_input_alone(self):
        answer = self.same("plain", None, module("plain"), {"a": 1})
        self.assertEqual(answer.pieces, [{"a": 2}])

    def test_asynchronous_models(self):
        coroutine = module("coroutine")
        count = coroutine.Count()
        count.step = 1
        self.assertEqual(
            self.same("coroutine", "Count", count, 4, resumed=[0]).pieces, [0, 1, 2, 3]
        )
        self.assertEqual(self.same("coroutine", "Emitting", coroutine.Emitting(), 4).pieces, [4, 5])

    def test_batches(self):
        batch = module("batch")
        self.assertEqual(self.same("batch", "Lengths", batch.Lengths(), "bear").pieces, [4])
        self.assertEqual(
            self.same("batch", "Lengths", batch.Lengths(), "x", resumed=[9]).pieces, [9]
        )
        drawn = self.same("batch", "Draws", batch.Draws(), "bear", seed=3)
        self.assertEqual(drawn.pieces, [["bear", 3]])

    def test_an_input_that_a_model_refuses(self):
        with self.assertRaisesRegex(nsbridge_handler.BadInput, "the text is empty"):
            testing.answer(module("batch").Lengths(), "")
        with Runner(MODELS / "batch.py", "Lengths") as runner:
            told = runner.answer("")["error"]
        self.assertEqual(told, {"kind": "bad_input", "why": "the text is empty"})

    def test_uses_that_the_runner_refuses(self):
        class Late:
            def handle(self, input: object, job: nsbridge_handler.Job) -> None:
                job.emit(1)
                job.resumed()

        class Odd:
            def handle(self, input: object) -> object:
                return {1, 2}

        with self.assertRaisesRegex(RuntimeError, "before the first piece"):
            testing.answer(Late(), None)
        with self.assertRaisesRegex(TypeError, "not JSON"):
            testing.answer(Odd(), None)


class InTheRunner(unittest.TestCase):
    def model(self, text: str) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "model.py"
        path.write_text(textwrap.dedent(text))
        return path

    def test_an_import_takes_the_runners_own_names_though_the_package_is_installed(self):
        path = self.model(
            f"""
            import sys
            sys.path.insert(0, {str(PYTHON / "src")!r})
            import nsbridge_handler
            from nsbridge_handler import BadInput, Job, Retry, TextPiece

            def handle(input, job):
                if input == "refused":
                    raise BadInput("no")
                if input == "retried":
                    raise Retry("later")
                yield hasattr(nsbridge_handler, "__file__")
            """
        )
        with Runner(path) as runner:
            self.assertEqual(runner.answer(None)["pieces"], [False])
            self.assertEqual(runner.answer("refused")["error"], {"kind": "bad_input", "why": "no"})
            self.assertEqual(runner.answer("retried")["error"]["kind"], "retry")

    def test_the_names_are_there_without_an_installation(self):
        names = ", ".join(nsbridge_handler.__all__)
        path = self.model(
            f"from nsbridge_handler import {names}\n\ndef handle(input):\n    return 1\n"
        )
        with Runner(path) as runner:
            self.assertEqual(runner.answer(None)["pieces"], [1])

    def test_a_hint_of_the_kit_is_a_check_of_the_input(self):
        path = self.model(
            """
            from nsbridge_handler import TextPiece

            def handle(input: TextPiece):
                return input["text"]
            """
        )
        with Runner(path) as runner:
            self.assertIn("top_logprobs", runner.schema["$defs"]["TextPiece"]["properties"])
            self.assertEqual(runner.answer({"token": 1, "text": "a"})["pieces"], ["a"])
            self.assertEqual(runner.answer({"token": 1})["error"]["why"], "`input.text` is missing")

    def test_a_subclass_without_handle_is_told(self):
        path = self.model("from nsbridge_handler import Model\n\nclass Mine(Model):\n    pass\n")
        with self.assertRaisesRegex(RuntimeError, "Can't instantiate abstract class Mine"):
            Runner(path)

    def test_an_engine_gets_the_names_of_its_adapters_and_a_model_does_not(self):
        path = self.model(
            """
            class Model:
                def load(self, *given):
                    self.given = [str(each) for each in given]
                def health(self):
                    return None
                def measures(self):
                    return {}
                def handle(self, input):
                    return self.given
            """
        )
        with Runner(path, engine=True, adapters=["sql"]) as runner:
            self.assertEqual(runner.answer(None)["pieces"], [["{}", "{}", "['sql']"]])
        with Runner(path) as runner:
            self.assertEqual(runner.answer(None)["pieces"], [["{}", "{}"]])

    def test_the_sentence_of_an_engine_that_does_not_start_stands_alone(self):
        path = self.model(
            """
            from nsbridge_handler import Fatal

            def load(models):
                raise Fatal("the device is gone")

            def handle(input):
                pass
            """
        )
        with self.assertRaisesRegex(RuntimeError, "^the device is gone$"):
            Runner(path, engine=True, adapters=[])
        with self.assertRaisesRegex(RuntimeError, r"^Fatal: the device is gone \(model.py:5\)$"):
            Runner(path)

    def test_the_jobs_of_the_runner_have_the_signatures_of_the_kit(self):
        made = types.ModuleType("nsbridge_handler")
        for path in files()[1:3]:
            exec(path.read_text(), made.__dict__)
        pairs = [(made._ThreadJob, "Job"), (made._TaskJob, "AsyncJob")]
        for job, name in pairs:
            kit = getattr(nsbridge_handler, name)
            for method in ("check", "at_most", "finish", "emit", "resumed"):
                ours, theirs = (getattr(kind, method) for kind in (kit, job))
                self.assertEqual(
                    inspect.iscoroutinefunction(ours), inspect.iscoroutinefunction(theirs)
                )
                shapes = [
                    [
                        (part.name, part.default)
                        for part in inspect.signature(one).parameters.values()
                    ]
                    for one in (ours, theirs)
                ]
                self.assertEqual(*shapes)
            head = dict.fromkeys(
                ["id", "seed", "attempt", "tenant", "scope", "submitted_at", "deadline"]
            )
            public = {key for key in vars(job(None, head)) if not key.startswith("_")}
            self.assertEqual(public, set(nsbridge_handler._Request.__annotations__))

    def test_an_older_python_is_refused_in_a_sentence(self):
        boot = files()[0].read_text().replace("(3, 9)", "(9, 9)")
        ours, theirs = socket.socketpair()
        with subprocess.Popen([sys.executable, "-c", boot], stdin=theirs) as process:
            theirs.close()
            control = Socket(ours)
            control.send(b"import a_module_that_this_python_lacks")
            control.send_json({})
            said = control.read()
            control.close()
        here = ".".join(map(str, sys.version_info[:2]))
        self.assertEqual(said, {"failed": f"Python {here} is older than 3.9"})
        self.assertEqual(process.returncode, 1)

    def test_the_reasons_of_an_end_are_those_of_the_runner(self):
        told = re.search(r"reason not in \((.*?)\)", (CRATE / "runner" / "job.py").read_text())
        assert told
        self.assertEqual(
            [part.strip('" ') for part in told[1].split(",")],
            list(nsbridge_handler.FinishReason.__args__),
        )


class InAPlainInterpreter(unittest.TestCase):
    def test_every_name_is_exported_and_a_model_runs(self):
        program = (
            "from nsbridge_handler import testing\n"
            "import nsbridge_handler as kit\n"
            "assert all(hasattr(kit, name) for name in kit.__all__)\n"
            "class Hello:\n"
            "    def handle(self, input, job):\n"
            "        yield 'hello ' + input\n"
            "print(testing.answer(Hello(), 'bear').pieces)\n"
        )
        self.assertEqual(run("-c", program), "['hello bear']\n")

    def test_the_file_is_that_of_the_runner(self):
        self.assertEqual(
            Path(nsbridge_handler.__file__).read_text(), (CRATE / "runner" / "api.py").read_text()
        )


if __name__ == "__main__":
    unittest.main()
