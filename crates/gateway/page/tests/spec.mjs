// Examples of CommonMark's specification and of GitHub's extensions, shown by the page.

import { readFileSync } from 'node:fs';
import path from 'node:path';

// Examples that are shown in another way than the specifications say, by reason. All others have to pass.
const OTHERWISE = {
  'markup in a reply is text': `21, 31, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 161, 162, 163, 164, 165, 166, 167, 168, 169,
    170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189, 190, 191, 201, 308, 309, 344, 475,
    476, 477, 491, 494, 524, 536, 613, 614, 615, 616, 617, 623, 625, 626, 627, 628, 629, 630, 631, 642, 643, gfm 653`,
  'an address without brackets is a link, as on GitHub': '602, 608, 611, 612',
  'escaped brackets are a formula': '12',
  'an address ends elsewhere': 'gfm 625, gfm 626, gfm 630',
  'no link to a file server': 'gfm 628',
};

// Returns the examples of the specifications of CommonMark and of GitHub's extensions.
function examples(require) {
  const gfm = readFileSync(path.join(import.meta.dirname, 'gfm.txt'), 'utf8');
  const extensions = Array.from(gfm.matchAll(/^`{32} example (\d+) \S+\n([^]*?)^\.\n([^]*?)^`{32}$/gm),
    ([, number, markdown, html]) => ({ name: `gfm ${number}`, markdown, html }));
  const { tests } = require('commonmark-spec');
  return [...tests.map(({ number, markdown, html }) => ({ name: `${number}`, markdown, html })), ...extensions]
    .map(({ name, markdown, html }) => ({ name, markdown: markdown.replaceAll('→', '\t'), html: html.replaceAll('→', '\t') }));
}

// Runs in the page: returns the names of the examples whose nodes differ from the specification's.
async function differing(all) {
  const { render } = await import('/page/markdown.js');
  const { parser } = await import('/page/parser.js');
  // The examples have addresses without a scheme, which a reply may not have.
  parser.validateLink = () => true;
  const BLOCKS = new Set(['BLOCKQUOTE', 'H2', 'H3', 'H4', 'H5', 'H6', 'HR', 'LI', 'OL', 'P', 'PRE', 'TABLE', 'TBODY', 'TD', 'TH', 'THEAD', 'TR', 'UL']);

  // Returns the tree as a list of tags and texts, without what has no meaning or is the page's own.
  function canonical(root, isExpected) {
    const out = [];
    const text = value => (typeof out.at(-1) === 'object' ? out.at(-1).text += value : out.push({ text: value }));
    const wrap = (tag, node, isBlock = false) => {
      out.push(isBlock ? `<${tag}>` : `<<${tag}>`);
      node.childNodes.forEach(visit);
      out.push(isBlock ? `</${tag}>` : `<</${tag}>`);
    };
    function visit(node) {
      if (node.nodeType !== Node.ELEMENT_NODE) {
        if (node.nodeType === Node.TEXT_NODE) text(node.data);
        return;
      }
      let name = node.nodeName;
      if (isExpected && /^H[1-6]$/.test(name)) name = `H${Math.min(Number(name[1]) + 1, 6)}`;
      // A line of the source is a line of the reply.
      if (name === 'BR') return isExpected || text('\n');
      if (name === 'INPUT') return text(node.checked ? '[x]' : '[ ]');
      if (name === 'IMG') {
        const isLink = node.getAttribute('src') && !node.closest('a');
        if (isLink) out.push(`<<A ${node.getAttribute('src')}>`);
        text(node.alt);
        if (isLink) out.push('<</A>');
        return;
      }
      if (name === 'A' && !node.getAttribute('href')) return node.childNodes.forEach(visit);
      if (name === 'A') {
        out.push(`<<A ${node.getAttribute('href')}>`);
        node.childNodes.forEach(visit);
        out.push('<</A>');
        return;
      }
      // A button of the page has no text.
      if (name === 'BUTTON') return;
      if (name === 'DIV' && ['listing', 'table'].includes(node.className)) return node.childNodes.forEach(visit);
      if (name === 'PRE') {
        const language = isExpected ? (node.firstElementChild?.className ?? '').replace('language-', '').slice(0, 20) : node.parentElement.dataset.language ?? '';
        out.push(`<PRE ${language}>`, `=${isExpected ? node.textContent.replace(/\n$/, '') : node.textContent}`, '</PRE>');
        return;
      }
      const side = isExpected ? node.getAttribute('align') : node.className;
      if (name === 'TBODY' && node.childNodes.length === 0) return;
      if (name === 'OL') name += ` ${node.start}`;
      if (side === 'center' || side === 'right') name += ` ${side}`;
      wrap(name, node, BLOCKS.has(name.split(' ')[0]));
    }
    root.childNodes.forEach(visit);
    const isEdge = index => out[index] === undefined || (typeof out[index] === 'string' && !out[index].startsWith('<<'));
    return out.map((part, index) => {
      if (typeof part === 'string') return part;
      let value = part.text.replace(/[ \t]*\n[ \t]*/g, '\n');
      if (isEdge(index - 1)) value = value.replace(/^\n+/, '');
      if (isEdge(index + 1)) value = value.replace(/\n+$/, '');
      return value;
    }).join('');
  }

  const out = [];
  for (const { name, markdown, html } of all) {
    const [shown, expected] = [document.createElement('div'), document.createElement('div')];
    await render(shown, markdown);
    expected.innerHTML = html;
    const [is, should] = [canonical(shown, false), canonical(expected, true)];
    if (is !== should) out.push({ name, markdown, is, should });
  }
  return out;
}

export async function replies_are_what_the_specifications_say({ Visit, assert, require }) {
  const visit = await (await Visit.open(undefined, { bypassCSP: true })).ready();
  const all = examples(require);
  assert.equal(all.length, 652 + 24);
  const found = await visit.page.evaluate(differing, all);
  const known = Object.values(OTHERWISE).flatMap(names => names.trim().split(/\s*,\s*/));
  const wrong = found.filter(({ name }) => !known.includes(name));
  assert.deepEqual(wrong, [], `${wrong.length} examples`);
  assert.deepEqual(known.filter(name => !found.some(one => one.name === name)), [], 'these examples pass: take them off the list');
  await visit.close();
}
