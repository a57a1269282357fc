// Report of a suite's program in JavaScript: one JSON line for each test, version and figure. Below it are
// helpers of the tests.

import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";

const write = (line) => appendFileSync(process.env.OUTSIDE_REPORT, JSON.stringify(line) + "\n");

export const version = (name, version) => write({ version: { name, version } });

/** Runs a test and reports its outcome. */
export async function test(name, body) {
  try {
    await body();
    write({ test: { name, outcome: "passed" } });
  } catch (error) {
    const why = String(error?.stack ?? error).slice(0, 2000);
    write({ test: { name, outcome: "failed", why } });
  }
}

/** Returns the items of a stream or of a list. */
export async function all(items) {
  const list = [];
  for await (const item of items) list.push(item);
  return list;
}

/** Awaits a failure of this class and returns it. */
export async function failure(kind, promise) {
  try {
    await promise;
  } catch (error) {
    assert(error instanceof kind, `${error?.constructor?.name}: ${error}`);
    return error;
  }
  throw new Error(`there was no ${kind.name}`);
}
