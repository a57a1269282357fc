// What a person does with the page.

import { gzipSync } from 'node:zlib';

const SCRIPTS = ['api', 'app', 'chat', 'colors', 'dialogs', 'files', 'markdown', 'math', 'nodes', 'parser', 'reply', 'store', 'text', 'view',
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

export async function a_stopped_reply_is_continued({ Visit, assert, letters, goOn }) {
  const visit = await Visit.inReply();
  await visit.page.keyboard.press('Escape');
  goOn();
  await visit.ended();
  const stopped = await visit.last();
  // A format that is set since then is not that of this reply.
  await visit.settings({ schema: '{"type": "object"}' });
  await visit.page.click('[data-name="continueReply"]');
  await visit.page.waitForSelector('.message.assistant .place:text("2/2")');
  await visit.ended();
  const whole = await visit.last();
  assert.ok(['cut', 'done'].includes(whole.state), whole.state);
  assert.ok(whole.text.startsWith(stopped.text) && whole.text.length > stopped.text.length, whole.text);
  const { continue_final_message, input, seed, text } = JSON.parse(whole.body);
  assert.deepEqual([continue_final_message, seed, text], [true, 7, undefined]);
  assert.deepEqual(input.at(-1), { role: 'assistant', content: stopped.text });
  // What is behind the stopped text is the API's reply to the request.
  assert.equal(whole.text, stopped.text + await visit.recompute(whole));
  assert.equal(letters(await visit.page.locator('.message.assistant .body').textContent()), letters(whole.text));
  await visit.page.click('[data-name="replay"]');
  await visit.page.waitForSelector('.replay.right');
  // The stopped one is still there, and a reply with a format of its own is not continued.
  await visit.page.click('.message.assistant [data-name="earlier"]');
  await visit.page.waitForSelector('.message.assistant .place:text("1/2")');
  assert.equal((await visit.last()).text, stopped.text);
  await visit.page.click('#new');
  await visit.page.waitForSelector('#empty:not([hidden])');
  await visit.settings({ max: 2, schema: '{"type": "object", "properties": {"bear": {"type": "string"}}, "required": ["bear"]}' });
  await visit.send('Is there a bear?');
  assert.equal((await visit.last()).state, 'cut');
  assert.equal(await visit.page.locator('[data-name="continueReply"]').count(), 0);
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
  // A second click begins no third version.
  await visit.page.locator('[data-name="again"]').evaluate(button => [button.click(), button.click()]);
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

export async function all_settings_are_sent_and_may_be_the_default({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('SmolLM2');
  const { page } = visit;
  const values = { 'max': 12, 'top-k': 40, 'min-p': 0.05, 'frequency': -0.5, 'presence': 0.25, 'repetition': 1.1, 'stop': 'zebra\n\n xylophone' };
  const check = async () => {
    const { state, body } = await visit.last();
    assert.equal(state, 'cut');
    const { top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty, stop } = JSON.parse(body);
    assert.deepEqual([top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty], [40, 0.05, -0.5, 0.25, 1.1]);
    assert.deepEqual(stop, ['zebra', ' xylophone']);
  };
  await visit.settings(values);
  await visit.send('Write a story about a bear.');
  await check();
  // Another conversation has none of them, unless they are saved as the default.
  await page.click('#new');
  await page.waitForSelector('#settings:text-is("Settings")');
  await page.click('#settings');
  await page.check('#p-default');
  await page.click('#settings-dialog [data-close]');
  await page.click('#new');
  await page.waitForSelector('#settings:text-is("Settings")');
  await page.click('#settings');
  assert.equal(await page.isChecked('#p-default'), false);
  await page.check('#p-default');
  for (const [id, value] of Object.entries({ seed: 7, ...values })) await page.fill(`#p-${id}`, String(value));
  await page.click('#settings-save');
  await page.click('#new');
  await page.waitForSelector('#empty:not([hidden])');
  assert.equal(await page.textContent('#settings'), 'Settings · 8');
  await page.reload();
  await visit.ready('SmolLM2');
  await visit.send('Write a story about a bear.');
  await check();
  await visit.close();
}

export async function text_files_are_sent_with_a_message({ Visit, assert, until }) {
  const visit = await (await Visit.open()).ready('SmolLM2');
  const { page } = visit;
  const file = (name, content) => ({ name, mimeType: 'application/octet-stream', buffer: Buffer.from(content) });
  const notes = 'くま and\n````\nbear\n';
  await visit.settings({ max: 4 });
  const chips = () => page.locator('#files .name').allTextContents();
  await page.setInputFiles('#attach-file', [file('notes.txt', notes), file('b.rs', 'fn b() {}')]);
  await page.waitForSelector('#files li');
  assert.deepEqual(await chips(), ['notes.txt', 'b.rs']);
  // Files that are no text, too large or not UTF-8 are refused by name, and the others stay.
  for (const [name, content, told] of [['a.bin', [0x61, 0], /“a\.bin” is not a text file in UTF-8/], ['latin.txt', [0x66, 0xfc, 0x72], /“latin\.txt” is not a text file/],
    ['long.txt', 'a'.repeat(256 * 1024 + 1), /“long\.txt” has 257 KiB, and a file may have 256 KiB/]]) {
    await page.setInputFiles('#attach-file', file(name, content));
    await until(async () => told.test(await page.textContent('#notice')), 10, () => name);
    assert.deepEqual(await chips(), ['notes.txt', 'b.rs']);
  }
  // A sentence is told in the language that is chosen.
  await page.click('#language');
  assert.match(await page.textContent('#notice'), /「long\.txt」は257 KiBです/);
  await page.click('#language');
  await page.getByRole('button', { name: 'Remove “b.rs”' }).click();
  assert.deepEqual(await chips(), ['notes.txt']);
  await visit.send('What is this?');
  assert.deepEqual(await chips(), []);
  const sent = async () => JSON.parse((await visit.last()).body).input[0].content;
  assert.equal(await sent(), `What is this?\n\nnotes.txt:\n\`\`\`\`\`\n${notes}\`\`\`\`\``);
  assert.equal(await page.textContent('.message.user .body'), 'What is this?');
  assert.match(await page.textContent('.message.user .chips'), /^notes\.txt\d+ B$/);
  // An edited message keeps its files.
  await page.click('.message.user [data-name="edit"]');
  await page.fill('.editor textarea', 'And now?');
  await page.press('.editor textarea', 'Enter');
  await page.waitForSelector('.message.user .place:text("2/2")');
  await visit.ended();
  assert.ok((await sent()).startsWith('And now?\n\nnotes.txt:\n'));
  // A file that is dropped is a message of its own.
  await page.click('#new');
  await visit.settings({ max: 4 });
  await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(['dropped'], 'd.md'));
    document.getElementById('log').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
  });
  await page.waitForSelector('#files li');
  await page.focus('#composer');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.message.assistant');
  await visit.ended();
  assert.equal(await sent(), 'd.md:\n```\ndropped\n```');
  assert.equal(await page.locator('#list a').first().textContent(), 'd.md');
  await page.reload();
  await page.waitForSelector('.message.user .chips :text("d.md")');
  await visit.close();
}

export async function examples_are_for_the_model({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('SmolLM2');
  const { page } = visit;
  const examples = () => page.locator('.examples button').allTextContents();
  const general = await examples();
  assert.equal(general.length, 3);
  assert.ok(!general.includes('Once a bear'));
  await page.selectOption('#model', 'tale-7m');
  assert.equal((await examples())[0], 'Once a bear');
  await page.selectOption('#model', 'SmolLM2');
  await page.locator('.examples button').first().click();
  assert.equal(await page.inputValue('#composer'), general[0]);
  await visit.close();
}

export async function a_message_is_deleted_with_what_follows({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  page.on('dialog', dialog => dialog.accept());
  // The shortcut is there while one writes.
  await page.press('#composer', 'Control+Shift+O');
  await visit.settings({ max: 8 });
  await visit.send(`Once a bear${' went'.repeat(20)}`);
  const title = await page.locator('#list a').first().textContent();
  assert.ok(title.length === 60 && title.startsWith('Once a bear went') && title.endsWith('…'), title);
  const [, first] = await visit.stored();
  await page.click('[data-name="again"]');
  await page.waitForSelector('.message.assistant .place:text("2/2")');
  await visit.ended();
  await visit.send('And then?');
  const hash = await page.evaluate(() => location.hash.slice(1));
  const kept = () => page.evaluate(async id => (await (await import('/page/store.js')).nodesOf(id)).length, hash);
  assert.equal(await kept(), 5);
  await page.locator('.message.assistant [data-name="remove"]').first().click();
  await page.waitForFunction(() => document.querySelectorAll('.message').length === 2);
  assert.equal((await visit.last()).id, first.id);
  assert.equal(await kept(), 2);
  await page.press('#composer', 'Control+Shift+O');
  await page.waitForSelector('#empty:not([hidden])');
  await page.locator('#list a').first().click();
  await page.hover('.message.user');
  await page.click('.message.user [data-name="remove"]');
  await page.waitForSelector('#empty:not([hidden])');
  assert.deepEqual([await kept(), await page.locator('#list a').count()], [0, 0]);
  await visit.close();
}

export async function another_tab_shows_what_happens_here({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const here = visit.page;
  here.on('dialog', dialog => dialog.accept());
  await visit.settings({ max: 8 });
  await visit.send('Once a bear');
  await visit.tab(await here.evaluate(() => location.hash));
  const there = visit.page;
  await there.waitForSelector('.message.assistant:not(.open)');
  await there.evaluate(() => { document.querySelector('.message').isOld = true; });
  visit.page = here;
  await visit.send('And then?');
  await there.waitForFunction(() => document.querySelectorAll('.message.assistant:not(.open)').length === 2);
  const texts = page => page.locator('.message .body').allTextContents();
  assert.deepEqual(await texts(there), await texts(here));
  assert.equal(await there.evaluate(() => document.querySelector('.message').isOld), true);
  // Settings that are being written there reach the conversation, though it changes meanwhile.
  await there.click('#settings');
  await there.fill('#p-instructions', 'You are brief.');
  await here.locator('.message.user [data-name="remove"]').last().click();
  await there.waitForFunction(() => document.querySelectorAll('.message').length === 2);
  await there.click('#settings-save');
  for (const page of [here, there]) await page.waitForSelector('#settings:text-is("Settings · 3")');
  // A title that is being written there stays.
  const rename = async (page, title) => {
    await page.hover('#list li');
    await page.getByRole('button', { name: 'Rename “Once a bear”' }).click();
    await page.fill('#list input', title);
  };
  await rename(there, 'Twice');
  await rename(here, 'Thrice');
  await here.press('#list input', 'Enter');
  await there.waitForFunction(() => document.title === 'Thrice · nsbridge');
  assert.equal(await there.inputValue('#list input'), 'Twice');
  await there.press('#list input', 'Escape');
  await there.waitForSelector('#list a:text-is("Thrice")');
  // Other versions and the choice of one are shown.
  await here.click('.message.assistant [data-name="again"]');
  await there.waitForSelector('.message.assistant .place:text("2/2")');
  await visit.ended();
  await here.click('.message.assistant [data-name="earlier"]');
  await there.waitForSelector('.message.assistant .place:text("1/2")');
  await here.hover('#list li');
  await here.getByRole('button', { name: /^Delete “Thrice”/ }).click();
  await there.waitForSelector('#empty:not([hidden])');
  await there.waitForFunction(() => document.title === 'nsbridge' && location.hash === '' && document.querySelectorAll('#list a').length === 0);
  await visit.close();
}

export async function a_conversation_that_is_deleted_in_mid_reply_leaves_nothing({ Visit, assert, goOn }) {
  const visit = await Visit.inReply();
  const { page } = visit;
  page.on('dialog', dialog => dialog.accept());
  const { id, conversation } = await visit.last();
  // Its reply goes on while another conversation is shown.
  await page.click('#new');
  await page.hover('#list li');
  await page.getByRole('button', { name: /^Delete / }).click();
  await page.waitForFunction(() => document.querySelectorAll('#list li').length === 0);
  goOn();
  const kept = await page.evaluate(async ({ id, conversation }) => {
    const { readingOf } = await import('/page/chat.js');
    while (readingOf({ id })) await new Promise(resolve => setTimeout(resolve, 50));
    // What is known of its workers would be stored some moments later.
    await new Promise(resolve => setTimeout(resolve, 500));
    return (await import('/page/store.js')).nodesOf(conversation);
  }, { id, conversation });
  assert.deepEqual(kept, []);
  await visit.close();
}

export async function a_tab_without_a_key_waits_for_one({ Visit, system, gateways, assert }) {
  const visit = await Visit.open(gateways.stored);
  const here = visit.page;
  const enter = async page => {
    await page.fill('#key-value', system.key);
    await page.click('#key-save');
  };
  await enter(here);
  await visit.ready('tale-7m');
  await visit.settings({ max: 8 });
  await visit.send('Once a bear');
  await visit.tab(await here.evaluate(() => location.hash));
  const there = visit.page;
  await there.waitForSelector('#key-dialog[open]');
  visit.page = here;
  await visit.send('And then?');
  const asked = visit.requests.filter(request => request.url().endsWith('/v1/responses'));
  assert.deepEqual(asked.filter(request => !request.headers().authorization), []);
  await enter(there);
  await there.waitForFunction(() => document.querySelectorAll('.message.assistant[data-state="cut"]').length === 2);
  await visit.close();
}

export async function what_is_not_counted_is_not_told({ Visit, assert, goOn }) {
  const visit = await Visit.inReply();
  await visit.page.keyboard.press('Escape');
  goOn();
  await visit.ended();
  assert.match(await visit.fact('speed').textContent(), /^\d[\d.,]* tokens\/s$/);
  assert.equal(await visit.fact('tokens').count(), 0);
  const node = await visit.last();
  const show = async facts => {
    await visit.page.evaluate(async node => (await import('/page/store.js')).put({ nodes: [node] }), { ...node, facts: { ...node.facts, ...facts } });
    await visit.page.reload();
    await visit.page.waitForSelector('.facts dl');
    return visit.fact('tokens').count();
  };
  assert.deepEqual([await show({ input: 0, output: 0 }), await show({ input: 3, output: 0 })], [0, 1]);
  await visit.close();
}

export async function errors_say_what_to_do({ Visit, assert }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  await visit.send('bear '.repeat(2000));
  const told = () => page.locator('.message.assistant .state').last().textContent();
  assert.match(await told(), /longer than the model can read \([\d,]+ tokens\)\. Start a new one/);
  // What the worker refuses as it is, it refuses again.
  await page.click('#new');
  await visit.settings({ stop: 'a'.repeat(300) });
  await visit.send('Once a bear');
  assert.match(await told(), /refused: .*stop.* Change the settings or the message\.$/);
  assert.equal(await page.locator('[data-name="tryAgain"]').count(), 0);
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

export async function conversations_are_renamed_and_found({ Visit, assert, until }) {
  const visit = await (await Visit.open()).ready('tale-7m');
  const { page } = visit;
  const titles = () => page.locator('#list a').allTextContents();
  const listed = (...wanted) => until(async () => String(await titles()) === String(wanted), 10, () => wanted);
  for (const text of ['Once a bear', 'The seal found a shell']) {
    await page.click('#new');
    await visit.settings({ max: 8 });
    await visit.send(text);
  }
  await listed('The seal found a shell', 'Once a bear');
  const rename = async (from, to, key) => {
    await page.hover(`#list li:has-text("${from}")`);
    await page.getByRole('button', { name: `Rename “${from}”` }).click();
    await page.fill('#list input', to);
    await page.press('#list input', key);
    await page.waitForSelector('#list input', { state: 'detached' });
  };
  await rename('Once a bear', 'Nothing', 'Escape');
  await rename('Once a bear', '  ', 'Enter');
  await rename('Once a bear', 'Ｗinter', 'Enter');
  await rename('The seal found a shell', 'Summer', 'Enter');
  await listed('Summer', 'Ｗinter');
  assert.equal(await page.title(), 'Summer · nsbridge');
  // Another message keeps the title.
  await visit.send('Then?');
  await page.reload();
  await visit.ready();
  assert.deepEqual(await titles(), ['Summer', 'Ｗinter']);
  // A title, a reply, a message of the user.
  const { text } = await visit.last();
  assert.ok(text.trim().length > 8, text);
  for (const [wanted, found] of [['winter', ['Ｗinter']], [text.trim().slice(0, 200), ['Summer']], ['ONCE A', ['Ｗinter']], ['no such text', []], ['', ['Summer', 'Ｗinter']]]) {
    await page.fill('#search', wanted);
    await listed(...found);
    assert.equal(await page.locator('#list .none').count(), found.length === 0 ? 1 : 0);
  }
  await page.fill('#search', 'winter');
  await page.waitForFunction(() => document.querySelectorAll('#list a').length === 1);
  await page.press('#search', 'Escape');
  await page.waitForFunction(() => document.querySelectorAll('#list a').length === 2);
  // A click elsewhere keeps the title, and does what it would do: the other line is still there when the button is let go.
  const elsewhere = async (from, to, place) => {
    await page.hover(`#list li:has-text("${from}")`);
    await page.getByRole('button', { name: `Rename “${from}”` }).click();
    await page.fill('#list input', to);
    await page.click(place, { delay: 300 });
    await listed(to, 'Ｗinter');
  };
  await elsewhere('Summer', 'Autumn', '#list a:text("Ｗinter")');
  await page.waitForSelector('.message.user .body:text("Once a bear")');
  await elsewhere('Autumn', 'Spring', '#composer');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'composer');
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
  await page.getByRole('button', { name: /^Delete “Once a bear”/ }).click();
  await page.waitForSelector('#empty:not([hidden])');
  assert.equal(await page.locator('#list li').count(), 0);
  await page.setInputFiles('#import-file', { name: 'other.json', mimeType: 'application/json', buffer: Buffer.from('{"a": 1}') });
  await page.waitForSelector('#notice :text("not an export")');
  // What was imported is shown.
  await page.setInputFiles('#import-file', file);
  await page.waitForSelector('#notice :text-is("One conversation imported.")');
  await page.waitForSelector('.message.assistant');
  const after = await visit.stored();
  assert.deepEqual(after.map(node => node.text), before.map(node => node.text));
  assert.notEqual(after[0].id, before[0].id);
  await visit.close();
}
