#!/usr/bin/env python3
"""Records a command in a terminal of 90 x 24 as an animated SVG. Needs nothing but Python.

    docs/pictures/record.py --show 'nsbridge demo' --slower 20 docs/pictures/demo.svg -- target/release/nsbridge demo

The text is the command's own, at the times at which the terminal got it. Those after the first text are `--slower` times
as slow.
"""

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
import unicodedata
from html import escape
from typing import NamedTuple

COLUMNS, ROWS = 90, 24
# Width and height of a cell, and the margin around all cells, in pixels.
WIDTH, HEIGHT, MARGIN = 8.4, 20, 16
# Frames closer than this are one, in seconds of the picture.
FRAME_S = 0.05
# Time that the last frame is seen, in seconds.
AFTER_S = 6.0
SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()].|[=>78])")
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*|\][^\x07\x1b]*)?$")
STYLES = {1: "bold", 2: "dim", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "purple", 36: "cyan", 90: "dim"}

NAMES = ("paper", "ink", "dim", "red", "green", "yellow", "blue", "purple", "cyan")
LIGHT = dict(zip(NAMES, "#f6f8fa #1f2328 #59636e #cf222e #1a7f37 #7d4e00 #0969da #8250df #1b7c83".split(), strict=True))
DARK = dict(zip(NAMES, "#161b22 #e6edf3 #9198a1 #ff7b72 #3fb950 #d29922 #58a6ff #bc8cff #39c5cf".split(), strict=True))


class Cell(NamedTuple):
    text: str
    style: str


BLANK = Cell(" ", "")
# Right half of a wide character.
HALF = Cell("", "")


def cells_of(character: str) -> int:
    """Returns the number of cells of a character."""
    if unicodedata.combining(character) or character == "\u200d":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Terminal:
    """A screen of cells, with what programs use that write lines and progress bars."""

    def __init__(self) -> None:
        self.screen = [[BLANK] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.style = ""
        self.rest = ""

    def feed(self, text: str) -> None:
        text, self.rest = self.rest + text, ""
        cut = UNFINISHED.search(text)
        if cut:
            text, self.rest = text[: cut.start()], text[cut.start() :]
        at = 0
        while at < len(text):
            sequence = SEQUENCE.match(text, at)
            if sequence:
                self.control(sequence[1] or "", sequence[2] or "")
                at = sequence.end()
            else:
                self.put(text[at])
                at += 1

    def put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.next_row()
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " " and cells_of(character) > 0:
            self.write(character, cells_of(character))

    def write(self, character: str, cells: int) -> None:
        if self.column + cells > COLUMNS:
            self.column = 0
            self.next_row()
        line = self.screen[self.row]
        line[self.column] = Cell(character, self.style)
        if cells == 2:
            line[self.column + 1] = HALF
        self.column += cells

    def next_row(self) -> None:
        if self.row == ROWS - 1:
            self.screen = [*self.screen[1:], [BLANK] * COLUMNS]
        else:
            self.row += 1

    def control(self, arguments: str, final: str) -> None:
        numbers = [int(number or 0) for number in arguments.split(";")] if "?" not in arguments else [0]
        count = max(1, numbers[0])
        if final == "m":
            self.set_style(numbers)
        elif final in "AB" and final:
            self.row = min(ROWS - 1, max(0, self.row + (count if final == "B" else -count)))
        elif final in "CD" and final:
            self.column = min(COLUMNS - 1, max(0, self.column + (count if final == "C" else -count)))
        elif final == "G":
            self.column = min(COLUMNS, count) - 1
        elif final == "H":
            self.row, self.column = min(ROWS, count) - 1, min(COLUMNS, max(1, *numbers[1:2], 1)) - 1
        elif final == "K":
            self.erase(self.row, 0 if numbers[0] else self.column)
        elif final == "J":
            self.erase(self.row, 0 if numbers[0] == 2 else self.column)
            for row in range(0 if numbers[0] == 2 else self.row + 1, ROWS):
                self.erase(row, 0)

    def set_style(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in (0, 22, 39):
                self.style = ""
            self.style = STYLES.get(number, self.style)

    def erase(self, row: int, column: int) -> None:
        self.screen[row][column:] = [BLANK] * (COLUMNS - column)

    def lines(self) -> list[tuple[Cell, ...]]:
        """Returns the rows without the blanks at their ends."""
        kept = []
        for line in self.screen:
            end = max((column + 1 for column, cell in enumerate(line) if cell != BLANK), default=0)
            kept.append(tuple(line[:end]))
        return kept


def run(command: list[str]) -> list[tuple[float, bytes]]:
    """Runs a command in a terminal, and returns its output with the times since its start."""
    started = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)})
    output = []
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65536)
        except OSError:
            data = b""
        if not data:
            break
        output.append((time.monotonic() - started, data))
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status != 0:
        sys.exit(f"error: {command[0]} failed with status {status}")
    return output


class Piece(NamedTuple):
    """Cells of a row that are seen from one time to another; to the end if that is None."""

    row: int
    column: int
    cells: tuple[Cell, ...]
    start: float
    end: float | None


def pieces(shown: str, output: list[tuple[float, bytes]], slower: float) -> tuple[list[Piece], float]:
    """Returns what is seen when, and the duration of all."""
    terminal, decoder = Terminal(), codecs.getincrementaldecoder("utf-8")("replace")
    terminal.feed(f"\x1b[2m$\x1b[0m \x1b[1m{shown}\x1b[0m\r\n")
    seen: list[list[Piece]] = [[] for _ in range(ROWS)]
    done: list[Piece] = []
    update(seen, done, terminal.lines(), 0.0)
    frame = now = first = output[0][0] if output else 0.0
    for at, data in output:
        now = first + (at - first) * slower
        if now - frame >= FRAME_S:
            update(seen, done, terminal.lines(), frame)
            frame = now
        terminal.feed(decoder.decode(data))
    update(seen, done, terminal.lines(), frame)
    return [*done, *(piece for row in seen for piece in row)], now + AFTER_S


def update(seen: list[list[Piece]], done: list[Piece], lines: list[tuple[Cell, ...]], now: float) -> None:
    """Adds what a row has gained since the last frame, or ends all of a row that has changed otherwise."""
    for row, line in enumerate(lines):
        old = tuple(cell for piece in seen[row] for cell in piece.cells)
        if line[: len(old)] != old:
            done.extend(piece._replace(end=now) for piece in seen[row])
            seen[row], old = [], ()
        if len(line) > len(old):
            seen[row].append(Piece(row, len(old), line[len(old) :], now, None))


def texts(piece: Piece) -> str:
    """Returns a piece as SVG: one element for each stretch of one style and width, which is as wide as its cells."""
    stretches: list[tuple[int, str, str, int]] = []
    for offset, cell in enumerate(piece.cells):
        if cell == HALF:
            continue
        width = cells_of(cell.text)
        if stretches and stretches[-1][2:] == (cell.style, width):
            first, text, style, width = stretches.pop()
            stretches.append((first, text + cell.text, style, width))
        else:
            stretches.append((piece.column + offset, cell.text, cell.style, width))
    y = MARGIN + piece.row * HEIGHT + HEIGHT * 0.75
    return "".join(
        f'<text x="{MARGIN + first * WIDTH:.1f}" y="{y:.0f}" textLength="{len(text) * width * WIDTH:.1f}"'
        + (f' class="{style}"' if style else "")
        + f">{escape(text, quote=False)}</text>"
        for first, text, style, width in stretches
        if text.strip()
    )


def keyframes(start: float, end: float | None, duration: float) -> str:
    """Returns the body of the CSS keyframes of what is seen from `start` to `end`."""
    first = start / duration * 100
    body = f"0%{{visibility:hidden}}{first:.2f}%{{visibility:visible}}"
    if end is not None:
        body += f"{end / duration * 100:.2f}%{{visibility:hidden}}"
    return body


def colors(theme: dict[str, str]) -> str:
    """Returns the CSS rules of a theme's colors."""
    styles = "".join(f".{name}{{fill:{color}}}" for name, color in theme.items() if name not in ("paper", "ink"))
    return f"rect{{fill:{theme['paper']}}}text{{fill:{theme['ink']}}}{styles}"


def svg(title: str, found: list[Piece], duration: float) -> str:
    rows = max(piece.row for piece in found) + 1
    width, height = round(COLUMNS * WIDTH + 2 * MARGIN), rows * HEIGHT + 2 * MARGIN
    groups: dict[tuple[float, float | None], list[Piece]] = {}
    for piece in found:
        groups.setdefault((piece.start, piece.end), []).append(piece)
    style, body = [], []
    for number, ((start, end), group) in enumerate(sorted(groups.items(), key=lambda item: item[0][0])):
        text = "".join(map(texts, group))
        if start == 0 and end is None:
            body.append(text)
            continue
        style.append(f"@keyframes k{number}{{{keyframes(start, end, duration)}}}#k{number}{{animation-name:k{number}}}")
        gone = "" if end is None else ' class="gone"'
        body.append(f'<g id="k{number}"{gone}>{text}</g>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{escape(title)}</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"Noto Sans Mono CJK JP","Noto Sans CJK JP",monospace;white-space:pre}}
.bold{{font-weight:bold}}
{colors(LIGHT)}
@media (prefers-color-scheme:dark){{{colors(DARK)}}}
.gone{{visibility:hidden}}
g{{animation:{duration:.2f}s step-end infinite}}
{"".join(style)}
@media (prefers-reduced-motion:reduce){{g{{animation:none}}}}
</style>
<rect width="100%" height="100%" rx="8"/>
{chr(10).join(body)}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", help="command as the picture shows it")
    parser.add_argument("--slower", type=float, default=1.0, help="factor on all times of the output")
    parser.add_argument("picture")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    shown = arguments.show or " ".join(arguments.command)
    found, duration = pieces(shown, run(arguments.command), arguments.slower)
    pace = "" if arguments.slower == 1 else f", {arguments.slower:g} times slower than it was"
    picture = svg(f"{shown} in a terminal{pace}", found, duration)
    with open(arguments.picture, "w", encoding="utf-8") as file:
        file.write(picture)
    print(f"{arguments.picture}: {len(picture.encode())} bytes, {duration:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
