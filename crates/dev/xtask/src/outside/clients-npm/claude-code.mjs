// Claude Code, with the gateway in the place of Anthropic's API.
//
// Its own prompt has some 4,000 tokens. The prompt differs with the machine, and so does the reply
// of the model; the tool choice in the request's body bounds the reply's length. A model of this size that
// may call a tool writes an argument without an end.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

import { test } from "./report.mjs";
import { hasText, key, model, url } from "./shared.mjs";

// The package's installation script, which npm does not run here, would copy this program from the
// package of the platform. Started without a wrapper, it ends at the time limit.
const program = resolve(`node_modules/@anthropic-ai/claude-code-${process.platform}-${process.arch}/claude`);
const log = resolve("claude-code.log");

// Outside of the repository, whose state would be in the prompt.
const place = mkdtempSync(join(tmpdir(), "nsbridge-claude-code-"));
const [home, project] = [join(place, "home"), join(place, "project")];
mkdirSync(home);
mkdirSync(project);

const environment = {
  PATH: process.env.PATH,
  HOME: home,
  ANTHROPIC_BASE_URL: url,
  ANTHROPIC_API_KEY: key,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  DISABLE_AUTOUPDATER: "1",
  DISABLE_ERROR_REPORTING: "1",
  DISABLE_TELEMETRY: "1",
};

const schema = {
  type: "object",
  properties: { greeting: { type: "string", enum: ["hi", "hello"] } },
  required: ["greeting"],
  additionalProperties: false,
};
const greets = {
  output_config: { format: { type: "json_schema", schema } },
  tool_choice: { type: "none" },
};

/** Runs Claude Code with more fields in the bodies of its requests, and returns its output. */
function claude(prompt, body, ...more) {
  const ran = spawnSync(program, ["-p", prompt, "--model", model, ...more], {
    cwd: project,
    encoding: "utf8",
    env: { ...environment, CLAUDE_CODE_EXTRA_BODY: JSON.stringify({ temperature: 0, ...body }) },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 300_000,
  });
  writeFileSync(log, `${ran.stdout}${ran.stderr}\n`, { flag: "a" });
  assert.equal(ran.status, 0, `${ran.error ?? ""} ${ran.stdout} ${ran.stderr}`);
  return ran.stdout;
}

/** Runs Claude Code and returns its result, which must be a success. */
function result(prompt, body, ...more) {
  const final = JSON.parse(claude(prompt, body, ...more, "--output-format", "json"));
  assert.equal(final.subtype, "success", JSON.stringify(final));
  assert.equal(final.is_error, false, JSON.stringify(final));
  return final;
}

const promptTokens = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;

rmSync(log, { force: true });

await test("claude-code: a reply is printed", () => {
  const printed = claude("Say hi", greets);
  assert(schema.properties.greeting.enum.includes(JSON.parse(printed).greeting), printed);
});

await test("claude-code: the session is continued and resumed with its earlier turns", () => {
  const first = result("Say hi", greets);
  hasText(first.result);
  const second = result("And again", greets, "--continue");
  assert.equal(second.session_id, first.session_id);
  assert(promptTokens(second) > promptTokens(first), JSON.stringify([first.usage, second.usage]));
  const third = result("Once more", greets, "--resume", first.session_id);
  hasText(third.result);
  assert(promptTokens(third) > promptTokens(second), JSON.stringify([second.usage, third.usage]));
});

await test("claude-code: a tool is called, and the session goes on after its result", () => {
  const body = { tool_choice: { type: "tool", name: "StructuredOutput" } };
  const called = result("Say hi", body, "--json-schema", JSON.stringify(schema));
  assert(schema.properties.greeting.enum.includes(called.structured_output.greeting), JSON.stringify(called));
  const next = result("And again", greets, "--resume", called.session_id);
  hasText(next.result);
  assert(promptTokens(next) > promptTokens(called), JSON.stringify([called.usage, next.usage]));
});

await test("claude-code: the events of a turn are streamed", () => {
  const more = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"];
  const events = claude("Say hi", greets, ...more).trim().split("\n").map((line) => JSON.parse(line));
  const kinds = events.filter(({ type }) => type === "stream_event").map(({ event }) => event.type);
  assert.equal(kinds[0], "message_start");
  assert.equal(kinds.at(-1), "message_stop");
  assert(kinds.includes("content_block_delta"), JSON.stringify(kinds));
  assert.equal(events.at(-1).subtype, "success");
});

rmSync(place, { recursive: true, force: true });
