// OpenAI's Codex, unmodified, with a gateway as the provider of its model.
//
// The bundled model writes nonsense. The turn, its stream and the continued session must be complete.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";

import { test, version } from "./report.mjs";

const { OUTSIDE_URL, OUTSIDE_MODEL: model } = process.env;
const home = resolve("home");
const project = resolve("project");

rmSync(home, { recursive: true, force: true });
mkdirSync(home);
mkdirSync(project, { recursive: true });
writeFileSync(`${home}/instructions.md`, "Tell a story.\n");
writeFileSync(
  `${home}/config.toml`,
  `model = "${model}"
model_provider = "gateway"
model_context_window = 1024
model_instructions_file = "${home}/instructions.md"
web_search = "disabled"
# The bundled model's context is short.
include_permissions_instructions = false
include_environment_context = false
include_apps_instructions = false
include_collaboration_mode_instructions = false
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.gateway]
name = "gateway"
base_url = "${OUTSIDE_URL}/v1"
env_key = "OUTSIDE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[features]
multi_agent = false
plugins = false
unified_exec = false
`,
);

/** Runs Codex and returns its events. */
function codex(...more) {
  const program = ["node_modules/@openai/codex/bin/codex.js", "exec", "--json", "--skip-git-repo-check"];
  const ran = spawnSync("node", [...program, "-C", project, ...more], {
    encoding: "utf8",
    env: { ...process.env, CODEX_HOME: home, RUST_LOG: "warn" },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 300_000,
  });
  writeFileSync("codex.log", ran.stdout + ran.stderr, { flag: "a" });
  assert.equal(ran.status, 0, ran.stdout + ran.stderr);
  return ran.stdout.trim().split("\n").map((line) => JSON.parse(line));
}

/** Checks that a turn completed with a message, and returns the number of its tokens. */
function completed(events) {
  const kinds = events.map((event) => event.type);
  assert(!kinds.includes("error") && !kinds.includes("turn.failed"), JSON.stringify(events));
  const last = events.at(-1);
  assert.equal(last.type, "turn.completed");
  assert(last.usage.input_tokens > 0 && last.usage.output_tokens > 0, JSON.stringify(last));
  const messages = events.filter((event) => event.item?.type === "agent_message");
  assert(messages.length > 0 && messages[0].item.text.length > 0, JSON.stringify(events));
  return last.usage.input_tokens + last.usage.output_tokens;
}

// Tokens of a turn that leaves room for another one in the model's context of 1,024.
const ROOM = 500;

// The seed of a turn is random, so its story may be of any length.
const TURNS = 12;

rmSync("codex.log", { force: true });
version("codex", JSON.parse(readFileSync("node_modules/@openai/codex/package.json", "utf8")).version);

await test("a turn completes", () => {
  for (let turn = 0; turn < TURNS; turn += 1) {
    if (completed(codex("Once a bear")) <= ROOM) return;
  }
  assert.fail(`no story of ${TURNS} was short enough for a second turn`);
});

await test("a session goes on with its earlier turns", () => completed(codex("resume", "--last", "And then?")));
