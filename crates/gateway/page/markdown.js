// Markdown of a reply that is still growing, as DOM nodes. Text is set as text, never as HTML.
//
// The text is cut into blocks. Blocks that did not change since the last call keep their nodes, so
// that only the end of a growing text is made anew.

// Each takes a time linear in the length of a line, whatever the line is: a model may write any.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+([^]*)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+([^]*)/;
const QUOTE = /^ {0,3}> ?([^]*)/;
const DEPTH = 6;
const LONGEST = 20_000;

// Shows `text` in `container`.
export function render(container, text) {
  const old = container.blocks ?? [];
  const blocks = split(text);
  let same = 0;
  while (same < old.length && same < blocks.length && old[same].source === blocks[same].source && old[same].kind === blocks[same].kind) same += 1;
  for (const block of old.slice(same)) block.node.remove();
  for (const block of blocks.slice(same)) {
    block.node = build(block, 0);
    container.append(block.node);
  }
  container.blocks = [...old.slice(0, same), ...blocks.slice(same)];
}

function element(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

// Returns the blocks of a text: their kinds, their lines and their source.
function split(text) {
  const lines = text.split('\n');
  const blocks = [];
  let at = 0;
  const add = (kind, from, more = {}) => blocks.push({ kind, lines: lines.slice(from, at), source: lines.slice(from, at).join('\n'), ...more });
  while (at < lines.length) {
    const from = at, line = lines[at];
    const fence = FENCE.exec(line);
    if (line.trim() === '') {
      at += 1;
    } else if (fence) {
      at += 1;
      while (at < lines.length && !closes(lines[at], fence[1])) at += 1;
      at = Math.min(at + 1, lines.length);
      add('code', from, { fence: fence[1], info: fence[2].trim() });
    } else if (HEADING.test(line)) {
      at += 1;
      add('heading', from);
    } else if (RULE.test(line)) {
      at += 1;
      add('rule', from);
    } else if (QUOTE.test(line)) {
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      add('quote', from);
    } else if (ITEM.test(line)) {
      at = endOfList(lines, at + 1);
      add('list', from);
    } else if (beginsTable(lines, at)) {
      at += 2;
      while (at < lines.length && lines[at].trim() !== '' && lines[at].includes('|')) at += 1;
      add('table', from);
    } else {
      at += 1;
      while (at < lines.length && !interrupts(lines, at)) at += 1;
      add('paragraph', from);
    }
  }
  return blocks;
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text.split('').every(mark => mark === fence[0]);
}

// Returns the line behind a list whose first line is before `at`.
function endOfList(lines, at) {
  let end = at, isAfterBlank = false;
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    if (line.trim() === '') {
      isAfterBlank = true;
      continue;
    }
    const isItem = ITEM.test(line) && !RULE.test(line);
    const belongs = isAfterBlank ? /^\s{2,}\S/.test(line) : /^\s/.test(line) || !starts(line);
    if (!isItem && !belongs) break;
    end = at + 1;
    isAfterBlank = false;
  }
  return end;
}

function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

// Returns true if a row of names and a divider are at `at`.
function beginsTable(lines, at) {
  return lines[at].includes('|') && at + 1 < lines.length && bare(lines[at + 1]).split('|').every(cell => /^:?-+:?$/.test(cell.trim()));
}

function interrupts(lines, at) {
  const line = lines[at];
  return line.trim() === '' || starts(line) || ITEM.test(line) || beginsTable(lines, at);
}

function build(block, depth) {
  switch (block.kind) {
    case 'code': return code(block);
    case 'heading': {
      const [, marks, text] = HEADING.exec(block.lines[0]);
      // The page has the first level.
      return element(`h${Math.min(marks.length + 1, 6)}`, ...inline(withoutClosing(text)));
    }
    case 'rule': return element('hr');
    case 'quote': {
      const inner = block.lines.map(line => QUOTE.exec(line)[1]).join('\n');
      return element('blockquote', ...nested(inner, depth));
    }
    case 'list': return list(block.lines, depth);
    case 'table': return table(block.lines);
    default: return element('p', ...inline(block.source.trimEnd()));
  }
}

// Returns the text of a heading without the marks that close it.
function withoutClosing(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === '#') end -= 1;
  // Marks at the end of a word are text.
  return end === 0 || /\s/.test(trimmed[end - 1]) ? trimmed.slice(0, end).trim() : trimmed;
}

function nested(text, depth) {
  if (depth >= DEPTH) return [element('p', ...inline(text))];
  return split(text).map(block => build(block, depth + 1));
}

function code({ lines, fence, info }) {
  const closed = lines.length > 1 && closes(lines[lines.length - 1], fence);
  const body = lines.slice(1, closed ? -1 : undefined).join('\n');
  const pre = element('pre', element('code', body));
  pre.tabIndex = 0;
  const language = info.split(/\s/)[0];
  if (language) pre.dataset.language = language.slice(0, 20);
  return pre;
}

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(marker);
  const root = element(ordered ? 'ol' : 'ul');
  if (ordered && parseInt(marker, 10) !== 1) root.start = parseInt(marker, 10);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items[items.length - 1].push(line);
  }
  for (const [first, ...rest] of items) {
    const inner = rest.filter(line => line.trim() !== '').map(line => line.length - line.trimStart().length);
    const cut = Math.min(...inner, 8);
    const more = rest.map(line => line.slice(Number.isFinite(cut) ? Math.min(cut, line.length - line.trimStart().length) : 0));
    const text = [first, ...more].join('\n').trimEnd();
    const blocks = nested(text, depth);
    // A list without blank lines has no paragraphs.
    const isTight = !rest.some(line => line.trim() === '');
    const children = blocks.flatMap(node => isTight && node.tagName === 'P' ? Array.from(node.childNodes) : [node]);
    root.append(element('li', ...children));
  }
  return root;
}

// Returns a row of a table without its outer bars.
function bare(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '');
}

function cells(line) {
  return bare(line).split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll('\\|', '|'));
}

function table(lines) {
  const [head, divider, ...rows] = lines;
  const names = cells(head);
  const sides = cells(divider).map(cell => (cell.endsWith(':') ? cell.startsWith(':') ? 'center' : 'right' : ''));
  // A short row is not filled up: a wide table of many short rows would have millions of cells.
  const row = (name, texts) => element('tr', ...texts.slice(0, names.length).map((text, index) => {
    const cell = element(name, ...inline(text));
    if (name === 'th') cell.scope = 'col';
    if (sides[index]) cell.className = sides[index];
    return cell;
  }));
  const body = rows.map(line => row('td', cells(line)));
  const whole = element('table', element('thead', row('th', names)), element('tbody', ...body));
  const scroller = element('div', whole);
  scroller.className = 'table';
  scroller.tabIndex = 0;
  return scroller;
}

// The first of these in a text becomes a node; the text before it stays text.
const INLINE = [
  [/\\([\\`*_{}[\]()#+\-.!|~<>])/, ([, mark]) => mark],
  [/(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, ([, , text]) => element('code', text.replace(/^ (.+) $/, '$1'))],
  [/!?\[([^\][]*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)?)>?(?:\s+["'][^)]*["'])?\s*\)/, ([all, text, target]) => link(target, inline(text)) ?? all],
  [/<((?:https?:\/\/|mailto:)[^\s<>]+)>/, ([all, target]) => link(target, [target]) ?? all],
  [/\bhttps?:\/\/[^\s<>"'`、。）」]*[^\s<>"'`、。）」.,:;!?)\]]/, ([target]) => link(target, [target]) ?? target],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, ([, text]) => element('strong', ...inline(text))],
  [/(?<![\p{L}\p{N}_])__(?=\S)([\s\S]*?\S)__(?![\p{L}\p{N}_])/u, ([, text]) => element('strong', ...inline(text))],
  [/\*(?=[^\s*])([^*]*?[^\s*])\*(?!\*)/, ([, text]) => element('em', ...inline(text))],
  [/(?<![\p{L}\p{N}_])_(?=[^\s_])([^_]*?[^\s_])_(?![\p{L}\p{N}_])/u, ([, text]) => element('em', ...inline(text))],
  [/~~(?=\S)([\s\S]*?\S)~~/, ([, text]) => element('del', ...inline(text))],
  [/\n/, () => element('br')],
];

// Returns the nodes of a line of text.
function inline(text) {
  // Marks are searched for again behind each mark, so a line without end is shown as it is.
  if (text.length > LONGEST) return text.split('\n').flatMap((line, index) => (index ? [element('br'), line] : [line]));
  const nodes = [];
  let rest = text;
  while (rest) {
    let first = null;
    for (const [pattern, make] of INLINE) {
      const match = pattern.exec(rest);
      if (match && (first === null || match.index < first.match.index)) first = { match, make };
    }
    if (!first) break;
    const { match, make } = first;
    if (match.index > 0) nodes.push(rest.slice(0, match.index));
    nodes.push(make(match));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

// Returns a link, or null if its scheme is not one of the safe ones.
function link(target, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return null;
  const node = element('a', ...children);
  node.href = target;
  node.target = '_blank';
  node.rel = 'noopener noreferrer nofollow';
  return node;
}
