"""Random texts on which tokenizers tend to differ."""

import random
import unicodedata

WORDS = """the a of and bear Bear BEAR token Tokens tokenizer don't I'LL we've You're it's he'd I'm can'T
naïve café Ünïcödé straße ÉCOLE Ångström ﬁne ǅ iPhone camelCaseWord snake_case_word HTTPServer v1.2.3
привет Привет МИР ελληνικά ΣΊΣΥΦΟΣ مرحبا بالعالم שלום नमस्ते हिन्दी ภาษาไทย สวัสดี Việt_Nam தமிழ் ქართული
日本語 こんにちは カタカナ ｶﾀｶﾅ 東京都 クマが海辺に 你好 世界 中文分词 繁體字 한국어 안녕하세요 ㄅㄆㄇ""".split()
NUMBERS = ["1", "12", "123", "1234", "12345", "3.14159", "1,000,000", "2026-11-24", "0x1F", "٣٤٥", "１２３", "²³", "½",
           "Ⅷ", "①", "१२३", "1e-5", "007"]
SYMBOLS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + [
    "...", "!!!", "->", "=>", "!=", "</", "/>", "://", "''", "``", "——", "…", "“", "”", "‘s", "’s", "。", "、", "「", "」",
    "！", "？", "：", "～", "·", "€", "£", "©", "™", "→", "∑", "√", "▁", "▁▁", "�", "´", "¨", "<0x0A>", "<0x", "[PAD9]"]
SPACES = [" ", " ", " ", "  ", "   ", "     ", " " * 9, " " * 17, "\t", "\t\t", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\r\n",
          "\r", " \t \n", "\x0b", "\x0c", "\u00a0", "\u3000", "\u2028", "\u2029", "\u200a", "\u0085", "\n    ", "/\n"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧", "🇯🇵", "❤️", "🏴‍☠️", "☀", "🐻", "1️⃣", "©️"]
MARKS = ["e\u0301", "a\u0308", "n\u0303", "か\u3099", "\u1100\u1161", "o\u0302\u0301", "\u0301", "ş\u0307", "q\u0307\u0323",
         "q\u0323\u0307", "\u212b", "\u2126", "\ufa10", "क\u093c", "\u0344", "Z\u0351\u036b\u0343"]
ODD = ["\x00", "\x01", "\x7f", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u202e", "\ufdd0", "\uffff", "\U0010ffff", "\ue000",
       "\u061c", "\u180e"]
CODE = ["def f(x):\n    return x ** 2  # y\n", "for (int i = 0; i < n; ++i) {\n\t", "fn main() -> Result<()> {", "<div class=\"a\">",
        "SELECT * FROM t WHERE id=42;", "#include <vector>\n", "    if x == 10:\n        pass\n", "\\frac{1}{2}", "$HOME/.ssh",
        "https://example.com/a?b=c&d=%20", "{\"a\": [1, 2.5, null]}", "|---|---|\n", "```rust\n", "!important;", "\n\n\t\t}\n"]


def assigned(rng):
    """A random assigned character; most are letters."""
    while True:
        at = rng.choice((0x3000, 0x3000, 0x11000, 0x30000, 0xe0200))
        character = chr(rng.randrange(at))
        category = unicodedata.category(character)
        # Python's Unicode is older than that of the regular expressions: these were assigned long ago.
        if category not in ("Cn", "Cs") and unicodedata.ucd_3_2_0.category(character) == category:
            return character


def part(rng, added):
    kind = rng.randrange(100)
    if kind < 30:
        return rng.choice(WORDS)
    if kind < 52:
        return rng.choice(SPACES)
    if kind < 62:
        return rng.choice(SYMBOLS)
    if kind < 70:
        return rng.choice(NUMBERS)
    if kind < 74:
        return rng.choice(EMOJI)
    if kind < 79:
        return rng.choice(MARKS)
    if kind < 81:
        return rng.choice(ODD)
    if kind < 86:
        return rng.choice(CODE)
    if kind < 90:
        return "".join(assigned(rng) for _ in range(rng.randint(1, 4)))
    if kind < 93:
        return rng.choice("ab\n 1\tZé。") * rng.randint(2, 30)
    token = rng.choice(added)
    if kind < 98:
        return token
    # A part of an added token, or one in another case, is text.
    cut = rng.randrange(len(token) + 1)
    return rng.choice((token[:cut], token[cut:], token.upper(), token.swapcase()))


def texts(count, added, seed):
    """Texts of one to some dozens of parts, with the texts of added tokens in some."""
    rng = random.Random(seed)
    made, seen = [], set()
    while len(made) < count:
        text = "".join(part(rng, added) for _ in range(rng.choice((1, 2, 3, 4, 5, 8, 13))))
        if text and text not in seen:
            seen.add(text)
            made.append(text)
    return made
