"""Chats with images, as vLLM's multi-modal inputs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import vllm.envs as envs
from nsbridge_handler import BadInput
from PIL import Image
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.multimodal.media.image import ImageMediaIO
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import resolve_chat_template, resolve_chat_template_content_format

from engine_images import ImagePart

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.renderers import BaseRenderer

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# Maximum number of pixels of all images of a request. A small file can have any number of them.
MOST_PIXELS = 64 << 20
_MOST_WHY = 300


class Images:
    """Reader of the images that a model takes."""

    def __init__(self, renderer: BaseRenderer[Any], model: ModelConfig) -> None:
        self._renderer, self._model = renderer, model
        tokenizer: Any = renderer.get_tokenizer()
        # As vLLM does it: the template of the model's processor comes first.
        template = resolve_chat_template(tokenizer, None, None, model_config=model)
        tokenizer.chat_template = template or tokenizer.chat_template
        self._format = resolve_chat_template_content_format(None, None, "auto", tokenizer, model_config=model)

    def chat(self, parts: Sequence[ImagePart], scope: str) -> Chat:
        """Decodes the images of a request. Raises BadInput with the place of one that cannot be decoded."""
        pixels, images = 0, list[tuple[Image.Image, str]]()
        for part in parts:
            data = part.data()
            pixels += _pixels(part, data)
            if pixels > _most_pixels():
                raise part.refused(f"the request's images have more than {_most_pixels()} pixels")
            images.append((_decoded(part, data), _name(scope, data)))
        return Chat(self._model, self._format, images)

    async def input(self, tokens: Sequence[int], chat: Chat) -> Mapping[str, Any]:
        """Returns the input that the tokens of a rendered chat and its images make."""
        prompt = TokensPrompt(
            prompt_token_ids=list(tokens), multi_modal_data=chat.data, multi_modal_uuids=chat.names
        )
        try:
            # Without vLLM's cache of what its engine has: a request that is stopped here never comes there.
            made: Any = await self._renderer.process_for_engine_async(prompt, 0.0, skip_mm_cache=True)
        except (ValueError, RuntimeError, VLLMClientError) as error:
            why = " ".join(str(error).split())[:_MOST_WHY]
            raise BadInput(f"the images in `messages` do not fit the model: {why}") from None
        del made["arrival_time"]
        found: Mapping[str, Any] = made
        return found


@dataclass
class Chat:
    """Images of a request on their way into its chat."""

    model: ModelConfig
    format: Any
    images: Sequence[tuple[Image.Image, str]]
    data: Any = None
    names: Any = None

    def place(self, messages: list[dict[str, Any]]) -> None:
        """Gives the contents of messages the form that the chat template takes, with the images in it."""
        images = iter(self.images)
        shown: Any = [
            {"role": message["role"], "content": _parts(message["content"], images)} for message in messages
        ]
        placed, self.data, self.names = parse_chat_messages(shown, self.model, self.format)
        for message, own in zip(messages, cast("list[dict[str, Any]]", placed), strict=True):
            if message["content"] is not None:
                message["content"] = own["content"]


def most_images(renderer: BaseRenderer[Any]) -> int:
    """Returns the maximum number of images of a request, 0 for a model of texts."""
    processor: Any = renderer.mm_processor
    return 0 if processor is None else processor.info.allowed_mm_limits.get("image", 0)


def _parts(content: Any, images: Iterator[tuple[Image.Image, str]]) -> Any:
    if not isinstance(content, list):
        return content
    parts = cast("list[dict[str, str]]", content)
    return [part if part["type"] == "text" else _image(*next(images)) for part in parts]


def _image(image: Image.Image, name: str) -> dict[str, Any]:
    return {"type": "image_pil", "image_pil": image, "uuid": name}


def _pixels(part: ImagePart, data: bytes) -> int:
    """Returns the number of pixels of an image, none of which is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            pixels: int = image.width * image.height
            return pixels
    except Image.DecompressionBombError:
        return MOST_PIXELS + 1
    except Exception:
        raise part.refused(f"it is no image of the formats {', '.join(FORMATS)}") from None


def _most_pixels() -> int:
    return min(envs.VLLM_MAX_IMAGE_PIXELS or MOST_PIXELS, MOST_PIXELS)


def _decoded(part: ImagePart, data: bytes) -> Image.Image:
    try:
        image: Image.Image = ImageMediaIO().load_bytes(data).media
    except Exception:
        raise part.refused("its data is damaged") from None
    return image


def _name(scope: str, data: bytes) -> str:
    """Returns the name of an image in vLLM's caches, which scopes do not share."""
    return hashlib.sha256(b"%d %s " % (len(scope), scope.encode()) + data).hexdigest()
