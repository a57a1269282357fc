// Claude Code, the AI SDK, and the official JavaScript clients of Anthropic and OpenAI, unmodified,
// against a gateway with a small chat model.
//
// The other suites test requests one by one. Here the messages that a client made of a reply are
// sent back with the next request, as applications do.

import { readFileSync } from "node:fs";

import { version } from "./report.mjs";

for (const name of ["@anthropic-ai/claude-code", "ai", "@anthropic-ai/sdk", "openai"]) {
  version(name, JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8")).version);
}
version("node", process.versions.node);

// One after another: static imports of modules with a top-level `await` would run at the same time.
for (const client of ["openai", "anthropic", "ai-sdk", "claude-code"]) await import(`./${client}.mjs`);
