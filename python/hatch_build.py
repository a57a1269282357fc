"""Build hook of hatchling: makes a wheel with the command `nsbridge`, its models and its pages.

`NSBRIDGE_DIST_ROOT` names a folder with the installed files, `bin/nsbridge` and `share`, and
`NSBRIDGE_DIST_TAG` the wheel's tag, such as `py3-none-manylinux_2_28_x86_64`. Without them, the
wheel has the client and the handler kit alone, and suits any machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Links to files of the repository. The source distribution has the files themselves.
LINKS = ("LICENSE-APACHE", "LICENSE-MIT", "src/nsbridge_handler/__init__.py")

COMMAND = "bin/nsbridge"

# Files without which an installed command is not whole, or must not be given to others.
NEEDED = (
    COMMAND,
    "share/bash-completion/completions/nsbridge",
    "share/doc/nsbridge/THIRD-PARTY.txt",
    "share/fish/vendor_completions.d/nsbridge.fish",
    "share/man/man1",
    "share/nsbridge/models/tale-1m",
    "share/nsbridge/models/tale-7m",
    "share/zsh/site-functions/_nsbridge",
)


class Hook(BuildHookInterface[Any]):
    """Hook for the wheel and the source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds to what hatchling builds."""
        if self.target_name == "sdist":
            follow_links(Path(self.root), build_data["force_include"])
        place = os.environ.get("NSBRIDGE_DIST_ROOT")
        if place and self.target_name == "wheel" and version == "standard":
            add_command(Path(place).resolve(), build_data)


def follow_links(root: Path, included: dict[str, str]) -> None:
    """Includes the files that links lead to, in place of the links."""
    for name in LINKS:
        included.pop(str(root / name), None)
        included[str((root / name).resolve())] = name


def add_command(root: Path, build_data: dict[str, Any]) -> None:
    """Adds the command and its files to a wheel, which then suits one kind of machine."""
    tag = os.environ.get("NSBRIDGE_DIST_TAG", "")
    if not re.fullmatch(r"py3-none-\w+", tag):
        raise ValueError(
            f"NSBRIDGE_DIST_TAG is {tag!r}, no tag such as py3-none-manylinux_2_28_x86_64: set it "
            "with NSBRIDGE_DIST_ROOT"
        )
    missing = [name for name in NEEDED if not (root / name).exists()]
    if missing:
        raise ValueError(
            f"{root}, the folder of NSBRIDGE_DIST_ROOT, lacks {', '.join(missing)}: stage the "
            "whole installation there"
        )
    if not os.access(root / COMMAND, os.X_OK):
        raise ValueError(f"{root / COMMAND} is not executable: set its mode to 755")
    build_data["tag"], build_data["pure_python"] = tag, False
    build_data["shared_scripts"][str(root / COMMAND)] = "nsbridge"
    build_data["shared_data"][str(root / "share")] = "share"


__all__ = ["Hook"]
