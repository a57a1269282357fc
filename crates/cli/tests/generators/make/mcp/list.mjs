// Starts MCP servers over stdio, asks for their tools, and writes each tool's inputSchema.
// Usage: node list.mjs FOLDER [NAME]   (all servers without NAME)
// PYTHON_BIN and PYTHON_BIN_MCP1: the bin folders where requirements.txt and requirements-mcp1.txt are installed.
import { mkdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const bin = (e) => (process.env[e] ? process.env[e] + "/" : "");
const py = bin("PYTHON_BIN"), old = bin("PYTHON_BIN_MCP1");
const js = (p, ...a) => ["npx", ["--no-install", p, ...a]];
const servers = {
  everything: js("mcp-server-everything"),
  filesystem: js("mcp-server-filesystem", tmpdir()),
  memory: js("mcp-server-memory"),
  thinking: js("mcp-server-sequential-thinking"),
  github: js("mcp-server-github"),
  postgres: js("mcp-server-postgres", "postgresql://127.0.0.1:1/none"),
  playwright: js("playwright-mcp", "--headless"),
  "chrome-devtools": js("chrome-devtools-mcp", "--headless"),
  context7: js("context7-mcp"),
  notion: js("notion-mcp-server"),
  chart: js("mcp-server-chart"),
  tavily: js("tavily-mcp"),
  firecrawl: js("firecrawl-mcp"),
  kubernetes: js("mcp-server-kubernetes"),
  mongodb: js("mongodb-mcp-server"),
  git: [py + "mcp-server-git", []],
  fetch: [py + "mcp-server-fetch", []],
  time: [py + "mcp-server-time", ["--local-timezone", "UTC"]],
  sqlite: [old + "mcp-server-sqlite", ["--db-path", `${tmpdir()}/list.db`]],
  atlassian: [old + "mcp-atlassian", []],
};
const env = {
  ...process.env, TAVILY_API_KEY: "none", FIRECRAWL_API_KEY: "none", FIRECRAWL_API_URL: "http://127.0.0.1:1", NOTION_TOKEN: "none", DO_NOT_TRACK: "1",
  JIRA_URL: "http://127.0.0.1:1", JIRA_USERNAME: "none", JIRA_API_TOKEN: "none", CONFLUENCE_URL: "http://127.0.0.1:1",
  CONFLUENCE_USERNAME: "none", CONFLUENCE_API_TOKEN: "none", MDB_MCP_TELEMETRY: "disabled", GITHUB_PERSONAL_ACCESS_TOKEN: "none",
};
const [dir, only] = process.argv.slice(2);
mkdirSync(dir, { recursive: true });
for (const [name, [command, args]] of Object.entries(servers)) {
  if (only && only !== name) continue;
  const client = new Client({ name: "list", version: "0" }, { capabilities: { roots: {}, sampling: {}, elicitation: {} } });
  const transport = new StdioClientTransport({ command, args, env, stderr: "ignore" });
  try {
    await client.connect(transport, { timeout: 45000 });
    const info = client.getServerVersion();
    const tools = [];
    let cursor;
    do {
      const page = await client.request({ method: "tools/list", params: cursor ? { cursor } : {} }, (await import("zod")).z.any(), { timeout: 30000 });
      tools.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor);
    for (const t of tools)
      writeFileSync(`${dir}/${name}.${t.name}.json`, JSON.stringify(t.inputSchema, null, 1) + "\n");
    console.error(`${name}: ${info.name} ${info.version}, ${tools.length} tools`);
  } catch (e) {
    console.error(`${name}: ${String(e.message).slice(0, 200)}`);
  }
  await client.close().catch(() => {});
}
process.exit(0);
