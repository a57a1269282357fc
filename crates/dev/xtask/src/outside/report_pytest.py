"""pytest plugin that reports each test, and does not run those that the list says not to run."""

import json
import os
import re

import pytest
from report import write

FOUND = {}


def not_run():
    """Reads the patterns of tests that are left out without a run. `*` stands for any text."""
    with open(os.environ["OUTSIDE_LEFT_OUT"], encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if not entry.get("run", True)]
    patterns = [pattern for entry in entries for pattern in entry["tests"]]
    return [re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL) for pattern in patterns]


def pytest_collection_modifyitems(config, items):
    patterns = not_run()
    left_out = [item for item in items if any(p.fullmatch(item.nodeid) for p in patterns)]
    for item in left_out:
        FOUND[item.nodeid] = ("skipped", "left out without a run")
    items[:] = [item for item in items if item.nodeid not in FOUND]
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report):
    before = FOUND.get(report.nodeid, ("", ""))[0]
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        FOUND[report.nodeid] = ("failed", crash.message if crash else str(report.longrepr)[-500:])
    elif report.skipped and before != "failed":
        why = getattr(report, "wasxfail", None) or str(report.longrepr)
        FOUND[report.nodeid] = ("skipped", why)
    elif report.when == "call" and before != "failed":
        # A test that is expected to fail and passes is one that passes.
        FOUND[report.nodeid] = ("passed", "")


def pytest_collectreport(report):
    if report.failed:
        FOUND[report.nodeid] = ("failed", str(report.longrepr)[-500:])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    for name, (outcome, why) in FOUND.items():
        write({"test": {"name": name, "outcome": outcome, "why": why[:2000]}})
