// Width, colors, accessibility, policy.

const TEXT = `# A heading

A line with **bold**, *em*, \`code\` and a [link](https://example.com/a_(b)).
A second line.

1. first
2. second
   - inner

> quoted

| name | n |
|---|---:|
| bear | 1 |

- [x] done with $x^2$
- [ ] open

$$\\sum_{i=1}^{n} ${'a_i + '.repeat(40)} b$$

\`\`\`rust
/// A comment.
#[derive(Debug)]
fn main() -> u64 { println!("${'a very long line '.repeat(12)}"); Some(12) }
\`\`\`

\`\`\`diff
- less
+ more
\`\`\`

\`\`\`html
<a href="b">c</a>
\`\`\`
`;

// Puts a conversation with this reply into the page.
async function fill(visit, text) {
  await visit.page.evaluate(async text => {
    const { put } = await import('/page/store.js');
    const facts = { sent: 1, first: 19, latest: 300, end: 301, reconnections: 1, input: 12, output: 40, cached: 8, seed: 7, drafted_tokens: 30, accepted_tokens: 25, system_fingerprint: 'sha256:0123456789', worker_fingerprint: '0123456789abcdef' };
    const base = { conversation: 'c', created: 1 };
    await put({
      conversations: [{ id: 'c', title: 'A bear and a seal with a title that is much too long for the side of the page', updated: 1, model: 'tale-7m', settings: {}, choice: {} }],
      nodes: [{ ...base, id: 'u', parent: null, role: 'user', text: `Hello ${'verylongword'.repeat(12)}` },
        { ...base, id: 'a', parent: 'u', role: 'assistant', text, reasoning: 'Thinking.', state: 'done', body: '{}', notes: [], facts, model: 'tale-7m', replay: { equal: false, at: 3, here: 'abc', there: 'abd' } }],
    });
    location.hash = 'c';
  }, text);
  await visit.page.waitForSelector('.message.assistant .code-keyword');
  await visit.page.waitForSelector('.message.assistant math msub');
}

async function overflow(page) {
  return page.evaluate(() => {
    const out = [];
    const wide = document.documentElement.clientWidth;
    for (const node of [document.documentElement, document.body, document.getElementById('scroll')]) {
      if (node.scrollWidth > node.clientWidth) out.push(`${node.id || node.tagName}: ${node.scrollWidth} > ${node.clientWidth}`);
    }
    for (const node of document.querySelectorAll('button, select, textarea, input, dialog')) {
      const { right, left, width } = node.getBoundingClientRect();
      const isSide = node.closest('#side') !== null;
      if (width > 0 && !isSide && (right > wide + 0.5 || left < -0.5)) out.push(`${node.id || node.textContent}: from ${left} to ${right}`);
    }
    return out;
  });
}

export async function a_phone_has_no_horizontal_scroll({ Visit, assert }) {
  for (const locale of ['en-US', 'ja-JP']) {
    const visit = await (await Visit.open(undefined, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, locale })).ready('tale-7m');
    const { page } = visit;
    assert.deepEqual(await overflow(page), [], `${locale} empty`);
    await fill(visit, TEXT);
    assert.deepEqual(await overflow(page), [], `${locale} conversation`);
    for (const button of ['#settings', '#key']) {
      if (button === '#key') await page.click('#menu');
      await page.click(button);
      await page.waitForSelector('dialog[open]');
      assert.deepEqual(await overflow(page), [], `${locale} ${button}`);
      await page.click('dialog[open] [data-close]');
    }
    await page.click('#veil', { position: { x: 380, y: 400 } });
    assert.equal(await page.evaluate(() => document.body.classList.contains('side')), false);
    await visit.close();
  }
}

export async function code_is_copied_and_nothing_lies_over_it({ Visit, assert }) {
  const visit = await (await Visit.open(undefined, { permissions: ['clipboard-read', 'clipboard-write'] })).ready('tale-7m');
  const { page } = visit;
  await fill(visit, TEXT);
  const listing = page.locator('.listing').first();
  assert.equal(await listing.evaluate(node => getComputedStyle(node, '::before').content), '"rust"');
  const button = listing.getByRole('button', { name: 'Copy the code' });
  const [above, code] = [await button.boundingBox(), await listing.locator('pre').boundingBox()];
  assert.ok(above.y + above.height <= code.y, 'the line of the language and the button ends above the code');
  await button.click();
  await page.waitForSelector('.listing button[data-label="Copied"]');
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(copied.startsWith('/// A comment.\n#[derive(Debug)]\nfn main()') && copied.endsWith('Some(12) }'), copied);
  await page.waitForSelector('#said:text("Copied")', { state: 'attached' });
  // What is selected of a reply has no words of the page.
  assert.doesNotMatch(await page.locator('.message.assistant .body').textContent(), /Copy|Copied/);
  await page.waitForSelector('.listing button[data-label="Copied"]', { state: 'detached' });
  await visit.close();
}

export async function dark_and_light_follow_the_system_and_the_switch({ Visit, assert }) {
  const visit = await (await Visit.open(undefined, { colorScheme: 'dark' })).ready();
  const { page } = visit;
  const light = () => page.evaluate(() => {
    const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g).map(Number);
    return (r + g + b) / 3 > 128;
  });
  assert.equal(await light(), false);
  await page.click('#theme');
  assert.equal(await light(), true);
  await page.reload();
  assert.equal(await light(), true);
  await page.click('#theme');
  assert.equal(await light(), false);
  // The switch wins over the system.
  await page.emulateMedia({ colorScheme: 'light' });
  assert.equal(await light(), false);
  await page.click('#theme');
  assert.equal(await light(), true);
  await page.click('#language');
  await page.waitForSelector('#send:text("送信")');
  await page.reload();
  await page.waitForSelector('#send:text("送信")');
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'ja');
  await visit.close();
}

export async function no_rule_of_accessibility_is_broken({ Visit, assert, axe }) {
  const told = [];
  const check = async (visit, place) => {
    // The rules come by the driver, past the policy of the page.
    const { page } = visit;
    const { readFileSync } = await import('node:fs');
    await page.evaluate(readFileSync(axe, 'utf8'));
    const { violations } = await page.evaluate(() => window.axe.run(document));
    const bad = violations.filter(({ impact }) => ['serious', 'critical', 'moderate'].includes(impact));
    told.push(...bad.map(({ id, impact, nodes }) => `${place}: ${impact} ${id}: ${nodes.map(node => node.html.slice(0, 120)).join(' | ')}`));
  };
  for (const [place, options] of [['light', {}], ['dark', { colorScheme: 'dark' }], ['phone', { viewport: { width: 390, height: 844 }, locale: 'ja-JP' }]]) {
    const visit = await (await Visit.open(undefined, { ...options, bypassCSP: true })).ready('tale-7m');
    await check(visit, `${place} empty`);
    await fill(visit, TEXT);
    await check(visit, `${place} conversation`);
    if (place === 'phone') {
      await visit.page.click('#menu');
      await visit.page.waitForFunction(() => document.getAnimations().length === 0);
      await check(visit, `${place} side`);
      await visit.page.click('#side-close');
    }
    await visit.page.click('#settings');
    await check(visit, `${place} settings`);
    await visit.page.keyboard.press('Escape');
    await visit.close();
  }
  // A page with a fault has to be told.
  const visit = await (await Visit.open(undefined, { bypassCSP: true })).ready();
  await visit.page.evaluate(() => document.getElementById('composer').labels[0].remove() ?? document.getElementById('composer').removeAttribute('placeholder'));
  const before = told.length;
  await check(visit, 'mutant');
  assert.ok(told.length > before, 'a field without a label was not found');
  told.splice(before);
  assert.deepEqual(told, []);
  await visit.close();
}

export async function the_policy_holds({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const violations = await visit.page.evaluate(async () => {
    const script = document.createElement('script');
    script.append('window.ran = true');
    const refused = [];
    for (const attempt of [() => document.body.append(script), () => { document.body.innerHTML = '<b>x</b>'; }, () => fetch('https://example.com/')]) {
      try {
        await attempt();
        refused.push('done');
      } catch {
        refused.push('refused');
      }
    }
    await new Promise(resolve => setTimeout(resolve, 100));
    const found = [...window.violations];
    window.violations.length = 0;
    return { found, ran: window.ran === true, refused };
  });
  assert.equal(violations.ran, false);
  assert.ok(violations.found.includes('require-trusted-types-for') && violations.found.includes('connect-src'), violations.found.join());
  visit.faults.length = 0;
  await visit.close();
}
