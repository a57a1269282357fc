"""Report of a suite's program in Python: one JSON line for each test, version and figure."""

import importlib.metadata
import json
import os
import subprocess
import sys

URL = os.environ["OUTSIDE_URL"]
KEY = os.environ["OUTSIDE_KEY"]
MODEL = os.environ["OUTSIDE_MODEL"]


def write(line):
    with open(os.environ["OUTSIDE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def version(*packages):
    for name in packages:
        write({"version": {"name": name, "version": importlib.metadata.version(name)}})


def outcome(name, outcome, why=""):
    write({"test": {"name": name, "outcome": outcome, "why": why[:2000]}})


def figure(name, value, unit):
    write({"figure": {"name": name, "value": value, "unit": unit}})


def test(body):
    """Runs a function as a test of its name."""
    try:
        body()
        outcome(body.__name__, "passed")
    except Exception as error:
        outcome(body.__name__, "failed", f"{type(error).__name__}: {error}")


def pytest(arguments, **more):
    """Runs pytest, with a plugin that reports each test. Failures of tests are no error here."""
    command = [sys.executable, "-m", "pytest", "-p", "report_pytest", "-q", "--tb=no", "-W", "ignore"]
    code = subprocess.run([*command, "-p", "no:cacheprovider", *arguments], **more).returncode
    if code not in (0, 1):
        sys.exit(f"pytest ended with code {code}")


def sdist(requirement, folder):
    """Downloads and unpacks the sources of a package, once, and returns their folder.

    `requirement` has a version and a digest, as in a list of requirements.
    """
    name = requirement.split(" ")[0].replace("==", "-").replace("-", "_")
    unpacked = os.path.abspath(os.path.join(folder, name))
    if not os.path.isdir(unpacked):
        os.makedirs(folder, exist_ok=True)
        wanted = os.path.join(folder, "wanted.txt")
        with open(wanted, "w", encoding="utf-8") as file:
            file.write(requirement + "\n")
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                    "--no-build-isolation", "--require-hashes", "--disable-pip-version-check"]
        subprocess.run([*download, "-d", folder, "-r", wanted], check=True)
        archive = [name for name in os.listdir(folder) if name.endswith(".tar.gz")]
        if len(archive) != 1:
            sys.exit(f"{folder} must have one archive and has {archive}")
        os.makedirs(unpacked + ".part", exist_ok=True)
        archive = os.path.join(folder, archive[0])
        subprocess.run(["tar", "-xzf", archive, "-C", unpacked + ".part", "--strip-components=1"], check=True)
        os.rename(unpacked + ".part", unpacked)
    return unpacked
