"""Conversion of a GGUF file to a folder of safetensors: `python convert.py FILE FOLDER`."""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file, folder):
    source, name = os.path.split(file)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # The model that was read would be saved as a quantized one.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)


main(*sys.argv[1:])
