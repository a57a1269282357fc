// Markdown of a reply that is still growing, as DOM nodes.
//
// The text is shown block by block. A block at the top level is final when another one begins behind it: it is parsed
// once, and its nodes stay. Only the last one is made anew while it grows. Work is done in slices, so that the page
// answers its user whatever the text is.

import { build } from './nodes.js';
import { parser } from './parser.js';

const SLICE_MS = 10;
const WINDOW_CHARS = 4096;
// A block that is larger is shown as it is written. Code may have any length.
const MAX_BLOCK_CHARS = 50_000;
const MAX_BLOCK_LINES = 1000;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;

const modules = {
  code: { load: () => import('./colors.js') },
  math: { load: () => import('./math.js') },
};

// Shows `text` in `container`. More of the text may follow if `isGrowing`. The promise ends when all of it is shown.
export function render(container, text, isGrowing = false) {
  container.shown ??= new Shown(container);
  return container.shown.show(text.replace(/\r\n?/g, '\n'), isGrowing);
}

// Text that is shown in a container.
class Shown {
  constructor(container) {
    this.container = container;
    this.text = '';
    this.clear({});
  }

  // Begins anew with the references that are known.
  clear(references) {
    this.references = references;
    // The text before `start` is final, and the one before `seen` has no further beginning of a block.
    this.start = 0;
    this.seen = 0;
    this.window = WINDOW_CHARS;
    this.tail = { source: null, nodes: [] };
    this.jobs = [];
    this.container.replaceChildren();
  }

  show(text, isGrowing) {
    if (!text.startsWith(this.text)) this.clear({});
    this.text = text;
    this.isGrowing = isGrowing;
    this.isSecond = false;
    this.done ??= new Promise(resolve => { this.resolve = resolve; });
    const { done } = this;
    this.work();
    return done;
  }

  // Works for a moment, and goes on later if that was not enough.
  work() {
    clearTimeout(this.timer);
    // A last block that takes long to show waits for more of it.
    const now = performance.now();
    if (this.isGrowing && now < this.notBefore) {
      this.timer = setTimeout(() => this.work(), this.notBefore - now);
      return;
    }
    let isMore = true;
    while (isMore && performance.now() < now + SLICE_MS) isMore = this.step();
    this.notBefore = performance.now() + 2 * (performance.now() - now);
    if (isMore) {
      this.timer = setTimeout(() => this.work());
    } else if (!this.loading) {
      this.resolve?.();
      this.done = null;
    }
  }

  // Does the next piece of the work. Returns false if there is none.
  step() {
    if (this.advance()) return true;
    if (this.showTail()) return true;
    if (!this.isGrowing && !this.isSecond && Object.keys(this.references).length > 0) {
      // A reference may stand behind the text that refers to it.
      this.isSecond = true;
      this.clear(this.references);
      return true;
    }
    const job = this.jobs.shift();
    if (job && this.container.contains(job.node)) modules[job.kind].ready.decorate(job);
    return job !== undefined;
  }

  // Makes the blocks final behind which another one begins. Returns false if there is none.
  advance() {
    const rest = this.text.slice(this.start);
    // A line that has no end yet may become another block.
    const whole = rest.lastIndexOf('\n') + 1;
    if (this.start + whole <= this.seen) return false;
    const isCode = FENCE.test(rest);
    const limit = isCode ? whole : endOfLines(rest, MAX_BLOCK_LINES, Math.min(MAX_BLOCK_CHARS, whole));
    const end = endOfLines(rest, Infinity, Math.min(this.window, limit));
    const lines = rest.slice(0, end);
    const last = lastBlock(lines);
    if (last > 0) {
      this.commit(parser.parse(lines.slice(0, last), { references: this.references }), last);
    } else if (end === limit && limit < whole) {
      const plain = { type: 'plain', nesting: 0, content: lines.trimEnd() };
      this.commit([{ nesting: 1, tag: 'p', attrGet: () => null }, plain, { nesting: -1 }], end);
    } else {
      // All of it is one block so far.
      if (end === whole) this.seen = this.start + end;
      this.window *= 2;
    }
    return true;
  }

  commit(tokens, length) {
    for (const node of this.tail.nodes) node.remove();
    this.tail = { source: null, nodes: [] };
    this.container.append(build(tokens, job => this.later(job)));
    this.start += length;
    this.seen = this.start;
    this.window = WINDOW_CHARS;
  }

  // Shows the text that is not final. Returns false if it is shown.
  showTail() {
    const source = this.text.slice(this.start);
    const { tail, isGrowing } = this;
    if (tail.source === source && tail.isGrowing === isGrowing) return false;
    // Its references may not be whole yet.
    const references = isGrowing ? { ...this.references } : this.references;
    // Code that grows gets its colors at its end.
    const later = job => (isGrowing && job.kind === 'code' ? undefined : this.later(job));
    const made = Array.from(build(parser.parse(source, { references }), later).childNodes);
    const [old] = tail.nodes, [listing] = made;
    const isCode = isGrowing && made.length === 1 && tail.nodes.length === 1 && [old, listing].every(node => node.className === 'listing');
    if (isCode && old.dataset.language === listing.dataset.language) {
      old.querySelector('code').firstChild.data = listing.textContent;
      this.tail = { source, isGrowing, nodes: [old] };
      return true;
    }
    for (const node of tail.nodes) node.remove();
    this.container.append(...made);
    this.tail = { source, isGrowing, nodes: made };
    return true;
  }

  // Decorates a node when what that needs is loaded.
  later(job) {
    const module = modules[job.kind];
    if (module.ready) {
      this.jobs.push(job);
      return;
    }
    this.loading = (this.loading ?? 0) + 1;
    module.load().then(ready => {
      module.ready = ready;
      this.jobs.push(job);
    }, error => console.warn('a reply is shown without', job.kind, error)).finally(() => {
      this.loading -= 1;
      this.work();
    });
  }
}

// Returns the length of the lines at the beginning of a text: one at least, and no more than these lines and characters.
function endOfLines(text, lines, chars) {
  let end = 0;
  for (let count = 0; count < lines; count += 1) {
    const next = text.indexOf('\n', end) + 1;
    if (next === 0 || (next > chars && end > 0)) break;
    end = next;
  }
  return end;
}

// Returns where the last block of the lines begins.
function lastBlock(lines) {
  const tokens = [];
  parser.block.parse(lines, parser, {}, tokens);
  const first = tokens.findLast(token => token.level === 0 && token.nesting >= 0 && token.map)?.map[0] ?? 0;
  return endOfLines(lines, first, lines.length);
}
