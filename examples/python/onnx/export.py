"""Writes the model of examples/classifier as ONNX: export.py MODEL-FOLDER NEW-FOLDER"""

import json
import shutil
import sys
from pathlib import Path

import numpy
from onnx import TensorProto, checker, helper, numpy_helper, save


def tensors(path):
    """Returns the f32 tensors of a safetensors file by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, numpy.frombuffer(body[begin:end], "<f4").reshape(entry["shape"])


def network(weights):
    """Returns `softmax(relu(x W1 + b1) W2 + b2)` of any number of rows."""
    buckets, labels = len(weights["first.weight"]), len(weights["second.bias"])
    nodes = [
        helper.make_node("Gemm", ["features", "first.weight", "first.bias"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "second.weight", "second.bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    row = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    inputs, outputs = [row("features", buckets)], [row("scores", labels)]
    graph = helper.make_graph(nodes, "six-languages", inputs, outputs, constants)
    # Versions that older runtimes read too.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    model = network(dict(tensors(source / "model.safetensors")))
    checker.check_model(model)
    target.mkdir(exist_ok=True)
    save(model, target / "model.onnx")
    shutil.copy(source / "config.json", target)
