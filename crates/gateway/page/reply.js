// Reply to one message: sent once, read to its end, over as many connections as that takes.
//
// The gateway numbers the events of a reply. The node keeps the number of the last event beside the
// text, and both are written together, so that after a reload, a lost network or a new gateway the
// text goes on with the next event: no piece comes twice, and none is left out. A reply that the
// gateway no longer has is computed again with the same seed, and compared with what is here.

import { call, events, Failure } from './api.js';
import { newId } from './store.js';

const SILENCE = 40_000; // The gateway sends a comment every 15 s.
const PAUSES = [250, 500, 1000, 2000, 4000, 8000];

export const isOpen = node => node.state === 'waiting' || node.state === 'streaming';

// Fills the fields of a new reply. `body` is the body of its request, as text. The reply goes on behind the text and the
// reasoning of `before`.
export function begin(node, body, { text, reasoning } = { text: '', reasoning: '' }) {
  Object.assign(node, {
    text, reasoning, before: { text, reasoning }, state: 'waiting', body, key: newId(), response: null, last: -1,
    error: null, notes: [], replay: null, wanted: null,
    facts: { sent: Date.now(), first: null, end: null, reconnections: 0, trace: hex(16) },
  });
}

// Returns random bytes as lower-case hex digits, as ids of traces and spans are written.
function hex(bytes) {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), byte => byte.toString(16).padStart(2, '0')).join('');
}

// Makes the next request for a reply a new one, whose text is compared with the text that is here.
export function computeAgain(node) {
  node.response = null;
  node.last = -1;
  node.key = newId();
  const { text = '', reasoning = '' } = node.before ?? {};
  node.wanted = node.text !== text || node.reasoning !== reasoning ? { text, reasoning } : null;
}

// Reads the reply of a node. `changed(node, save)` is called after each change.
export class Reading {
  constructor(node, changed) {
    this.node = node;
    this.changed = changed;
    // State that only this page needs: a notice, and the time of the next try.
    this.notice = null;
    this.isStopping = false;
    this.isOver = false;
    this.wake = () => {};
    this.attempts = 0;
    // Time of the last event, or of the connection.
    this.heard = Date.now();
  }

  // Reads to the end. Never fails: a failure is the state of the node.
  async run() {
    // After a reload the reply goes on over a new connection.
    if (this.node.last >= 0 || this.node.response) this.node.facts.reconnections += 1;
    const online = () => this.wake();
    const offline = () => this.abort?.abort();
    addEventListener('online', online);
    addEventListener('offline', offline);
    try {
      while (!this.isOver) await this.connect();
    } finally {
      removeEventListener('online', online);
      removeEventListener('offline', offline);
      this.notice = null;
      this.changed(this.node, true);
    }
    this.describe();
  }

  // Adds what the gateway knows of the workers of the reply.
  async describe() {
    const { node } = this;
    if (!node.response || !node.id) return;
    try {
      const response = await call(`v1/responses/${node.response}`, { signal: AbortSignal.timeout(10_000) });
      Object.assign(node.facts, (await response.json()).nsbridge);
      this.changed(node, true);
    } catch {
      // The reply is whole without it.
    }
  }

  // Reads one connection.
  async connect() {
    const { node } = this;
    if (this.isStopping && !node.response) return this.finish('stopped');
    this.abort = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.abort.abort(), SILENCE);
    };
    try {
      heard();
      const response = await this.open();
      const wasLost = this.notice !== null;
      this.notice = null;
      this.heard = Date.now();
      if (wasLost) this.changed(node, false);
      for await (const event of events(response, heard)) {
        this.attempts = 0;
        this.heard = Date.now();
        if (!this.take(event)) break;
        if (this.isOver) return;
      }
      await this.lost(new Failure(0, 'cut', 'the connection ended'));
    } catch (error) {
      if (this.isOver) return;
      await this.lost(error instanceof Failure ? error : new Failure(0, 'network', String(error)));
    } finally {
      clearTimeout(timer);
    }
  }

  open() {
    const { node } = this;
    const { signal } = this.abort;
    if (node.response) {
      const path = `v1/responses/${node.response}?stream=true`;
      return call(node.last < 0 ? path : `${path}&starting_after=${node.last}`, { signal });
    }
    // A request that is sent again joins the reply that it repeats.
    const headers = { 'idempotency-key': node.key };
    if (node.facts.trace) headers.traceparent = `00-${node.facts.trace}-${hex(8)}-01`;
    return call('v1/responses', { method: 'POST', body: node.body, headers, signal });
  }

  // Takes an event. Returns false if one is missing before it.
  take(event) {
    const { node } = this;
    const number = event.sequence_number;
    const isEnd = ['response.completed', 'response.incomplete', 'response.failed'].includes(event.type);
    if (event.type === 'response.failed') {
      // The end of a reply that failed may have another number than the next. A gateway that shuts
      // down ends the stream, not the reply: the next one goes on with it.
      if (event.response.nsbridge?.error_code === 'draining') return false;
    } else {
      if (number <= node.last) return true;
      if (number > node.last + 1) return false;
      node.last = number;
    }
    switch (event.type) {
      case 'response.created':
        node.response = event.response.id;
        if (this.isStopping) this.cancel();
        this.changed(node, true);
        return true;
      case 'response.output_text.delta':
        this.extend('text', event.delta);
        return true;
      case 'response.reasoning_text.delta':
        this.extend('reasoning', event.delta);
        return true;
      default:
        if (isEnd) this.end(event.response);
        return true;
    }
  }

  extend(field, delta) {
    const { node } = this;
    if (node.wanted) return this.compare(field, delta);
    node.state = 'streaming';
    const { facts } = node;
    // A time that includes a lost connection says nothing about the model.
    if (facts.first === null && facts.reconnections === 0) facts.first = Date.now();
    facts.latest = Date.now();
    facts.pieces = (facts.pieces ?? 0) + 1;
    node[field] += delta;
    this.changed(node, false);
  }

  // Compares text that is computed again with the text that is here.
  compare(field, delta) {
    const { node } = this;
    const { wanted } = node;
    wanted[field] += delta;
    const here = node[field], there = wanted[field];
    if (!here.startsWith(there) && !there.startsWith(here)) {
      let at = 0;
      while (here[at] === there[at]) at += 1;
      node.notes.push({ kind: 'recomputeDiffers', n: at });
      this.fail(new Failure(0, 'restarted', ''));
      this.forget();
      return;
    }
    if (there.length > here.length) node[field] = there;
    if (wanted.text.length >= node.text.length && wanted.reasoning.length >= node.reasoning.length) {
      node.wanted = null;
      node.state = 'streaming';
      this.notice = null;
      node.notes.push({ kind: 'recomputed' });
      // The number of the last event and the text belong together again.
      this.changed(node, true);
    }
  }

  end(response) {
    const { node } = this;
    const { facts } = node;
    const { usage, nsbridge = {} } = response;
    facts.end = Date.now();
    if (usage) {
      facts.input = usage.input_tokens;
      facts.output = usage.output_tokens;
      facts.cached = usage.input_tokens_details?.cached_tokens ?? 0;
    }
    Object.assign(facts, nsbridge);
    if (node.wanted && node.wanted.text !== node.text) {
      // The reply that was computed again ended before the text that is here.
      node.notes.push({ kind: 'recomputeDiffers', n: node.wanted.text.length });
      return this.fail(new Failure(0, 'restarted', ''));
    }
    node.wanted = null;
    if (response.status === 'cancelled') return this.finish('stopped');
    if (response.status === 'failed') {
      const { code, message } = response.error ?? {};
      const restarted = nsbridge.error_code === 'restarted';
      // The worker refuses the request as it is: another try has an equal end.
      const status = code === 'invalid_prompt' ? 400 : 500;
      return this.fail(new Failure(status, restarted ? 'restarted' : nsbridge.error_code ?? code ?? '', message ?? ''));
    }
    const refused = response.incomplete_details?.reason === 'content_filter';
    if (refused) node.notes.push({ kind: 'contentFilter' });
    this.finish(response.status === 'incomplete' && !refused ? 'cut' : 'done');
  }

  finish(state) {
    this.node.state = state;
    this.isOver = true;
  }

  fail(failure) {
    const { node } = this;
    node.error = { status: failure.status, code: failure.code, message: failure.message };
    this.finish('failed');
  }

  // Decides about the next connection after one was lost or refused.
  async lost(failure) {
    const { node } = this;
    if (this.isStopping && !node.response) return this.finish('stopped');
    if (failure.status === 404 && node.response && failure.code !== 'model_not_found') {
      // The gateway no longer has the reply: its time is over, or it was never stored.
      if (this.isStopping) return this.finish('stopped');
      computeAgain(node);
      node.recomputed = (node.recomputed ?? 0) + 1;
      if (node.recomputed > 3) return this.fail(failure);
      this.notice = { kind: 'recomputing' };
      this.changed(node, true);
      return;
    }
    if (!failure.passes) return this.fail(failure);
    if (node.response || node.last >= 0) node.facts.reconnections += this.attempts === 0 ? 1 : 0;
    const pause = failure.after ? failure.after * 1000 : PAUSES[Math.min(this.attempts, PAUSES.length - 1)];
    this.attempts += 1;
    this.notice = { kind: 'lost', failure, until: Date.now() + pause };
    this.changed(node, true);
    await new Promise(resolve => {
      const timer = setTimeout(resolve, pause);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => {};
  }

  // Stops the reply: the gateway cancels it in the queue and in its worker.
  stop() {
    if (this.isStopping || this.isOver) return;
    this.isStopping = true;
    this.notice = { kind: 'stopping' };
    this.changed(this.node, false);
    if (this.node.response) this.cancel();
    else this.abortUnlessCreated();
    this.wake();
  }

  // A request on its way may have begun a reply whose id has not come yet: it is awaited for a moment.
  abortUnlessCreated() {
    setTimeout(() => {
      if (this.isOver || this.node.response) return;
      this.finish('stopped');
      this.abort?.abort();
    }, 3000);
  }

  async cancel() {
    const { response } = this.node;
    try {
      await call(`v1/responses/${response}/cancel`, { method: 'POST', signal: AbortSignal.timeout(5000) });
    } catch {
      // The reply ends by itself, and its end is not shown.
    }
    // Its last event comes over the stream; without a stream it is over here.
    setTimeout(() => {
      if (this.isOver) return;
      this.finish('stopped');
      this.abort?.abort();
      this.wake();
    }, 2000);
  }

  // Lets the gateway drop a reply of which nothing more is needed.
  forget() {
    const { response } = this.node;
    if (response) call(`v1/responses/${response}/cancel`, { method: 'POST' }).catch(() => {});
  }
}

// Computes a reply again from the same request, and compares it with the node's text. Returns
// `{ equal, whole }`, or the first difference.
export async function replay(node, told, signal) {
  const copy = { text: '', reasoning: '', state: 'waiting' };
  begin(copy, node.body, node.before);
  const reading = new Reading(copy, () => {
    told(copy);
    // A reply that was stopped is compared as far as it goes.
    const differs = difference(node, copy, false);
    const enough = !['done', 'cut'].includes(node.state) && copy.text.length > node.text.length;
    if (isOpen(copy) && (differs || enough)) reading.stop();
  });
  signal.addEventListener('abort', () => reading.stop());
  await reading.run();
  const whole = ['done', 'cut'].includes(node.state);
  if (copy.state === 'failed') return { failed: copy.error };
  const first = difference(node, copy, whole);
  if (first) return first;
  if (copy.text.length < node.text.length) return { failed: { status: 0, code: 'stopped', message: '' } };
  return { equal: true, whole };
}

// Returns the first difference of two texts; with `ends`, also that of their lengths.
function difference(node, copy, ends) {
  const [here, there] = [node.reasoning + node.text, copy.reasoning + copy.text];
  const shorter = Math.min(here.length, there.length);
  let at = 0;
  while (at < shorter && here[at] === there[at]) at += 1;
  if (at === shorter && !(ends && !isOpen(copy) && here.length !== there.length)) return null;
  const around = text => text.slice(Math.max(0, at - 12), at + 12);
  return { equal: false, at, here: around(here), there: around(there) };
}
