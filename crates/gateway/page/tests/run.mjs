// Tests of the chat page in a headless Chromium, against real gateways, workers and RabbitMQ.
//
// `cargo xtask page` builds the binary, starts the broker and sets the variables that are read here.

import { strict as assert } from 'node:assert';
import { createRequire } from 'node:module';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort, System, until } from './system.mjs';
import * as cases from './cases.mjs';
import * as looks from './looks.mjs';
import * as markdown from './markdown.mjs';
import * as pictures from './pictures.mjs';
import * as spec from './spec.mjs';
import * as survival from './survival.mjs';

const { NSBRIDGE_TEST_BINARY: binary, NSBRIDGE_TEST_AMQP_URL: broker, NSBRIDGE_TEST_SMOLLM2: smollm2,
  NSBRIDGE_TEST_NODE: modules, NSBRIDGE_TEST_CHROMIUM: executablePath, NSBRIDGE_TEST_OUT: out } = process.env;
const root = path.resolve(import.meta.dirname, '../../../..');
const require = createRequire(path.join(modules, 'package.json'));
const { chromium } = require('playwright-core');
export const axe = require.resolve('axe-core/axe.min.js');

const only = process.argv.slice(2);
mkdirSync(out, { recursive: true });
const system = new System({ binary, broker, root, smollm2 });
const tale = path.join(root, 'examples/models/tale-7m'), draft = path.join(root, 'examples/models/tale-1m');
const [, slowWorker] = await Promise.all([system.worker('tale', tale, draft), system.worker('slow', smollm2)]);
const models = { 'tale-7m': { queue: 'tale', context: 1024 }, SmolLM2: { queue: 'slow' }, nobody: { queue: 'nobody' } };
const [port, keyless, open] = [await freePort(), await freePort(), await freePort()];
const gateways = {
  stored: system.gateway('stored', { port, models }),
  // Replies of this one end with its process.
  unstored: system.gateway('unstored', { port: keyless, models, store: false, open: true }),
  open: system.gateway('open', { port: open, models, open: true }),
};
await Promise.all(Object.values(gateways).map(gateway => gateway.start()));
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'] });

// Page in a context of its own, that counts what a page must not do.
class Visit {
  static async open(gateway = gateways.open, { hash = '', ...options } = {}) {
    const visit = new Visit();
    visit.gateway = gateway;
    visit.context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: 'en-US', ...options });
    visit.faults = [];
    visit.requests = [];
    await visit.context.addInitScript(() => {
      window.violations = [];
      addEventListener('securitypolicyviolation', event => window.violations.push(event.violatedDirective));
    });
    await visit.tab(hash);
    return visit;
  }

  // Opens a page in the middle of a reply of 90 tokens, whose worker stands still until `world.goOn()`: it may be faster
  // than what is done to the page or the gateway.
  static async inReply(gateway = gateways.open) {
    const visit = await Visit.open(gateway);
    if (gateway === gateways.stored) {
      await visit.page.fill('#key-value', system.key);
      await visit.page.click('#key-save');
    }
    await visit.ready('SmolLM2');
    await visit.settings({ max: 90, temperature: 0.7 });
    await visit.watch();
    await visit.send('Write a story about a bear and a seal at the sea.', false);
    // The worker runs for a moment at a time: on a busy machine it could end the reply before it is told to stop.
    const body = visit.page.locator('#log .message:last-child.assistant .body');
    await until(async () => {
      await goOnFor(40);
      return (await body.textContent()).length >= 30;
    }, 60);
    return visit;
  }

  // Opens the page in a new tab of the context.
  async tab(hash = '') {
    this.page = await this.context.newPage();
    this.page.setDefaultTimeout(60_000);
    this.page.on('pageerror', error => this.faults.push(`error in the page: ${error.message}`));
    this.page.on('request', request => {
      this.requests.push(request);
      const { origin } = new URL(request.url());
      const own = origin === new URL(this.gateway.url).origin || request.url().startsWith('blob:');
      if (!own) this.faults.push(`request to ${request.url()}`);
    });
    await this.page.goto(this.gateway.url + hash);
    await this.page.waitForFunction(() => document.getElementById('send').textContent !== '');
  }

  // Waits until models are listed.
  async ready(model) {
    await this.page.waitForFunction(() => document.getElementById('model').options.length > 0);
    if (model) await this.page.selectOption('#model', model);
    return this;
  }

  // Saves settings. The seed is fixed: with a random one, a reply may end before its maximum length.
  async settings(values) {
    await this.page.click('#settings');
    for (const [id, value] of Object.entries({ seed: 7, ...values })) await this.page.fill(`#p-${id}`, String(value));
    await this.page.click('#settings-save');
  }

  // Sends a message and waits for the end of its reply, unless `wait` is false.
  async send(text, wait = true) {
    // The reply before it is over, and must not be taken for this one.
    const before = await this.page.locator('.message').count();
    await this.page.fill('#composer', text);
    await this.page.press('#composer', 'Enter');
    await this.page.waitForFunction(count => document.querySelectorAll('.message').length > count, before);
    if (wait) await this.ended();
  }

  async ended() {
    await this.page.waitForSelector('#log .message:last-child.assistant:not(.open)');
  }

  // Returns the messages of the shown path, as they are stored.
  async stored() {
    return this.page.evaluate(async () => {
      const { nodesOf } = await import('/page/store.js');
      const nodes = await nodesOf(location.hash.slice(1));
      const shown = Array.from(document.querySelectorAll('.message'), node => node.dataset.id);
      return shown.map(id => nodes.find(node => node.id === id));
    });
  }

  async last() {
    return (await this.stored()).at(-1);
  }

  // Checks the last reply against the API's reply to an equal request, in one piece.
  async checkWhole() {
    const node = await this.last();
    const whole = await this.recompute(node);
    assert.equal(node.text, whole);
    const shown = await this.page.locator('.message.assistant .body').last().evaluate(body => body.textContent);
    assert.equal(letters(shown), letters(whole));
    return node;
  }

  async recompute(node) {
    const body = JSON.stringify({ ...JSON.parse(node.body), stream: false, background: false });
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${system.key}` };
    const response = await fetch(`${this.gateway.url}v1/responses`, { method: 'POST', body, headers });
    const { output, error } = await response.json();
    assert.equal(error, null);
    return output.filter(item => item.type === 'message').map(item => item.content[0].text).join('');
  }

  // Collects the letters of each state of the last reply.
  async watch() {
    await this.page.evaluate(() => {
      window.seen = [];
      new MutationObserver(() => {
        const body = document.querySelector('#log .message:last-child.assistant .body');
        if (body) window.seen.push(body.textContent);
      }).observe(document.getElementById('log'), { childList: true, subtree: true, characterData: true });
    });
  }

  // Checks that the reply only ever grew.
  async checkGrowth() {
    const seen = await this.page.evaluate(() => window.seen);
    const whole = letters((await this.last()).text);
    const lengths = new Set(seen.map(text => text.length));
    // A fast machine makes the whole reply within a few frames of the screen.
    assert.ok(lengths.size > 1, `the reply came in ${lengths.size} steps`);
    for (const text of seen) assert.ok(whole.startsWith(letters(text)), `not a beginning of the reply: ${text}`);
  }

  fact(name) {
    return this.page.locator('.message.assistant').last().locator(`.facts dt:text-is("${name}") + dd`);
  }

  // Takes a picture when all pictures of the page are there and nothing moves.
  async shoot(name) {
    await this.page.evaluate(() => document.fonts.ready);
    await this.page.screenshot({ path: path.join(out, `${name}.png`), animations: 'disabled' });
  }

  async close() {
    const violations = [];
    for (const page of this.context.pages()) violations.push(...await page.evaluate(() => window.violations));
    await this.context.close();
    assert.deepEqual([...this.faults, ...violations.map(directive => `violation of ${directive}`)], []);
  }
}

// Markup of lists and marks is not in the shown text, so letters are compared.
function letters(text) {
  return text.replace(/[^\p{L}]/gu, '');
}

const goOn = () => slowWorker.kill('SIGCONT');

async function goOnFor(ms) {
  goOn();
  await sleep(ms);
  slowWorker.kill('SIGSTOP');
}

const world = { Visit, system, gateways, goOn, goOnFor, out, assert, until, letters, axe, require };
const tests = { ...cases, ...survival, ...looks, ...markdown, ...spec };
const all = Object.entries({ ...tests, ...(only.includes('pictures') ? pictures : {}) })
  .filter(([name]) => only.length === 0 || only.includes(name));
let failed = 0;
const start = Date.now();
for (const [name, test] of all) {
  const began = Date.now();
  try {
    await test(world);
    console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}: ${error.stack ?? error}`);
    for (const context of browser.contexts()) {
      for (const page of context.pages()) await page.screenshot({ path: path.join(out, `failed-${name}.png`) }).catch(() => {});
    }
  }
  goOn();
  for (const context of browser.contexts()) await context.close();
}
await browser.close();
system.remove();
console.log(`${all.length - failed} of ${all.length} tests of the page passed in ${((Date.now() - start) / 1000).toFixed(0)} s`);
process.exit(failed || all.length === 0 ? 1 : 0);
