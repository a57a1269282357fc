"""Schemathesis with the gateway's own OpenAPI document: valid and invalid requests of each operation.

A test is a check of an operation. The requests follow from the document and a seed.
"""

import glob
import json
import os
import subprocess
import sys

import report

# Checks that a document and a fresh gateway allow for. `use_after_free`, `ensure_resource_availability` and
# `object_level_authorization` need links between operations, which the document does not have.
CHECKS = {
    "ServerError": "not_a_server_error",
    "UndefinedStatusCode": "status_code_conformance",
    "UndefinedContentType": "content_type_conformance",
    "MissingHeaders": "response_headers_conformance",
    "JsonSchemaError": "response_schema_conformance",
    "AcceptedNegativeData": "negative_data_rejection",
    "RejectedPositiveData": "positive_data_acceptance",
    "MissingHeaderNotRejected": "missing_required_header",
    "UnsupportedMethodResponse": "unsupported_method",
    "AllowHeaderMismatch": "allow_header_conformance",
    "IgnoredAuth": "ignored_auth",
}
EXAMPLES = 15

subprocess.run(["rm", "-rf", "reports"], check=True)
command = [
    os.path.join(os.path.dirname(sys.executable), "st"), "run", f"{report.URL}/openapi.json", "--checks", "all",
    "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1",
    "--generation-deterministic", "--continue-on-failure", "--no-color",
    "--request-timeout", "60", "--header", f"Authorization: Bearer {report.KEY}",
    "--report", "json", "--report-dir", "reports",
]
with open("schemathesis.log", "w", encoding="utf-8") as log:
    code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
[file] = glob.glob("reports/json-*.json")
with open(file, encoding="utf-8") as text:
    run = json.load(text)
if not run["complete"] or run["errors"] or run["operations"]["tested"] != run["operations"]["total"]:
    sys.exit(f"schemathesis ended with code {code} and is not complete: {run['operations']} {run['errors']}")
failed = {}
for failure in run["failures"]:
    check = CHECKS.get(failure["type"], failure["type"])
    for operation in failure["operations"]:
        label = operation if isinstance(operation, str) else operation["label"]
        failed[f"{label}: {check}"] = failure["title"]
report.version("schemathesis")
document = json.loads(subprocess.run(
    ["curl", "-sSf", f"{report.URL}/openapi.json"], check=True, capture_output=True).stdout)
operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
names = [f"{operation}: {check}" for operation in operations for check in CHECKS.values()]
for name in [*names, *(name for name in failed if name not in names)]:
    if name in failed:
        report.outcome(name, "failed", f"{failed[name]}; schemathesis.log has the request")
    else:
        report.outcome(name, "passed")
report.figure("requests", run["test_cases"]["generated"], "")
