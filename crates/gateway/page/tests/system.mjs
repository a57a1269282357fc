// Workers and gateways of the tests: real processes on a real RabbitMQ.

import { execFileSync, spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const children = new Set();
process.on('exit', () => children.forEach(child => child.kill('SIGKILL')));
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));
// The caller holds the other end: these processes end with it, however it ends.
process.stdin.on('end', () => process.exit(1)).resume();

export async function freePort() {
  const server = createServer();
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise(resolve => server.close(resolve));
  return port;
}

// Folder with a keyring, API keys and the configurations of workers and gateways.
export class System {
  constructor({ binary, broker, root, smollm2 }) {
    Object.assign(this, { binary, broker, root, smollm2 });
    this.folder = mkdtempSync(path.join(tmpdir(), 'nsbridge-page-'));
    this.suffix = path.basename(this.folder).slice(-6).replace(/[^A-Za-z0-9]/g, 'x');
    this.run('keys', 'generate', '--out', this.path('keys.json'));
    this.key = this.run('gateway', 'keys', 'add', this.path('api-keys.json'), '--tenant', 'page').trim();
  }

  path(name) {
    return path.join(this.folder, name);
  }

  run(...args) {
    return execFileSync(this.binary, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  }

  start(name, args) {
    const log = openSync(this.path(`${name}.log`), 'a');
    const child = spawn(this.binary, args, { stdio: ['ignore', log, log] });
    closeSync(log);
    children.add(child);
    child.exited = new Promise(resolve => child.on('exit', resolve));
    child.exited.then(() => children.delete(child));
    return child;
  }

  log(name) {
    return readFileSync(this.path(`${name}.log`), 'utf8');
  }

  // Starts a worker and waits until it takes requests. `target` is a folder or a GGUF file.
  async worker(name, target, draft) {
    // Drafts of a fixed length: if they adapt to the measured costs, a busy machine may have none.
    const more = draft ? `draft = "${draft}"\n[handler]\nspeculative_adaptive = false\n` : '';
    writeFileSync(this.path(`${name}.toml`), `[worker]\nmodel = "${name}-${this.suffix}"\ngrace_s = 1\n`
      + `[broker]\nurl = "${this.broker}"\n[keys]\nkeyring = "keys.json"\n[models]\ntarget = "${target}"\n${more}`);
    const count = () => {
      try {
        return this.log(name).split('taking requests').length;
      } catch {
        return 1;
      }
    };
    const before = count();
    const child = this.start(name, ['worker', '--config', this.path(`${name}.toml`)]);
    await until(() => count() > before, 90, () => this.log(name));
    return child;
  }

  // Configures a gateway.
  gateway(name, { port, store = true, open = false, models }) {
    const access = open ? 'open_to = "page"' : 'file = "api-keys.json"';
    const kept = store ? `[store]\npath = "${name}.redb"\nkey_file = "${name}.key"\n` : '';
    const tables = Object.entries(models).map(([model, { queue, context }]) =>
      `[models."${model}"]\nqueue = "${queue}-${this.suffix}"\n${context ? `context = ${context}\n` : ''}`);
    writeFileSync(this.path(`${name}.toml`), `[server]\nlisten = "127.0.0.1:${port}"\ngrace_s = 1\n`
      + `[broker]\nurl = "${this.broker}"\n[keys]\nkeyring = "keys.json"\n[access]\n${access}\n${kept}${tables.join('')}`);
    return new Gateway(this, name, port);
  }

  remove() {
    for (const child of children) child.kill('SIGKILL');
    rmSync(this.folder, { recursive: true, force: true });
  }
}

// Gateway that can be killed and started again.
class Gateway {
  constructor(system, name, port) {
    Object.assign(this, { system, name, port });
    this.url = `http://127.0.0.1:${port}/`;
  }

  async start() {
    this.child = this.system.start(this.name, ['gateway', '--config', this.system.path(`${this.name}.toml`)]);
    await until(async () => {
      try {
        return (await fetch(`${this.url}livez`)).ok;
      } catch {
        return false;
      }
    }, 30, () => this.system.log(this.name));
  }

  async end() {
    this.child.kill('SIGTERM');
    await this.child.exited;
  }

  async kill() {
    this.child.kill('SIGKILL');
    await this.child.exited;
  }
}

// Waits until `check` is true.
export async function until(check, seconds, why = () => '') {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    if (await check()) return;
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${why()}`);
    await sleep(50);
  }
}
