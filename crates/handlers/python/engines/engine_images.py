"""Images of a chat, as their references stand in the messages of a request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nsbridge_handler import BadInput


@dataclass(frozen=True)
class ImagePart:
    """Image of a message."""

    place: str
    """Place of the message's content in the request."""
    index: int
    """Place of the part in the content."""
    url: str

    def data(self) -> bytes:
        """Returns the file that the image is. Raises BadInput for anything but a data URL in base64."""
        head, comma, body = self.url.partition(",")
        if head.startswith("data:") and head.endswith(";base64") and comma:
            try:
                return base64.b64decode(body, validate=True)
            except binascii.Error:
                pass
        raise self.refused("it is no data URL in base64")

    def refused(self, why: str) -> BadInput:
        """Creates the error of an image that cannot be read."""
        return BadInput(f"`image_url` in `{self.place}[{self.index}]` cannot be read: {why}")


def image_parts(input: Mapping[str, Any], most: int) -> list[ImagePart]:
    """Returns the images of a request. Raises BadInput for more than `most`, the model's limit."""
    parts = list(_parts(input.get("messages") or ()))
    if parts and most == 0:
        place = parts[0].place
        raise BadInput(f"`image_url` in `{place}` cannot be read: the model takes no images")
    if len(parts) > most:
        raise BadInput(f"`messages` have {len(parts)} images, and this model takes at most {most}")
    return parts


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[ImagePart]:
    for place, message in enumerate(messages):
        content: Any = message.get("content")
        parts = cast("list[dict[str, Any]]", content if isinstance(content, list) else [])
        for index, part in enumerate(parts):
            if part["type"] == "image_url":
                yield ImagePart(f"messages[{place}].content", index, part["image_url"]["url"])
