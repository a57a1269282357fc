// What a person does with the page.

import { gzipSync } from 'node:zlib';

const SCRIPTS = ['api', 'app', 'chat', 'colors', 'dialogs', 'markdown', 'math', 'nodes', 'parser', 'reply', 'store', 'text', 'view',
  'vendor/highlight.bundle', 'vendor/markdown.bundle', 'vendor/math.bundle'];
const FILES = ['', 'page/style.css', 'page/bear.svg', 'page/seal.svg', 'page/vendor/LICENSES.txt', ...SCRIPTS.map(name => `page/${name}.js`)];

export async function files_are_small_and_have_strict_headers({ gateways, assert }) {
  let size = 0;
  for (const file of FILES) {
    const response = await fetch(gateways.open.url + file);
    assert.equal(response.status, 200, file);
    const policy = response.headers.get('content-security-policy');
    assert.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self';/);
    assert.match(policy, /require-trusted-types-for 'script'/);
    assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
    const etag = response.headers.get('etag');
    const again = await fetch(gateways.open.url + file, { headers: { 'if-none-match': etag } });
    assert.equal(again.status, 304, file);
    size += gzipSync(Buffer.from(await response.arrayBuffer()), { level: 9 }).length;
  }
  assert.ok(size < 200_000, `${size} bytes`);
}

export async function a_reply_streams_and_is_whole({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('SmolLM2');
  await visit.settings({ 'max': 60, 'temperature': 0.8 });
  await visit.watch();
  await visit.send('Write a story about a bear.');
  await visit.checkGrowth();
  const node = await visit.checkWhole();
  assert.equal(node.state, 'cut');
  assert.equal(node.facts.output, 60);
  assert.equal(await visit.fact('seed').textContent(), String(node.facts.seed));
  const sent = visit.requests.find(request => request.url().endsWith('/v1/responses'));
  assert.match(sent.headers().traceparent, new RegExp(`^00-${node.facts.trace}-[0-9a-f]{16}-01$`));
  assert.equal(await visit.fact('trace').textContent(), node.facts.trace.slice(0, 8));
  assert.match(await visit.fact('speed').textContent(), /^\d[\d.,]* tokens\/s$/);
  assert.match(await visit.fact('tokens').textContent(), /^\d+ in, 60 out/);
  assert.equal(await visit.fact('drafts kept').count(), 0);
  assert.match(await visit.fact('worker').textContent(), /^[0-9a-f]{8}$/);
  assert.equal(await visit.fact('reconnections').count(), 0);
  // The next turn sends the first one along.
  await visit.send('And then?');
  const { input } = JSON.parse((await visit.last()).body);
  assert.deepEqual(input.map(item => item.role), ['user', 'assistant', 'user']);
  assert.equal(input[1].content, node.text);
  await visit.close();
}

export async function kept_drafts_are_told({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  await visit.settings({ 'max': 60 });
  await visit.send('Once a bear');
  const { facts } = await visit.last();
  assert.ok(facts.accepted_tokens > 0 && facts.drafted_tokens >= facts.accepted_tokens);
  assert.equal(await visit.fact('drafts kept').textContent(), `${facts.accepted_tokens} of ${facts.drafted_tokens}`);
  await visit.close();
}

export async function stop_ends_a_reply_at_once({ Visit, assert, letters, goOn }) {
  const visit = await Visit.inReply();
  await visit.page.keyboard.press('Escape');
  goOn();
  await visit.ended();
  const node = await visit.last();
  assert.equal(node.state, 'stopped');
  // The gateway canceled it too.
  const response = await (await fetch(`${visit.gateway.url}v1/responses/${node.response}`)).json();
  assert.equal(response.status, 'cancelled');
  const kept = letters(response.output[0].content[0]?.text ?? '');
  assert.ok(kept.startsWith(letters(node.text)) || letters(node.text).startsWith(kept));
  await visit.page.waitForSelector('#send:not([hidden])');
  await visit.close();
}

export async function an_edited_message_is_a_branch({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  await visit.settings({ 'max': 12 });
  await visit.send('Once a bear');
  const first = (await visit.last()).text;
  await visit.page.click('.message.user [data-name="edit"]');
  await visit.page.fill('.editor textarea', 'Once a seal');
  await visit.page.press('.editor textarea', 'Enter');
  await visit.page.waitForSelector('.message.user .place:text("2/2")');
  await visit.ended();
  const [user, reply] = await visit.stored();
  assert.equal(user.text, 'Once a seal');
  await visit.page.click('.message.user [data-name="earlier"]');
  await visit.page.waitForSelector('.message.user .body:text("Once a bear")');
  assert.equal((await visit.last()).text, first);
  // The choice outlives a reload.
  await visit.page.reload();
  await visit.page.waitForSelector('.message.user .place:text("1/2")');
  assert.equal((await visit.last()).text, first);
  await visit.page.click('.message.user [data-name="later"]');
  await visit.page.waitForSelector('.message.user .place:text("2/2")');
  assert.equal((await visit.last()).text, reply.text);
  await visit.close();
}

export async function again_has_another_seed({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  // At a low temperature, two short stories of a bear may be equal.
  await visit.settings({ 'max': 40, 'seed': 7, 'temperature': 2 });
  await visit.send('クマが海辺に行って');
  const first = await visit.last();
  assert.equal(first.facts.seed, 7);
  await visit.page.click('[data-name="again"]');
  await visit.page.waitForSelector('.message.assistant .place:text("2/2")');
  await visit.ended();
  const second = await visit.last();
  assert.notEqual(second.facts.seed, 7);
  assert.notEqual(second.text, first.text);
  await visit.page.click('.message.assistant [data-name="earlier"]');
  await visit.page.waitForSelector('.message.assistant .place:text("1/2")');
  assert.equal((await visit.last()).id, first.id);
  await visit.close();
}

export async function replay_says_equal_or_the_first_difference({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  await visit.settings({ 'max': 40 });
  await visit.send('Once a bear');
  await visit.page.click('[data-name="replay"]');
  await visit.page.waitForSelector('.replay.right');
  assert.equal(await visit.fact('replay').textContent(), '✓ equal');
  // A text that was changed is told from the replayed one, by its place.
  const node = await visit.last();
  const changed = `${node.text.slice(0, 9)}#${node.text.slice(10)}`;
  await visit.page.evaluate(async node => {
    const { put } = await import('/page/store.js');
    await put({ nodes: [node] });
  }, { ...node, text: changed, replay: null });
  await visit.page.reload();
  await visit.page.click('[data-name="replay"]');
  await visit.page.waitForSelector('.replay.wrong');
  assert.match(await visit.fact('replay').textContent(), /^differs at character 10/);
  await visit.close();
}

export async function a_wrong_key_is_told_and_a_right_one_is_kept_as_asked({ Visit, system, gateways, assert }) {
  const visit = await Visit.open(gateways.stored);
  const { page } = visit;
  await page.waitForSelector('#key-dialog[open]');
  await page.click('#key-save');
  assert.match(await page.textContent('#key-error'), /begins with nsk_/);
  await page.fill('#key-value', 'nsk_wrong');
  await page.click('#key-save');
  await page.waitForSelector('#key-error:text("does not accept this key")');
  await page.fill('#key-value', system.key);
  await page.click('#key-save');
  await visit.ready('tale-7m');
  const places = () => page.evaluate(() => [sessionStorage, localStorage].map(storage => Object.values(storage).filter(value => value.startsWith('nsk_')).length));
  assert.deepEqual(await places(), [1, 0]);
  await visit.settings({ 'max': 8 });
  await visit.send('Once a bear');
  assert.equal((await visit.last()).state, 'cut');
  // A key that stops working in a conversation is asked for again, and the reply goes on.
  await page.evaluate(() => sessionStorage.setItem('nsbridge-key', 'nsk_gone'));
  await visit.send('And then?', false);
  await page.waitForSelector('#key-dialog[open]');
  await page.fill('#key-value', system.key);
  await page.check('#key-keep');
  await page.click('#key-save');
  await visit.ended();
  await page.waitForSelector('#log .message:last-child[data-state="cut"]');
  assert.deepEqual(await places(), [0, 1]);
  await page.click('#key');
  await page.click('#key-forget');
  assert.deepEqual(await places(), [0, 0]);
  await visit.close();
}

export async function enter_of_a_composition_does_not_send({ Visit, assert }) {
  const visit = await (await Visit.open(undefined, { locale: 'ja-JP' })).ready('tale-7m');
  const { page } = visit;
  assert.equal(await page.textContent('#send'), '送信');
  await visit.settings({ 'max': 8 });
  await page.focus('#composer');
  const keys = await visit.context.newCDPSession(page);
  const enter = { key: 'Enter', code: 'Enter', windowsVirtualKeyCode: 13 };
  await keys.send('Input.imeSetComposition', { text: 'くま', selectionStart: 2, selectionEnd: 2 });
  await keys.send('Input.dispatchKeyEvent', { type: 'rawKeyDown', ...enter });
  await keys.send('Input.insertText', { text: 'クマが' });
  await keys.send('Input.dispatchKeyEvent', { type: 'keyUp', ...enter });
  assert.equal(await page.inputValue('#composer'), 'クマが');
  assert.equal(await page.locator('.message').count(), 0);
  await page.keyboard.press('Enter');
  await visit.ended();
  assert.equal((await visit.stored())[0].text, 'クマが');
  await visit.close();
}

export async function the_keyboard_is_enough({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  await visit.settings({ 'max': 8 });
  await page.focus('#menu, #model');
  await page.locator('#settings').focus();
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'composer');
  assert.equal(await page.inputValue('#composer'), '');
  await page.keyboard.type('one');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('two / three');
  assert.equal(await page.inputValue('#composer'), 'one\ntwo / three');
  await page.keyboard.press('Enter');
  await visit.ended();
  assert.equal((await visit.stored())[0].text, 'one\ntwo / three');
  // The first thing that Tab reaches leads to the message.
  assert.equal(await page.evaluate(() => document.querySelector('a[href], button, select, textarea').className), 'skip');
  await page.focus('.skip');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'composer');
  await visit.close();
}

export async function settings_reach_the_model({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('SmolLM2');
  const { page } = visit;
  await page.click('#settings');
  await page.fill('#p-temperature', '9');
  await page.click('#settings-save');
  assert.match(await page.textContent('#settings-error'), /Temperature must be from 0 to 2/);
  await page.fill('#p-temperature', '');
  await page.fill('#p-schema', '{"type": ');
  await page.click('#settings-save');
  assert.match(await page.textContent('#settings-error'), /not valid JSON/);
  await page.click('#settings-dialog [data-close]');
  const schema = { type: 'object', properties: { bear: { type: 'boolean' } }, required: ['bear'], additionalProperties: false };
  await visit.settings({ schema: JSON.stringify(schema), instructions: 'You are brief.', 'top-p': 0.9, max: 40, seed: 3 });
  assert.equal(await page.textContent('#settings'), 'Settings · 5');
  await visit.send('Is there a bear?');
  const node = await visit.last();
  assert.equal(typeof JSON.parse(node.text).bear, 'boolean', node.text);
  const body = JSON.parse(node.body);
  assert.deepEqual([body.top_p, body.instructions, body.seed], [0.9, 'You are brief.', 3]);
  await visit.close();
}

export async function errors_say_what_to_do({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  await visit.send('bear '.repeat(2000));
  const told = () => page.locator('.message.assistant .state').last().textContent();
  assert.match(await told(), /longer than the model can read \([\d,]+ tokens\)\. Start a new one/);
  await page.click('#new');
  await page.selectOption('#model', 'nobody');
  await visit.send('Hello', false);
  await page.waitForSelector('.state :text("No worker has served the model “nobody” yet: start one")');
  await page.keyboard.press('Escape');
  await visit.ended();
  assert.equal((await visit.last()).state, 'stopped');
  // A queue that is full for a moment: the request is sent again by itself.
  await page.click('#new');
  await visit.ready('tale-7m');
  await visit.settings({ max: 8 });
  let refusals = 0;
  await page.route('**/v1/responses', route => {
    refusals += 1;
    if (refusals > 1) return route.continue();
    const error = { error: { code: 'queue_full', message: 'the queue of the model is full', type: 'server_error' } };
    return route.fulfill({ status: 503, headers: { 'retry-after': '1' }, json: error });
  });
  await visit.send('Once a bear', false);
  await page.waitForSelector('.state :text("queue of this model is full")');
  await visit.ended();
  assert.equal((await visit.last()).state, 'cut');
  await page.unroute('**/v1/responses');
  await visit.close();
}

export async function conversations_are_exported_imported_and_deleted({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  await visit.settings({ max: 8 });
  await visit.send('Once a bear');
  const before = await visit.stored();
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
  const file = await download.path();
  page.on('dialog', dialog => dialog.accept());
  await page.hover('#list li');
  await page.click('#list .icon');
  await page.waitForSelector('#empty:not([hidden])');
  assert.equal(await page.locator('#list li').count(), 0);
  await page.setInputFiles('#import-file', { name: 'other.json', mimeType: 'application/json', buffer: Buffer.from('{"a": 1}') });
  await page.waitForSelector('#notice :text("not an export")');
  await page.setInputFiles('#import-file', file);
  await page.click('#list a:text("Once a bear")');
  await page.waitForSelector('.message.assistant');
  const after = await visit.stored();
  assert.deepEqual(after.map(node => node.text), before.map(node => node.text));
  assert.notEqual(after[0].id, before[0].id);
  await visit.close();
}
