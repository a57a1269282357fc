"""Small random model that takes images: `write_llava(FOLDER, FOLDER_WITH_A_TOKENIZER)`."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

SIDE, PATCH = 56, 14
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Template that takes contents as texts, in which vLLM writes the places of the images.
TEXT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def write_llava(folder: Path, tokenizer_folder: Path, template: str = TEMPLATE) -> Path:
    """Writes the model, its processor and its chat template."""
    cast(Any, torch).manual_seed(5)
    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(tokenizer_folder)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    token: int = tokenizer.convert_tokens_to_ids("<image>")
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
    )
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=64,
        initializer_factor=8.0,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=token)
    model: Any = LlavaForConditionalGeneration(config)
    model.save_pretrained(folder)
    _with_published_names(folder / "model.safetensors")
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    processor: Any = LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=template,
        num_additional_image_tokens=1,
    )
    processor.save_pretrained(folder)
    return folder


def _with_published_names(file: Path) -> None:
    """Names the tensors of the vision tower as published models do, and as vLLM reads them."""
    tensors: dict[str, Any] = cast(Any, load_file)(file)
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in tensors.items()}
    if not any("vision_tower.vision_model." in name for name in tensors):
        cast(Any, save_file)(named, file, metadata={"format": "pt"})


def vast(side: int) -> str:
    """Returns a small image file of `side` times `side` pixels, as a data URL."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n"
    for name, body in parts:
        file += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def stripes(color: tuple[int, int, int], width: int, form: str = "PNG") -> str:
    """Returns an image of stripes as a data URL."""
    image = Image.new("RGB", (90, 70), (255, 255, 255))
    for left in range(0, 90, 2 * width):
        image.paste(color, (left, 0, left + width, 70))
    file = io.BytesIO()
    image.save(file, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
