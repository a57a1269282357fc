// Report of a suite's program in JavaScript: one JSON line for each test, version and figure.

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
