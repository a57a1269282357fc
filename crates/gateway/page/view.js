// Messages of a conversation as DOM nodes.

import { render } from './markdown.js';
import { isOpen } from './reply.js';
import { readingOf } from './chat.js';
import { getLanguage, t } from './text.js';

// Creates an element. `on*` are listeners, and other names attributes.
export function h(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? '' : String(value));
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

// Time without an event after which a begun reply is told to stall.
const STALLED_MS = 3000;

const number = (value, digits = 0) => value.toLocaleString(getLanguage(), { maximumFractionDigits: digits });

function duration(ms) {
  return ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000, 1)} s`;
}

// Returns the text for an error of the API: a sentence, and what to do.
export function sentence(error, node) {
  const seconds = Math.max(1, Math.ceil(((error.until ?? 0) - Date.now()) / 1000));
  const values = { message: ended(error.message ?? ''), model: node?.model ?? '', s: seconds };
  switch (error.code) {
    case 'invalid_api_key': return t('eKey');
    case 'model_not_found': return t('eModel', values);
    case 'no_worker': return t('eWorker', values);
    case 'context_length_exceeded': {
      const most = /(\d+)\D*$/.exec(error.message)?.[1];
      return t('eLong', { most: most ? t('eLongMost', { n: number(Number(most)) }) : '' });
    }
    case 'queue_full': return t('eFull', values);
    case 'broker_unavailable': return t('eBroker', values);
    case 'rate_limit_exceeded': return t('eLimit', values);
    case 'deadline_exceeded': return t('eDeadline', values);
    case 'request_too_large': return t('eLarge');
    case 'restarted': return t('restarted');
    case 'network': case 'cut': return error.until ? t('eNetwork', values) : t('eNetworkNow');
    default:
  }
  if (error.status === 429) return t('eLimit', values);
  if (error.status === 503 || error.status === 502) return t('eBusy', { ...values, message: error.message });
  if (error.status >= 400 && error.status < 500) return t('eRequest', values);
  return t('eFailed', values);
}

// Returns a text that ends like a sentence.
function ended(text) {
  const trimmed = text.trim();
  return /[.!?。]$/.test(trimmed) || trimmed === '' ? trimmed : `${trimmed}.`;
}

// Returns true for a reply that ended before its time and has no format: a grammar knows no beginning of its text.
function continues(node) {
  return ['stopped', 'cut'].includes(node.state) && node.text.trim() !== '' && !JSON.parse(node.body).text;
}

// Message with its tools and, for a reply, its facts.
export class MessageView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.body = h('div', { class: 'body' });
    this.state = h('p', { class: 'state', hidden: true });
    this.tools = h('div', { class: 'tools' });
    this.facts = node.role === 'assistant' ? h('aside', { class: 'facts', 'aria-label': t('facts') }) : null;
    const files = node.files ? h('ul', { class: 'chips', 'aria-label': t('files') }, ...node.files.map(file => chip(file))) : null;
    const who = node.role === 'user' ? t('you') : t('reply');
    this.root = h('article', { class: `message ${node.role}`, 'aria-label': who, 'data-id': node.id },
      h('div', { class: 'text' }, this.reasoning(), this.body, files, this.state, this.tools), this.facts);
    if (node.role === 'user') this.body.textContent = node.text;
    this.body.hidden = node.role === 'user' && node.text === '';
    this.update();
  }

  reasoning() {
    if (this.node.role === 'user') return null;
    this.thoughts = h('div', { class: 'thoughts' });
    this.details = h('details', { class: 'reasoning', hidden: true }, h('summary', {}, t('reasoning')), this.thoughts);
    return this.details;
  }

  update() {
    const { node } = this;
    if (node.role === 'assistant') this.updateReply();
    const open = node.role === 'assistant' && isOpen(node);
    const key = JSON.stringify([open, node.state, this.actions.versions(node).map(it => it.id), node.replay?.running]);
    // Buttons that did not change stay, so that they keep the focus.
    if (key === this.toolsKey) return;
    this.toolsKey = key;
    const focused = this.tools.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    this.tools.replaceChildren(...this.buttons(open));
    if (focused) this.tools.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  updateReply() {
    const { node } = this;
    const open = isOpen(node);
    this.root.setAttribute('aria-busy', String(open));
    this.root.classList.toggle('open', open);
    this.root.dataset.state = node.state;
    if (this.shown !== node.text || this.wasOpen !== open) render(this.body, node.text, open).then(this.actions.rendered);
    this.shown = node.text;
    this.wasOpen = open;
    this.details.hidden = !node.reasoning;
    if (node.reasoning && this.thoughts.textContent !== node.reasoning) this.thoughts.textContent = node.reasoning;
    this.updateState(open);
    this.updateFacts(open);
  }

  updateState(open) {
    const lines = [];
    const reading = readingOf(this.node);
    if (open) {
      const line = this.progress(reading);
      if (line) lines.push(line);
    }
    for (const note of this.node.notes ?? []) lines.push([t(note.kind, note), note.kind === 'recomputeDiffers' ? 'wrong' : '']);
    const { error, state } = this.node;
    if (state === 'cut') lines.push([t('cut'), '']);
    if (state === 'stopped') lines.push([t('stopped'), '']);
    const isTold = (this.node.notes ?? []).some(note => note.kind === 'recomputeDiffers');
    if (error && !isTold) lines.push([sentence(error, this.node), 'wrong']);
    const key = JSON.stringify([lines, getLanguage()]);
    if (key === this.stateKey) return;
    this.stateKey = key;
    this.state.hidden = lines.length === 0;
    this.state.replaceChildren(...lines.map(([text, kind, seal]) => h('span', { class: `line ${kind}` },
      seal ? h('img', { src: 'page/seal.svg', alt: '', width: 22, height: 22 }) : null, text)));
  }

  // Returns the line about a reply in progress.
  progress(reading) {
    const { node } = this;
    const notice = reading?.notice ?? null;
    if (notice?.kind === 'stopping') return [t('stopping'), ''];
    if (notice?.kind === 'recomputing') return [t('recomputing'), '', true];
    if (notice?.kind === 'lost') {
      if (!navigator.onLine) return [t('offline'), '', true];
      const { failure, until } = notice;
      const s = Math.max(1, Math.ceil((until - Date.now()) / 1000));
      if (failure.status === 0 && (node.response || node.last >= 0)) return [t('lostIn', { s }), '', true];
      return [sentence({ status: failure.status, code: failure.code, message: failure.message, until }, node), '', true];
    }
    if (node.state !== 'waiting') return Date.now() - (reading?.heard ?? Date.now()) > STALLED_MS ? [t('stalled'), '', true] : null;
    const since = Date.now() - node.facts.sent;
    if (since < 600) return ['…', 'thinking'];
    return since < 8000 ? [t('waiting'), ''] : [t('queued'), '', true];
  }

  updateFacts(open) {
    const rows = this.rows(open);
    const key = JSON.stringify([rows, getLanguage()]);
    if (key === this.factsKey) return;
    this.factsKey = key;
    const line = ([name, value, hint, kind, more]) => h('div', { class: kind, title: hint },
      h('dt', {}, name), h('dd', {}, value, ...(more ?? []).map(text => h('span', { class: 'more' }, text))));
    this.facts.replaceChildren(...(rows.length ? [h('dl', {}, ...rows.map(line))] : []));
  }

  // Returns the facts of a reply: name, value, hint, class, further lines.
  rows(open) {
    const { facts, state, replay } = this.node;
    const rows = [];
    const clean = facts.reconnections === 0;
    // A reply that was stopped has no count of its tokens. They come one by one.
    const isCounted = facts.output !== undefined;
    const tokens = isCounted ? facts.output : facts.pieces;
    if (!open && clean && tokens > 1 && facts.first && facts.latest > facts.first && !(facts.attempts > 1)) {
      const speed = (tokens - 1) * 1000 / (facts.latest - facts.first);
      rows.push([t('speed'), t('perSecond', { n: number(speed, speed < 10 ? 1 : 0) }), t(isCounted ? 'speedHint' : 'speedOfPieces')]);
    }
    if (facts.first) rows.push([t('first'), duration(facts.first - facts.sent), t('speedHint')]);
    // A handler that counts no tokens reports zeros.
    if (facts.input > 0 || facts.output > 0) {
      const more = facts.cached ? [t('cached', { n: number(facts.cached) })] : null;
      rows.push([t('tokens'), t('inOut', { i: number(facts.input), o: number(facts.output) }), null, null, more]);
    }
    if (facts.drafted_tokens) rows.push([t('drafts'), t('of', { n: number(facts.accepted_tokens), all: number(facts.drafted_tokens) }), t('draftsHint')]);
    if (facts.seed !== undefined) rows.push([t('seedFact'), String(facts.seed)]);
    if (facts.system_fingerprint) rows.push([t('fingerprint'), facts.system_fingerprint.slice(0, 12), `${t('fingerprintHint')}: ${facts.system_fingerprint}`]);
    if (facts.worker_fingerprint) rows.push([t('worker'), facts.worker_fingerprint.slice(0, 8), `${t('workerHint')}: ${facts.worker_fingerprint}`]);
    if (facts.trace) rows.push([t('trace'), facts.trace.slice(0, 8), `${t('traceHint')}: ${facts.trace}`]);
    if (facts.attempts > 1) rows.push([t('attempts'), number(facts.attempts), t('attemptsHint')]);
    if (facts.continued) rows.push([t('continued'), number(facts.continued), t('continuedHint')]);
    if (facts.reconnections) rows.push([t('reconnections'), number(facts.reconnections)]);
    if (replay && state !== 'waiting') rows.push([t('replayFact'), ...this.replayed(replay)]);
    return rows;
  }

  replayed(replay) {
    if (replay.running) return [t('replaying'), null, 'replay'];
    if (replay.failed) return [t('replayFailed', { why: sentence(replay.failed, this.node) }), null, 'replay wrong'];
    if (replay.equal) return [replay.whole ? `✓ ${t('equal')}` : `✓ ${t('equalSome')}`, null, 'replay right'];
    const quote = text => (text ? `“${text}”` : t('nothing'));
    return [t('differs', { n: number(replay.at + 1) }), null, 'replay wrong',
      [t('differsHere', { a: quote(replay.here) }), t('differsThere', { b: quote(replay.there) })]];
  }

  buttons(open) {
    const { node, actions } = this;
    const button = (name, label, onclick, more = {}) =>
      h('button', { type: 'button', 'data-name': name, 'aria-label': label, title: label, onclick, ...more }, t(name));
    const all = [];
    const versions = actions.versions(node);
    if (versions.length > 1) all.push(this.arrows(versions));
    if (node.role === 'user') {
      all.push(button('edit', t('editLabel'), () => this.edit()));
    } else if (!open) {
      if (node.error?.code === 'invalid_api_key') all.push(button('enterKey', t('enterKey'), () => actions.enterKey(node)));
      else if (node.state === 'failed' && node.error?.code !== 'restarted' && node.error?.status !== 400) all.push(button('tryAgain', t('tryAgain'), () => actions.tryAgain(node)));
      if (continues(node)) all.push(button('continueReply', t('continueLabel'), () => actions.continue(node)));
      all.push(button('again', t('againLabel'), () => actions.again(node)));
      if (node.text) all.push(button('replay', t('replayLabel'), () => actions.replay(node), { disabled: node.replay?.running }));
    }
    if (node.text && !open) all.push(button('copy', t('copy'), event => actions.copy(node, event.currentTarget)));
    if (!open) all.push(button('remove', t('removeMessage'), () => actions.remove(node)));
    return all;
  }

  arrows(versions) {
    const at = versions.indexOf(this.node);
    const to = (step, name, sign) => h('button', {
      type: 'button', 'data-name': name, 'aria-label': t(name), title: t(name), disabled: !versions[at + step],
      onclick: () => this.actions.choose(versions[at + step], name),
    }, h('span', { 'aria-hidden': true }, sign));
    const place = h('span', { class: 'place', 'aria-label': t('version', { n: at + 1, all: versions.length }), role: 'img' }, `${at + 1}/${versions.length}`);
    return h('span', { class: 'versions' }, to(-1, 'earlier', '‹'), place, to(1, 'later', '›'));
  }

  // Turns a message of the user into a field.
  edit() {
    const { node, actions } = this;
    const field = h('textarea', { 'aria-label': t('editLabel'), rows: 2 });
    field.value = node.text;
    const close = () => {
      editor.replaceWith(this.body);
      this.tools.hidden = false;
      this.tools.querySelector('[data-name="edit"]')?.focus();
    };
    const send = () => {
      const text = field.value.trim();
      if (text || node.files) actions.edit(node, text);
      close();
    };
    field.addEventListener('keydown', event => {
      if (isComposing(event)) return;
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        send();
      } else if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      }
    });
    field.addEventListener('input', () => grow(field));
    const editor = h('div', { class: 'editor' }, field, h('div', { class: 'actions' },
      h('button', { type: 'button', onclick: close }, t('cancel')),
      h('button', { type: 'button', class: 'primary', onclick: send }, t('saveEdit'))));
    this.body.replaceWith(editor);
    this.tools.hidden = true;
    grow(field);
    field.focus();
  }
}

// Returns a file as an item of a list. With `remove`, it has a button.
export function chip({ name, text }, remove) {
  const size = new TextEncoder().encode(text).length;
  const amount = size < 1024 ? `${number(size)} B` : `${number(size / 1024, 1)} KiB`;
  const button = remove && h('button', { type: 'button', class: 'icon', 'aria-label': t('detach', { name }), title: t('detach', { name }), onclick: remove },
    h('span', { 'aria-hidden': true }, '×'));
  return h('li', {}, h('span', { class: 'name' }, name), h('span', {}, amount), button);
}

/** Returns true for a key of an input method. The Enter that ends its composition sends nothing; Safari reports it as key 229. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

// Makes a field as high as its text.
export function grow(field) {
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight + 2}px`;
}

// Fills the page of a conversation without messages. `isTale` is true for the bundled models.
export function fillEmpty(root, isTale, choose) {
  const examples = (isTale ? ['tale1', 'tale2', 'tale3'] : ['ask1', 'ask2', 'ask3']).map(name =>
    h('button', { type: 'button', onclick: () => choose(t(name)) }, t(name)));
  root.replaceChildren(
    h('div', { class: 'scene', 'aria-hidden': true },
      h('img', { src: 'page/bear.svg', alt: '', width: 92, height: 92 }), h('img', { src: 'page/seal.svg', alt: '', width: 92, height: 92 })),
    h('h2', {}, t(isTale ? 'storyTitle' : 'emptyTitle')),
    h('p', {}, t(isTale ? 'storyText' : 'emptyText')),
    h('div', { class: 'examples', role: 'group', 'aria-label': t('examples') }, ...examples));
}
