// DOM nodes of the parser's tokens. Text is set as text, never as HTML.

import { parser } from './parser.js';
import { t } from './text.js';

// Elements of a reply. A token with another name adds its text alone.
const NAMES = new Set(['a', 'blockquote', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'li', 'ol', 'p', 's', 'strong', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul']);
// Browsers lay elements out recursively.
const MAX_DEPTH = 100;
const MAX_LANGUAGE_CHARS = 20;

// Returns a fragment with the nodes of `tokens`. `later` is told what may be shown better: formulas and code.
export function build(tokens, later) {
  const root = document.createDocumentFragment();
  const parents = [root];
  const add = (...nodes) => parents.at(-1).append(...nodes);
  const walk = all => {
    for (const [index, token] of all.entries()) {
      if (token.nesting < 0) {
        parents.pop();
      } else if (token.type === 'inline') {
        addTask(all, index, add);
        walk(token.children);
      } else if (token.nesting === 0) {
        add(...leaf(token, parents, later));
      } else {
        const isShown = !token.hidden && parents.length < MAX_DEPTH;
        const node = isShown ? element(token) : null;
        if (node) add(token.tag === 'table' ? scroller(node) : node);
        parents.push(node ?? parents.at(-1));
      }
    }
  };
  walk(tokens);
  return root;
}

// Returns the element that a token begins, or null if it has none.
function element(token) {
  if (!NAMES.has(token.tag)) return null;
  if (token.tag === 'a') return link(token.attrGet('href'));
  const level = /^h([1-6])$/.exec(token.tag)?.[1];
  // The page has the first level of headings.
  const name = level ? `h${Math.min(Number(level) + 1, 6)}` : token.tag === 's' ? 'del' : token.tag;
  const node = document.createElement(name);
  if (name === 'ol' && token.attrGet('start') !== null) node.start = token.attrGet('start');
  if (name === 'th') node.scope = 'col';
  const side = /^text-align:(center|right)$/.exec(token.attrGet('style') ?? '')?.[1];
  if (side) node.className = side;
  return node;
}

// Returns a link, or null if there is no address: the parser lets only safe ones through.
function link(address) {
  if (!address) return null;
  const node = document.createElement('a');
  node.href = address;
  node.target = '_blank';
  node.rel = 'noopener noreferrer nofollow';
  return node;
}

function scroller(table) {
  const node = document.createElement('div');
  node.className = 'table';
  node.tabIndex = 0;
  node.append(table);
  return node;
}

// Adds the box of a task at the beginning of an item of a list.
function addTask(tokens, index, add) {
  const first = tokens[index].children[0];
  const task = /^\[([ xX])\](?=\s)/.exec(first?.type === 'text' ? first.content : '');
  if (!task || tokens[index - 2]?.type !== 'list_item_open') return;
  const box = document.createElement('input');
  box.type = 'checkbox';
  box.disabled = true;
  box.checked = task[1] !== ' ';
  box.setAttribute('aria-label', t(box.checked ? 'taskDone' : 'taskOpen'));
  first.content = first.content.slice(3);
  add(box);
}

// Returns the nodes of a token without children, or with text alone.
function leaf(token, parents, later) {
  switch (token.type) {
    case 'softbreak': case 'hardbreak': return [document.createElement('br')];
    case 'hr': return [document.createElement('hr')];
    case 'code_inline': return [code(token.content)];
    case 'code_block': case 'fence': return [codeBlock(token, later)];
    case 'image': return [image(token, parents)];
    case 'math': return [formula(token, later)];
    case 'plain': return token.content.split('\n').flatMap((line, index) => (index ? [document.createElement('br'), line] : [line]));
    default: return [token.content];
  }
}

function code(text) {
  const node = document.createElement('code');
  node.append(text);
  return node;
}

function codeBlock({ content, info }, later) {
  const source = content.replace(/\n$/, '');
  const node = document.createElement('div');
  node.className = 'listing';
  const inner = code(source);
  const pre = document.createElement('pre');
  pre.append(inner);
  pre.tabIndex = 0;
  node.append(copyButton(), pre);
  const language = parser.utils.unescapeAll(info).trim().split(/\s/)[0];
  if (language) {
    node.dataset.language = language.slice(0, MAX_LANGUAGE_CHARS);
    later({ kind: 'code', node: inner, source, language });
  }
  return node;
}

// Returns a button without text of its own: a reply that is selected or copied has only its words.
function copyButton() {
  const node = document.createElement('button');
  node.type = 'button';
  node.setAttribute('aria-label', t('copyCode'));
  node.dataset.label = t('copy');
  return node;
}

// Returns a link to an image: the page loads nothing from elsewhere.
function image(token, parents) {
  const text = plain(token.children);
  const isInLink = parents.some(parent => parent.localName === 'a');
  const node = isInLink ? null : link(token.attrGet('src'));
  node?.append(text);
  return node ?? text;
}

function plain(tokens) {
  return tokens.map(token => (token.type.endsWith('break') ? '\n' : token.children?.length ? plain(token.children) : token.content)).join('');
}

function formula({ block, content, markup, meta }, later) {
  const node = document.createElement(block ? 'div' : 'span');
  node.className = meta.isDisplay ? 'math display' : 'math';
  if (block) node.tabIndex = 0;
  node.append(`${markup}${content}${meta.close}`);
  later({ kind: 'math', node, source: content, isDisplay: meta.isDisplay });
  return node;
}
