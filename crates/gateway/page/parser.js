// Parser of a reply's Markdown: CommonMark, tables, strikethrough, addresses as links, and formulas.

import { MarkdownIt } from './vendor/markdown.bundle.js';

// A reply is any text. Beyond these counts its Markdown is shown as it is written.
const MAX_LEVEL = 24;
const MAX_TABLE_CELLS = 10_000;
const MAX_INLINE_CHARS = 10_000;
const MAX_INLINE_MARKS = 1000;
const MAX_ADDRESS_CHARS = 2000;

// Delimiters of formulas, the longer ones first: the beginning, the end, and whether a formula has lines of its own.
const DELIMITERS = [['$$', '$$', true], ['\\[', '\\]', true], ['\\(', '\\)', false], ['$', '$', false]];

export const parser = new MarkdownIt({ breaks: true, linkify: true });
// A link of another scheme, or to a file of this gateway, stays text.
parser.validateLink = address => /^(https?:\/\/|mailto:)/i.test(address);
addLinks(parser.linkify);
const { block, core, inline } = parser;
block.ruler.before('table', 'level', level);
block.ruler.before('table', 'wide_table', wideTable);
block.ruler.before('fence', 'math_block', mathBlock, { alt: ['paragraph', 'reference', 'blockquote', 'list'] });
inline.ruler.before('escape', 'math_inline', mathInline);
core.ruler.before('inline', 'long', long);

// A name of a host alone is no link: `main.rs` is a file. An address in Japanese ends where its punctuation begins.
function addLinks(linkify) {
  linkify.set({ fuzzyLink: false, maxLength: MAX_ADDRESS_CHARS });
  const length = (text, { re }) => {
    const end = text.search(/[、。，．）」』】！？]/);
    const pattern = re.get_http_validator();
    pattern.lastIndex = 0;
    return pattern.exec(end < 0 ? text : text.slice(0, end))?.[0].length ?? 0;
  };
  const web = { validate: (text, at, self) => length(text.slice(at), self) };
  linkify.add('http:', web).add('https:', web).add('ftp:', null).add('//', null);
  linkify.add('www.', {
    validate: (text, at, self) => Math.max(0, length(`//${text.slice(at)}`, self) - 2),
    normalize: match => { match.url = `http://${match.url}`; },
  });
}

// Adds lines as a paragraph, whatever blocks they have.
function paragraph(state, start, end) {
  state.line = end;
  state.push('paragraph_open', 'p', 1).map = [start, end];
  const text = state.push('inline', '', 0);
  text.content = state.getLines(start, end, state.blkIndent, false).trim();
  text.map = [start, end];
  text.children = [];
  state.push('paragraph_close', 'p', -1);
}

// Ends the nesting of blocks. The parser would leave out what is deeper than its own limit.
function level(state, start, end) {
  if (state.level < MAX_LEVEL) return false;
  paragraph(state, start, end);
  return true;
}

// A short row of a table is filled up, so a wide table of many short rows would have millions of cells.
function wideTable(state, start, end) {
  if (start + 1 >= end || !/^[\s|:-]*-[\s|:-]*$/.test(line(state, start + 1))) return false;
  let next = start + 2;
  while (next < end && !state.isEmpty(next)) next += 1;
  if (line(state, start).split('|').length * (next - start) <= MAX_TABLE_CELLS) return false;
  paragraph(state, start, next);
  return true;
}

function line(state, number) {
  return state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
}

// Formula with lines of its own. The first line alone decides that it begins, so that a growing text never takes a
// block back; it ends before an empty line. Without its end it is a paragraph.
function mathBlock(state, start, end, silent) {
  if (state.sCount[start] - state.blkIndent >= 4) return false;
  const first = line(state, start).trimEnd();
  const delimiters = DELIMITERS.slice(0, 2).find(([open]) => first.startsWith(open));
  if (!delimiters) return false;
  const [open, close] = delimiters;
  const at = first.indexOf(close, 2);
  if (at >= 0 && (at + 2 < first.length || first.slice(2, at).trim() === '')) return false;
  // An escaped bracket of a text is followed by the text.
  if (at < 0 && open === '\\[' && /^\S/.test(first.slice(2))) return false;
  if (silent) return true;
  let next = start + 1, isClosed = at >= 0;
  for (; !isClosed && next < end && !state.isEmpty(next) && state.sCount[next] >= state.blkIndent; next += 1) {
    isClosed = line(state, next).trimEnd().endsWith(close);
  }
  if (!isClosed) {
    paragraph(state, start, next);
    return true;
  }
  const token = state.push('math', 'math', 0);
  token.block = true;
  token.map = [start, next];
  const text = state.getLines(start, next, state.blkIndent, false).trim();
  token.content = text.slice(2, -2);
  token.markup = open;
  token.meta = { close, isDisplay: true };
  state.line = next;
  return true;
}

// Formula in a line. One dollar is a price, too: such a formula touches neither space inside nor letters outside.
function mathInline(state, silent) {
  const { src, pos } = state;
  const delimiters = DELIMITERS.find(([open]) => src.startsWith(open, pos));
  if (!delimiters) return false;
  const [open, close, isDisplay] = delimiters;
  const from = pos + open.length;
  // A search that found no end is not repeated for the delimiters behind it.
  state.unclosed ??= {};
  if (from >= state.unclosed[close]) return false;
  let at = src.indexOf(close, from);
  while (at >= 0 && isEscaped(src, at, from)) at = src.indexOf(close, at + close.length);
  if (at < 0) state.unclosed[close] = from;
  if (at < 0 || at + close.length > state.posMax) return false;
  const content = src.slice(from, at);
  if (content.trim() === '') return false;
  if (open === '$' && (/^\s|\s$|`/.test(content) || /[A-Za-z0-9$]/.test(src[pos - 1] ?? '') || /[A-Za-z0-9$]/.test(src[at + 1] ?? ''))) return false;
  if (!silent) {
    const token = state.push('math', 'math', 0);
    token.content = content;
    token.markup = open;
    token.meta = { close, isDisplay };
  }
  state.pos = at + close.length;
  return true;
}

function isEscaped(text, at, from) {
  let begin = at;
  while (begin > from && text[begin - 1] === '\\') begin -= 1;
  return (at - begin) % 2 === 1;
}

// Keeps the marks of an endless line from the parser, which searches for each mark's end.
function long({ tokens }) {
  for (const token of tokens) {
    const { type, content } = token;
    const isLong = type === 'inline' && (content.length > MAX_INLINE_CHARS || content.split(/[[\]*_`$~\\<&@]/).length > MAX_INLINE_MARKS);
    if (isLong) token.type = 'plain';
  }
}
