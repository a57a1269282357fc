// Markdown of replies: nodes, growth, hostile texts, texts that inject.

const MAX_STILL_MS = 50;

// Texts of 100,000 characters that a model must not hold the page up with, by name.
function hostile() {
  const size = 100_000;
  const fill = (part, chars = size) => part.repeat(Math.ceil(chars / part.length)).slice(0, chars);
  const lines = (count, line) => Array.from({ length: count }, (_, index) => line(index)).join('\n');
  const texts = {
    'quotes in quotes': fill('> '),
    'lists in lists': fill('- '),
    'stairs of lists': lines(440, index => `${' '.repeat(2 * (index % 220))}- a`),
    'stairs of quotes': lines(440, index => `${'> '.repeat(index % 220)}a`),
    'one item a line': fill('- a\n'),
    'one numbered item a line': fill('1. a\n'),
    'one paragraph a line': fill('a\n\n'),
    'one definition a line': lines(7000, index => `[${index}]: https://a.b`),
    'one rule a line': fill('---\n'),
    'open brackets': fill('['),
    'brackets in brackets': fill('[', size / 2) + fill(']', size / 2),
    'open links': fill('[a](https://b.c'),
    'open images': fill('![['),
    'stars': fill('*'),
    'open emphasis': fill('*a **b '),
    'emphasis in emphasis': `${fill('*', size / 2)}a${fill('*', size / 2)}`,
    'emphasis by lines': fill('*a _b\n'),
    'underscores and links': fill('_[a](https://b.c) '),
    'backticks': fill('`'),
    'backticks of all lengths': lines(440, index => '`'.repeat(index + 1)),
    'open strikethrough': fill('~~a '),
    'bars': fill('|'),
    'a wide table': `${fill('|a', 10_000)}\n${fill('|-', 10_000)}\n${fill('|\n', 80_000)}`,
    'a long table': `a|b\n-|-\n${fill('a|b\n')}`,
    'a table of many cells': `${fill('|a', 200)}\n${fill('|-', 200)}\n${fill('|\n')}`,
    'an open fence': `\`\`\`js\n${fill('let a = "b";\n')}`,
    'code without a line break': `\`\`\`js\n${fill('a(')}\n\`\`\``,
    'words in words of code': `\`\`\`js\n${fill('`${', 7900)}\n\`\`\``,
    ...Object.fromEntries(['bash', 'c', 'cpp', 'css', 'diff', 'go', 'java', 'js', 'json', 'python', 'rust', 'sql', 'ts', 'xml', 'yaml']
      .map(name => [`${name} up to the limit of colors`, `\`\`\`${name}\n${fill('a(b) < "c" {d: 1}; // e\n', 7900)}\n\`\`\`\n\n\`\`\`${name}\n${fill('<a-(\'[$', 7900)}\n\`\`\``])),
    'pieces of code': fill('```js\nlet a = 1;\n```\n'),
    'dollars': fill('$'),
    'open formulas': fill('\\(a \\[b $c $$d '),
    'formulas': fill('$x_1$ '),
    'a long formula': `$$${fill('{x^')}$$`,
    'braces in a formula': `$$${fill('{', 1450)}${fill('}', 1450)}$$`,
    'a formula up to the limit': `$$${fill('\\frac{a}{b}', 2990)}$$`,
    'macros of macros': `$$\\def\\a{xxxxxxxxxx}${lines(20, index => `\\def\\${'abcdefghijklmnopqrstu'[index + 1]}{${`\\${'abcdefghijklmnopqrstu'[index]}`.repeat(5)}}`).replaceAll('\n', '')}\\u$$`,
    'an endless macro': '$\\def\\a{\\a\\a}\\a$ '.repeat(20),
    'a huge size': `$\\rule{1e9em}{1e9em}$ ${fill('$\\kern99999em x$ ', 2000)}`,
    'zero-width and bidirectional characters': fill('\u200B\u202E\u2066a\uFEFF'),
    'addresses': fill('https://a.b '),
    'colons and slashes': fill('http://'),
    'mail addresses': fill('a@'),
    'entities': fill('&#x41;&amp'),
    'backslashes': fill('\\'),
    'tabs': fill('\t'),
    'open markup': fill('<a href="<!--'),
    'one word': fill('a'),
    'empty lines': fill('\n'),
  };
  // Lines of this length are parsed.
  const part = (text, chars) => `${text.slice(0, chars / 2)}${text.slice(-chars / 2)}\n\n`.repeat(20_000 / chars + 1);
  const shorter = Object.entries(texts).filter(([, text]) => text.length >= size && !text.includes('\n'))
    .flatMap(([name, text]) => [9800, 2400, 900].map(chars => [`${name}, in paragraphs of ${chars}`, part(text, chars)]));
  return { ...texts, ...Object.fromEntries(shorter) };
}

// Runs in the page: returns the longest time in milliseconds that the page stood still, and the end of what it shows.
async function stillness(text) {
  const { render } = await import('/page/markdown.js');
  const node = document.createElement('div');
  const { port1, port2 } = new MessageChannel();
  let last = performance.now(), worst = 0, isOver = false;
  const look = () => {
    const now = performance.now();
    worst = Math.max(worst, now - last);
    last = now;
  };
  port1.onmessage = () => {
    look();
    if (!isOver) port2.postMessage(null);
  };
  const done = render(node, `${text}\n\nthe end`);
  look();
  port2.postMessage(null);
  await done;
  isOver = true;
  return { worst, end: node.textContent.trimEnd().slice(-7), elements: node.querySelectorAll('*').length };
}

export async function hostile_replies_do_not_hold_the_page_up({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  // The modules are loaded first.
  await visit.page.evaluate(stillness, '$x$\n```js\na\n```');
  const slow = [];
  for (const [name, text] of Object.entries(hostile())) {
    let best = Infinity;
    // Another process may stand in the way of one try.
    for (let tries = 0; tries < 10 && best >= MAX_STILL_MS; tries += 1) {
      const { worst, end } = await visit.page.evaluate(stillness, text);
      if (!name.includes('open fence')) assert.ok(end.endsWith('the end'), `${name}: its end is not shown, but ${end}`);
      best = Math.min(best, worst);
    }
    if (best >= MAX_STILL_MS) slow.push(`${name}: ${best.toFixed(0)} ms`);
  }
  assert.deepEqual(slow, []);
  await visit.close();
}

export async function markdown_becomes_nodes_and_never_markup({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const shown = text => visit.page.evaluate(async text => {
    const { render } = await import('/page/markdown.js');
    const [whole, grown] = [document.createElement('div'), document.createElement('div')];
    await render(whole, text);
    for (let end = 1; end <= text.length; end += 1) render(grown, text.slice(0, end), true);
    await render(grown, text);
    return [whole.innerHTML, grown.innerHTML];
  }, text);
  const check = async (text, expected) => {
    const [whole, grown] = await shown(text);
    assert.equal(whole, expected);
    assert.equal(grown, whole, `grown: ${text}`);
  };
  const button = '<button type="button" aria-label="Copy the code" data-label="Copy"></button>';
  const link = 'target="_blank" rel="noopener noreferrer nofollow"';
  await check('a\nb\n\nc', '<p>a<br>b</p><p>c</p>');
  await check('# one\n### two', '<h2>one</h2><h4>two</h4>');
  await check('**a** *b* `c*d*` ~~e~~ snake_case_name', '<p><strong>a</strong> <em>b</em> <code>c*d*</code> <del>e</del> snake_case_name</p>');
  await check('- a\n- b\n  - c', '<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>');
  await check('3. a\n4. b', '<ol start="3"><li>a</li><li>b</li></ol>');
  await check('```text\n<b>*x*</b>\n```', `<div class="listing" data-language="text">${button}<pre tabindex="0"><code>&lt;b&gt;*x*&lt;/b&gt;</code></pre></div>`);
  await check('```\nopen', `<div class="listing">${button}<pre tabindex="0"><code>open</code></pre></div>`);
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
  await check('```js\nlet a;\n```', `<div class="listing" data-language="js">${button}<pre tabindex="0"><code><span class="code-keyword">let</span> a;</code></pre></div>`);
  await check('- [x] a\n- [ ] b', '<ul><li><input type="checkbox" disabled="" aria-label="Done"> a</li><li><input type="checkbox" disabled="" aria-label="To do"> b</li></ul>');
  await check('[a]\n\n[a]: https://x.y/z', `<p><a href="https://x.y/z" ${link}>a</a></p>`);
  await check('[a]\n\nb\n\n[a]: https://x.y/z', `<p><a href="https://x.y/z" ${link}>a</a></p><p>b</p>`);
  await check('[a](/settings)', '<p>[a](/settings)</p>');
  await check('main.rs は https://x.y/z。次', `<p>main.rs は <a href="https://x.y/z" ${link}>https://x.y/z</a>。次</p>`);
  const x = '<math><mrow><mi>x</mi></mrow></math>', wide = x.replace('<math>', '<math display="block">');
  await check('関数$x$と\\(x\\)', `<p>関数<span class="math">${x}</span>と<span class="math">${x}</span></p>`);
  await check('a\n\\[\nx\n\\]\nb', `<p>a</p><div class="math display" tabindex="0">${wide}</div><p>b</p>`);
  await check('a $$x$$', `<p>a <span class="math display">${wide}</span></p>`);
  await check('$5 and $10, $HOME/$PATH', '<p>$5 and $10, $HOME/$PATH</p>');
  await check('$\\nothing$ $$\n- x', '<p><span class="math">$\\nothing$</span> $$</p><ul><li>x</li></ul>');
  await check('$$\n- x\n\ny', '<p>$$<br>- x</p><p>y</p>');
  await visit.close();
}

export async function a_growing_reply_is_shown_as_the_whole_one({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const differing = await visit.page.evaluate(async () => {
    const { render } = await import('/page/markdown.js');
    const parts = ['a', 'b c', '- ', '  - ', '1. ', '2) ', '> ', '# ', '\n', '\n', '\n', '\n\n', '```', '~~~', '```js\n', '    ', '\t', '|', '|a|b|\n|-|-|\n', '---', '===', '$$', '\\[', '\\]', '\\(x\\)',
      '$x$', '**', '*', '_', '`', '[c]', '[c]: https://a.b\n', '[x](https://y.z)', '<b>', 'https://a.b', ' "t"\n', '\\', '* ', '+ ', '- [ ] ', '&amp;', '\r\n'];
    let state = 1;
    const random = below => {
      state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
      return (state >> 8) % below;
    };
    const out = [];
    for (let round = 0; round < 500; round += 1) {
      const text = Array.from({ length: 3 + random(25) }, () => parts[random(parts.length)]).join('');
      const [whole, grown] = [document.createElement('div'), document.createElement('div')];
      await render(whole, text);
      for (let end = 0; end < text.length; end += 1 + random(6)) {
        render(grown, text.slice(0, end), true);
        // The pauses of a page that is busy leave no state out.
        grown.shown.notBefore = 0;
      }
      await render(grown, text);
      if (whole.innerHTML !== grown.innerHTML) out.push({ text, whole: whole.innerHTML, grown: grown.innerHTML });
    }
    return out;
  });
  assert.deepEqual(differing, []);
  await visit.close();
}

export async function libraries_come_when_a_reply_needs_them({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const asked = () => ['highlight', 'math'].filter(name => visit.requests.some(request => request.url().endsWith(`/vendor/${name}.bundle.js`)));
  const show = text => visit.page.evaluate(async text => {
    const { render } = await import('/page/markdown.js');
    await render(document.createElement('div'), text);
  }, text);
  await show('**a** and `b`\n\n```\nc\n```');
  assert.deepEqual(asked(), []);
  await show('```js\nc\n```');
  assert.deepEqual(asked(), ['highlight']);
  await show('$x$');
  assert.deepEqual(asked(), ['highlight', 'math']);
  await visit.close();
}

export async function a_reply_injects_nothing({ Visit, assert }) {
  const visit = await (await Visit.open()).ready();
  const texts = [
    '<script>window.ran = true</script>', '<img src=x onerror="window.ran = true">', '<svg><script>window.ran = true</script></svg>', '<iframe src="javascript:window.ran = true"></iframe>',
    '<style>* { display: none }</style>', '<a href="javascript:window.ran = true">a</a>', '<math><mtext></p><img src onerror=window.ran=true>', '<p style="color: red" onclick="window.ran = true">a</p>',
    '[a](javascript:window.ran=true)', '[a](JaVaScRiPt:window.ran=true)', '[a](java\nscript:window.ran=true)', '[a](&#106;avascript:window.ran=true)', '[a](data:text/html,<script>1</script>)', '[a](vbscript:x)',
    '[a](//evil.example)', '[a](/v1/models)', '[a](file:///etc/passwd)', '[a](blob:https://x.y/z)', '[a]\n\n[a]: javascript:window.ran=true', '<javascript:window.ran=true>', '<https://a.b/"onclick=window.ran=true>',
    '![a](https://evil.example/a.png)', '![a](javascript:window.ran=true)', '![a](data:image/svg+xml,<svg onload=window.ran=true>)', '[![a](https://evil.example/a.png)](https://a.b)',
    '[a](https://a.b "\" onmouseover=window.ran=true")', '```"><script>window.ran=true</script>\na\n```', '```js style=color:red onclick=x\nlet a = "<script>window.ran=true</script>";\n```',
    '```html\n<script>window.ran = true</script><img src=x onerror=window.ran=true>\n```', '|<img src=x onerror=window.ran=true>|a|\n|-|:-:|\n|<script>1</script>|b|', '- [x]<script>window.ran = true</script>',
    ...['\\href{javascript:window.ran=true}{a}', '\\url{javascript:window.ran=true}', '\\includegraphics{https://evil.example/a.png}', '\\htmlStyle{position:fixed}{a}', '\\htmlClass{hidden}{a}', '\\htmlId{composer}{a}', '\\htmlData{a=b}{c}',
      '\\fcolorbox{red}{blue}{a}', '\\colorbox{red}{a}', '\\color{red}a', '\\textcolor{#f00}{a}', '\\color{red;background:url(https://evil.example)}a', '\\boxed{a} \\cancel{b} \\pmb{c}', '\\text{<script>window.ran=true</script>}', '<img src=x onerror=window.ran=true>', '\\rule{1em}{1em}', '\\begin{array}{|c|}\\hline a\\end{array}', '\\def\\a{<script>}\\a']
      .flatMap(source => [`$${source}$`, `$$${source}$$`]),
  ];
  const wrong = await visit.page.evaluate(async texts => {
    const { render } = await import('/page/markdown.js');
    const html = ['A', 'BLOCKQUOTE', 'BR', 'BUTTON', 'CODE', 'DEL', 'DIV', 'EM', 'H2', 'H3', 'H4', 'H5', 'H6', 'HR', 'INPUT', 'LI', 'OL', 'P', 'PRE', 'SPAN', 'STRONG', 'TABLE', 'TBODY', 'TD', 'TH', 'THEAD', 'TR', 'UL'];
    const math = ['math', 'menclose', 'mfrac', 'mi', 'mn', 'mo', 'mover', 'mpadded', 'mphantom', 'mroot', 'mrow', 'mspace', 'msqrt', 'mstyle', 'msub', 'msubsup', 'msup', 'mtable', 'mtd', 'mtext', 'mtr', 'munder', 'munderover'];
    const out = [];
    for (const text of texts) {
      const root = document.createElement('div');
      document.body.append(root);
      for (let end = 1; end < text.length; end += 1) render(root, text.slice(0, end), true);
      await render(root, text);
      for (const node of root.querySelectorAll('*')) {
        const isKnown = (node.namespaceURI === 'http://www.w3.org/1999/xhtml' ? html : math).includes(node.nodeName);
        if (!isKnown) out.push(`${text}: ${node.nodeName}`);
        for (const { name, value } of node.attributes) {
          const isBad = /^on|^style$|^id$|^src|^xlink/.test(name) || (name === 'href' && !/^(https?:\/\/|mailto:)/.test(value)) || (name === 'class' && !/^(math( display)?|listing|table|right|center|code-\w+)$/.test(value));
          if (isBad) out.push(`${text}: ${name}="${value}"`);
        }
        if (node.nodeName === 'A' && !/noopener noreferrer/.test(node.rel)) out.push(`${text}: rel`);
      }
      root.remove();
    }
    await new Promise(resolve => setTimeout(resolve, 100));
    return [...out, ...(window.ran ? ['a script ran'] : [])];
  }, texts);
  assert.deepEqual(wrong, []);
  // A request to another host, and a violation of the policy, are faults.
  await visit.close();
}
