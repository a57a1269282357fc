// Width, colors, accessibility, policy, markdown.

import { setTimeout as sleep } from 'node:timers/promises';

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

\`\`\`rust
fn main() { println!("${'a very long line '.repeat(12)}"); }
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
  await visit.page.waitForSelector('.message.assistant');
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

export async function markdown_becomes_nodes_and_never_markup({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const shown = text => visit.page.evaluate(async text => {
    const { render } = await import('/page/markdown.js');
    const [whole, grown] = [document.createElement('div'), document.createElement('div')];
    render(whole, text);
    for (let end = 1; end <= text.length; end += 1) render(grown, text.slice(0, end));
    return [whole.innerHTML, grown.innerHTML];
  }, text);
  const check = async (text, expected) => {
    const [whole, grown] = await shown(text);
    assert.equal(whole, expected);
    assert.equal(grown, whole, `grown: ${text}`);
  };
  const link = 'target="_blank" rel="noopener noreferrer nofollow"';
  await check('a\nb\n\nc', '<p>a<br>b</p><p>c</p>');
  await check('# one\n### two', '<h2>one</h2><h4>two</h4>');
  await check('**a** *b* `c*d*` ~~e~~ snake_case_name', '<p><strong>a</strong> <em>b</em> <code>c*d*</code> <del>e</del> snake_case_name</p>');
  await check('- a\n- b\n  - c', '<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>');
  await check('3. a\n4. b', '<ol start="3"><li>a</li><li>b</li></ol>');
  await check('```js\n<b>*x*</b>\n```', '<pre tabindex="0" data-language="js"><code>&lt;b&gt;*x*&lt;/b&gt;</code></pre>');
  await check('```\nopen', '<pre tabindex="0"><code>open</code></pre>');
  await check('> a\n> b', '<blockquote><p>a<br>b</p></blockquote>');
  await check('| a | b |\n|---|--:|\n| 1 | 2 |', '<div class="table" tabindex="0"><table><thead><tr><th scope="col">a</th><th scope="col" class="right">b</th></tr></thead><tbody><tr><td>1</td><td class="right">2</td></tr></tbody></table></div>');
  await check('[a](https://x.y/z)', `<p><a href="https://x.y/z" ${link}>a</a></p>`);
  await check('see https://x.y/z.', `<p>see <a href="https://x.y/z" ${link}>https://x.y/z</a>.</p>`);
  await check('[a](javascript:alert(1)) [b](data:text/html,x)', '<p>[a](javascript:alert(1)) [b](data:text/html,x)</p>');
  await check('<img src=x onerror=alert(1)><script>x</script>', '<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;x&lt;/script&gt;</p>');
  await check('![a](https://x.y/z.png)', `<p><a href="https://x.y/z.png" ${link}>a</a></p>`);
  await check('2 * 3 * 4 and \\*no\\*', '<p>2 * 3 * 4 and *no*</p>');
  await check('---', '<hr>');
  await check('## a # b ##  ', '<h3>a # b</h3>');
  await check('# #', '<h2></h2>');
  await check('# C#', '<h2>C#</h2>');
  // Hostile text ends soon.
  const [spaces, hashes] = [' '.repeat(100_000), '#'.repeat(100_000)];
  const blocks = [`# a${spaces}b`, `# a ${hashes}b`, `# a${spaces}${hashes}b`, `\`\`\`${spaces}\``, `${spaces}b`, `- ${spaces}b`, `1. a${spaces}b`, `> ${spaces}b`,
    `--${spaces}b`, `---${spaces}b`, `${'- '.repeat(50_000)}b`, `|a|\n|-|${spaces}b`, `|a|\n|-${spaces}b`, `|a|\n${'|-'.repeat(50_000)}b`, `|a|\n${'-|'.repeat(9_000)}b`, `|${spaces}b`,
    `- a\n${spaces}b`, `- a\n\n${spaces}b`, `~~~${'~'.repeat(90_000)}\``, `# a${spaces}\u2028`, `- a${'\n'.repeat(90_000)}- b`,
    `${'|a'.repeat(5_000)}\n${'|-'.repeat(5_000)}${'\n|'.repeat(5_000)}`, `a${'\n|a'.repeat(9_000)}`, `a\n# a${spaces.slice(0, 9_000)}b`];
  for (const text of [...blocks, '['.repeat(30_000), '*a '.repeat(9_000), '`'.repeat(15_000), '> '.repeat(5_000), '- '.repeat(5_000), '|'.repeat(20_000)]) {
    const render = visit.page.evaluate(async text => {
      const { render } = await import('/page/markdown.js');
      const start = performance.now();
      render(document.createElement('div'), text);
      return performance.now() - start;
    }, text);
    const took = await Promise.race([render, sleep(10_000, Infinity, { ref: false })]);
    assert.ok(took < 500, `${JSON.stringify(text.slice(0, 20))}: ${took} ms`);
  }
  await visit.close();
}
