"""Writes what the adapter of SGLang uses of SGLang's Python interface to `sglang_api.json`.

Reads the sources by their syntax, so that neither SGLang nor a GPU is needed:

    python record_sglang.py FOLDER_WITH_THE_PACKAGE VERSION
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

FILE = Path(__file__).with_name("sglang_api.json")
ENGINE = ("__init__", "async_generate", "get_all_child_pids", "shutdown")
MANAGER = ("abort_request",)
# Functions of the tokenizer manager that fill `meta_info`.
META = (
    "_handle_batch_output",
    "_handle_abort_req",
    "add_logprob_to_meta_info",
    "_calculate_spec_decoding_metrics",
)

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def classes(module: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}


def functions(of: ast.ClassDef) -> dict[str, Function]:
    return {node.name: node for node in of.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def literal(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Returns the value of an expression, or its source between angle brackets."""
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left, constants), literal(node.right, constants)
        if isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return literal(node.left, constants) * literal(node.right, constants)
    if ast.unparse(node) in ("msgspec.field(default_factory=list)", "field(default_factory=list)"):
        return []
    try:
        return ast.literal_eval(node)
    except ValueError:
        return f"<{ast.unparse(node)}>"


def signature(function: Function) -> dict[str, Any]:
    """Returns the names of the parameters, without the first one."""
    given = function.args
    names = [argument.arg for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
    required = len(given.args) - len(given.defaults)
    return {
        "async": isinstance(function, ast.AsyncFunctionDef),
        "parameters": names[1:],
        "required": [argument.arg for argument in given.args[1:required]],
        "any": given.kwarg is not None,
    }


def fields(of: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in of.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def option(name: str, node: ast.AnnAssign, constants: dict[str, Any]) -> dict[str, Any]:
    """Returns a field of ServerArgs as its parser has it."""
    made: dict[str, Any] = {}
    if node.value is not None:
        made["default"] = literal(node.value, constants)
    hint = node.annotation
    if not (isinstance(hint, ast.Subscript) and ast.unparse(hint.value) == "A"):
        return {"type": ast.unparse(hint), **made, "flags": []}
    parts = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
    known = {
        keyword.arg: literal(keyword.value, constants)
        for part in parts[1:]
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"
        for keyword in part.keywords
        if keyword.arg
    }
    flag = known.get("cli_name") or "--" + name.replace("_", "-")
    flags = [] if known.get("no_cli") else [flag, *known.get("aliases", ())]
    kept = {key: known[key] for key in ("choices", "nargs", "type_parser", "action") if key in known}
    return {"type": ast.unparse(parts[0]), **made, "flags": flags, **kept}


def by_hand(server: ast.Module) -> dict[str, dict[str, Any]]:
    """Returns the flags that ServerArgs registers itself."""
    made: dict[str, dict[str, Any]] = {}
    for node in ast.walk(functions(classes(server)["ServerArgs"])["add_cli_args"]):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
            flag = ast.literal_eval(node.args[0])
            known = {keyword.arg: literal(keyword.value, {}) for keyword in node.keywords}
            made[flag] = {key: known[key] for key in ("action", "dest", "nargs") if key in known}
    return made


def constants_of(srt: Path) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for file in ("arg_groups/choices.py", "utils/common.py"):
        for node in parsed(srt / file).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = literal(node.value, made)
                if isinstance(value, (list, str, int)):
                    made[node.targets[0].id] = value
    return made


def keys_of_meta(manager: ast.ClassDef) -> list[str]:
    """Returns the keys that are set in `meta_info`."""
    keys = set[str]()
    for name in META:
        for node in ast.walk(functions(manager)[name]):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "meta_info":
                keys.add(str(literal(node.slice, {})))
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "meta_info":
                value = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "meta_info.update":
                value = node.args[0]
            if isinstance(value, ast.Dict):
                keys.update(str(literal(key, {})) for key in value.keys if key is not None)
    return sorted(key for key in keys if not key.startswith("<"))


def attributes(of: ast.ClassDef) -> list[str]:
    """Returns the names that are assigned to an object of a class, and its methods."""
    names = set(functions(of))
    for node in ast.walk(of):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return sorted(names)


def reasons(batch: ast.Module) -> dict[str, dict[str, Any]]:
    """Returns the fields of the reasons of an end."""
    made: dict[str, dict[str, Any]] = {}
    for name, of in classes(batch).items():
        if name.startswith(("FINISH_", "FINISHED_")):
            [ends] = [node for node in ast.walk(functions(of)["to_json"]) if isinstance(node, ast.Dict)]
            made[name] = {
                str(literal(key, {})): literal(value, {}) for key, value in zip(ends.keys, ends.values) if key
            }
    return made


def record(package: Path, version: str) -> dict[str, Any]:
    srt = package / "srt"
    constants = constants_of(srt)
    manager = classes(parsed(srt / "managers/tokenizer_manager.py"))["TokenizerManager"]
    engine = functions(classes(parsed(srt / "entrypoints/engine.py"))["Engine"])
    options: dict[str, Any] = {}
    for file in sorted((srt / "arg_groups/fields").glob("[a-z]*.py")):
        for of in classes(parsed(file)).values():
            for name, node in fields(of):
                options[name] = option(name, node, constants)
    sampling = classes(parsed(srt / "sampling/sampling_params.py"))["SamplingParams"]
    loads = classes(parsed(srt / "managers/load_snapshot.py"))["LoadSnapshot"]
    model = classes(parsed(srt / "configs/model_config.py"))["ModelConfig"]
    return {
        "version": version,
        "engine": {name: signature(engine[name]) for name in ENGINE},
        "manager": {name: signature(functions(manager)[name]) for name in MANAGER},
        "manager_attributes": attributes(manager),
        "model_config_attributes": attributes(model),
        "server_args": options,
        "server_args_flags": by_hand(parsed(srt / "server_args.py")),
        "sampling_params": [name for name, _ in fields(sampling)],
        "meta_info": keys_of_meta(manager),
        "reasons": reasons(parsed(srt / "managers/schedule_batch.py")),
        "load_snapshot": [name for name, _ in fields(loads)],
    }


if __name__ == "__main__":
    made = record(Path(sys.argv[1]), sys.argv[2])
    options = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in made["server_args"].items())
    own = {"server_args": "{\n%s\n }" % ",\n".join(options)}
    entries = (f" {json.dumps(key)}: {own.get(key) or json.dumps(value)}" for key, value in made.items())
    FILE.write_text("{\n%s\n}\n" % ",\n".join(entries))
