"""Differences of the gateway's replies from those of vLLM's server that are right.

Each is a class whose text is the reason. `is_in` tells if a pair of replies may have the difference.
`changes` are fields with which vLLM's server is asked again, and `change` makes of its reply what the gateway
must say, exactly.
"""

import functools
import json
import os

from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = "bytes:"
ID = "token_id:"
UNKNOWN = "\ufffd"
# Number that stands for minus infinity.
NEVER = -9999.0


class LikeliestTokens:
    """`top_logprobs` of a chat are the likeliest tokens, as OpenAI defines them. vLLM's list begins with the
    chosen token, likely or not, and ends one earlier then."""

    @staticmethod
    def is_in(fields, expected, found):
        lists = [place["top_logprobs"] for place in _places(expected)]
        return any(_sorted(each) != each for each in lists)

    @staticmethod
    def changes(fields):
        return {"top_logprobs": fields["top_logprobs"] + 1}

    @staticmethod
    def change(fields, expected, found):
        for place in _places(expected):
            place["top_logprobs"] = _sorted(place["top_logprobs"])[: fields["top_logprobs"]]


class PartsOfCharacters:
    """A token that is a part of a character is written as its bytes, as by OpenAI. vLLM writes no text for
    it, and the whole character for its last token. A text offset counts the characters before a token.

    A worker in front of a server has no bytes of the tokens: it writes each as the server decodes it alone, and
    a text offset counts the characters of the tokens before it that make whole characters together. Of likely
    tokens that are written alike, the list has the chosen one, or else the likeliest."""

    @staticmethod
    def is_in(fields, expected, found):
        names = [token for told in _lists(found) for token in told["tokens"]]
        prompts = [choice["prompt_logprobs"] for choice in found["choices"]]
        return BYTES in json.dumps(found) or UNKNOWN in json.dumps([names, prompts], ensure_ascii=False)

    @staticmethod
    def changes(fields):
        return {"return_tokens_as_token_ids": True}

    @staticmethod
    def change(fields, expected, found):
        has_bytes = BYTES in json.dumps(found)
        name = _name if has_bytes else _decoded
        for place in _places(expected):
            for each in [place, *place["top_logprobs"]]:
                spelled = _bytes(each["token"])
                each["token"], each["bytes"] = name(spelled), list(spelled)
        for told in _lists(expected):
            spelled = [_bytes(token) for token in told["tokens"]]
            told["tokens"] = [name(each) for each in spelled]
            tops = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"])
            told["top_logprobs"] = [top and _named(name, top) | {token: value} for token, value, top in tops]
            told["text_offset"] = [len(_before(spelled[:place], has_bytes)) for place in range(len(spelled))]
        for choice in expected["choices"]:
            for place in choice["prompt_logprobs"] or ():
                for token, entry in (place or {}).items():
                    entry["decoded_token"] = name(_bytes(ID + token))


class ImpossibleTokens:
    """A token that a format forbids is in no list of likely tokens. vLLM fills its list up with such
    tokens."""

    @staticmethod
    def is_in(fields, expected, found):
        return str(NEVER) in json.dumps([choice["logprobs"] for choice in expected["choices"]])

    @staticmethod
    def changes(fields):
        return {}

    @staticmethod
    def change(fields, expected, found):
        for place in _places(expected):
            place["top_logprobs"] = [each for each in place["top_logprobs"] if each["logprob"] > NEVER]
        for told in _lists(expected):
            told["top_logprobs"] = [top and {token: value for token, value in top.items() if value > NEVER}
                                    for top in told["top_logprobs"]]


class PromptOfAnEcho:
    """A choice has `prompt_logprobs` where they were asked for. vLLM adds them to an echo, whose `logprobs`
    have the same numbers."""

    @staticmethod
    def is_in(fields, expected, found):
        given = any(choice["prompt_logprobs"] for choice in expected["choices"])
        return given and "prompt_logprobs" not in fields

    @staticmethod
    def changes(fields):
        return {}

    @staticmethod
    def change(fields, expected, found):
        for choice in expected["choices"]:
            choice["prompt_logprobs"] = None


class IncompleteEnd:
    """A character that is not complete at the end of a reply is U+FFFD. vLLM leaves it out, and a space that
    is a part of its first token."""

    @staticmethod
    def is_in(fields, expected, found):
        pairs = zip(expected["choices"], found["choices"])
        return any(_is_cut(own["text"], other["text"]) for own, other in pairs)

    @staticmethod
    def changes(fields):
        return {}

    @staticmethod
    def change(fields, expected, found):
        for own, other in zip(expected["choices"], found["choices"]):
            if _is_cut(own["text"], other["text"]):
                own["text"] = other["text"]


class PromptAlone:
    """A reply with `max_tokens` 0 has no token. vLLM makes one, counts it and leaves it out."""

    @staticmethod
    def is_in(fields, expected, found):
        return fields.get("max_tokens") == 0

    @staticmethod
    def changes(fields):
        return {}

    @staticmethod
    def change(fields, expected, found):
        for name in ("completion_tokens", "total_tokens"):
            expected["usage"][name] -= 1


ALL = (LikeliestTokens, PartsOfCharacters, ImpossibleTokens, PromptOfAnEcho, IncompleteEnd, PromptAlone)


def of(fields, expected, found):
    """Returns the differences that a pair of replies may have."""
    return [difference for difference in ALL if difference.is_in(fields, expected, found)]


def _is_cut(own, other):
    return other in (own + UNKNOWN, own + " " + UNKNOWN)


def _choices(reply):
    return [choice["logprobs"] for choice in reply["choices"] if choice["logprobs"]]


def _places(reply):
    """Returns the places of the tokens of chats."""
    return [place for told in _choices(reply) for place in told.get("content", ())]


def _lists(reply):
    """Returns the lists of completions."""
    return [told for told in _choices(reply) if "tokens" in told]


def _sorted(top):
    return sorted(top, key=lambda each: -each["logprob"])


@functools.cache
def _vocabulary():
    with open(os.path.join(os.environ["OUTSIDE_MODEL_FOLDER"], "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    values = {character: byte for byte, character in bytes_to_unicode().items()}
    words = {token: word for word, token in tokenizer["model"]["vocab"].items() if values.keys() >= {*word}}
    added = {each["id"]: each["content"].encode() for each in tokenizer["added_tokens"]}
    return {token: bytes(values[each] for each in word) for token, word in words.items()} | added


def _bytes(name):
    return _vocabulary()[int(name.removeprefix(ID))]


def _name(spelled):
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return BYTES + "".join(f"\\x{byte:02x}" for byte in spelled)


def _decoded(spelled):
    return spelled.decode(errors="replace")


def _named(name, top):
    """Returns a list of likely tokens by their names; of equal names, the likeliest token counts."""
    return {name(_bytes(token)): top[token] for token in sorted(top, key=top.get)}


def _before(spelled, has_bytes):
    """Returns the text of the tokens before one. Without their bytes, it ends where a character ends."""
    joined = b"".join(spelled)
    if not has_bytes and UNKNOWN in _decoded(joined):
        return _before(spelled[:-1], has_bytes)
    return joined.decode(errors="ignore")
