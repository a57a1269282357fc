"""Finds the modules of the engines, and `nsbridge_handler` of the sources."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parents[4] / "python" / "src")]
