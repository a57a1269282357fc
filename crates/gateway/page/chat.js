// One conversation: a tree of messages, of which one path is shown, and its replies in progress.

import { listConversations, newId, nodesOf, put } from './store.js';
import { withFiles } from './files.js';
import { begin, computeAgain, isOpen, Reading } from './reply.js';

const SAVE_EVERY = 250;
const MAX_TITLE = 60;

// Replies in progress by the id of their message. They go on while another conversation is shown.
const readings = new Map();

// Ids of the messages and conversations that are deleted.
const dropped = new Set();

export const readingOf = node => readings.get(node.id);

export class Chat {
  constructor(conversation, changed) {
    this.conversation = conversation;
    this.changed = changed;
    this.nodes = new Map();
  }

  static create(model, settings, changed) {
    const conversation = { id: newId(), title: '', updated: Date.now(), model, settings, choice: {} };
    return new Chat(conversation, changed);
  }

  static async load(conversation, changed) {
    const chat = new Chat(conversation, changed);
    for (const node of await nodesOf(conversation.id)) chat.take(node);
    return chat;
  }

  // Takes a message of the database, and reads its reply on if that is in progress.
  take(stored) {
    if (isDropped(stored)) return;
    const live = readings.get(stored.id)?.node;
    const here = this.nodes.get(stored.id);
    // A reply in progress has a newer state here than in the database, and so has a replay.
    if (here && !live && !here.replay?.running) Object.assign(here, stored);
    const node = live ?? here ?? stored;
    this.nodes.set(node.id, node);
    if (node.role === 'assistant' && isOpen(node)) this.follow(node);
  }

  // Takes what another tab has written. Returns false if it has deleted the conversation.
  async refresh() {
    const { id } = this.conversation;
    const before = JSON.stringify(this.conversation);
    const all = await listConversations();
    const nodes = await nodesOf(id);
    // This tab has written meanwhile, which is newer than what was read.
    if (before !== JSON.stringify(this.conversation)) return this.refresh();
    const found = all.find(conversation => conversation.id === id);
    const ids = new Set(nodes.map(node => node.id));
    for (const node of this.nodes.values()) if (!ids.has(node.id)) this.forget(node);
    if (!found) return false;
    Object.assign(this.conversation, found);
    for (const node of nodes) this.take(node);
    return true;
  }

  forget(node) {
    drop(node);
    this.nodes.delete(node.id);
  }

  versions(parent) {
    const all = Array.from(this.nodes.values()).filter(node => node.parent === parent);
    return all.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  }

  // Returns the messages that are shown.
  path() {
    const path = [];
    let parent = null;
    for (;;) {
      const versions = this.versions(parent);
      if (versions.length === 0) return path;
      const chosen = versions.find(node => node.id === this.conversation.choice[parent ?? 'root']);
      const node = chosen ?? versions[versions.length - 1];
      path.push(node);
      parent = node.id;
    }
  }

  async choose(node) {
    this.conversation.choice[node.parent ?? 'root'] = node.id;
    await this.save();
  }

  // Adds a message of the user behind `parent`, and a reply to it. Returns the reply.
  async send(text, files, parent, model) {
    const user = this.add({ role: 'user', parent, text, files: files.length ? files : undefined });
    this.conversation.title ||= titleOf(text.trim() || files[0].name);
    return this.reply(user, model, [user]);
  }

  // Adds a reply to a message of the user. Another version of a reply has another seed.
  async reply(user, model, more = [], before = undefined) {
    const isAnother = !before && this.versions(user.id).length > 0;
    const node = this.add({ role: 'assistant', parent: user.id, model });
    const { seed, body } = this.request(user, model, isAnother, before?.text);
    begin(node, body, before);
    node.facts.seed = seed;
    this.conversation.updated = Date.now();
    this.conversation.model = model;
    // The request is stored before it is sent: a page that is closed now sends it again.
    await put({ conversations: [this.conversation], nodes: [...more, node] });
    this.follow(node);
    return node;
  }

  // Adds a version of a reply that begins with all of its text.
  continue(node, model) {
    return this.reply(this.nodes.get(node.parent), model, [], node);
  }

  add(fields) {
    // Versions are in the order of their times, so no two have the same.
    const created = Math.max(Date.now(), ...this.versions(fields.parent).map(node => node.created + 1));
    const node = { id: newId(), conversation: this.conversation.id, created, ...fields };
    this.nodes.set(node.id, node);
    this.conversation.choice[node.parent ?? 'root'] = node.id;
    return node;
  }

  request(user, model, isAnother, begun) {
    const input = begun ? [{ role: 'assistant', content: begun }] : [];
    for (let node = user; node; node = this.nodes.get(node.parent)) {
      const content = withFiles(node);
      if (content) input.unshift({ role: node.role, content });
    }
    const { settings } = this.conversation;
    const { instructions, seed: fixed } = settings;
    // The grammar of a format knows no beginning of its text.
    const schema = begun ? undefined : settings.schema;
    const random = crypto.getRandomValues(new Uint32Array(1))[0];
    const seed = fixed === undefined || isAnother ? random : fixed;
    const text = schema ? { format: { type: 'json_schema', name: 'reply', schema: JSON.parse(schema), strict: true } } : undefined;
    const body = {
      model, input, instructions, max_output_tokens: settings.maxTokens, seed, text, stop: settings.stop,
      temperature: settings.temperature, top_p: settings.topP, top_k: settings.topK, min_p: settings.minP,
      frequency_penalty: settings.frequencyPenalty, presence_penalty: settings.presencePenalty,
      repetition_penalty: settings.repetitionPenalty,
      continue_final_message: begun ? true : undefined, stream: true, background: true, store: true,
    };
    return { seed, body: JSON.stringify(body) };
  }

  // Reads a reply to its end, and stores it on the way.
  follow(node) {
    if (readings.has(node.id) || isDropped(node)) return;
    let timer = null;
    const write = () => {
      clearTimeout(timer);
      timer = null;
      if (isDropped(node)) return;
      put({ nodes: [node] }).catch(error => console.warn('a message was not stored', error));
    };
    const reading = new Reading(node, (_, save) => {
      if (save) write();
      else timer ??= setTimeout(write, SAVE_EVERY);
      this.changed(node);
    });
    reading.flush = () => timer !== null && write();
    readings.set(node.id, reading);
    reading.run().finally(() => {
      readings.delete(node.id);
      this.changed(node);
    });
  }

  // Reads on after a failure: with another key, or by another request for the same reply.
  again(node) {
    if (![401, 403].includes(node.error?.status)) computeAgain(node);
    node.notes = [];
    node.state = node.text ? 'streaming' : 'waiting';
    node.error = null;
    this.follow(node);
    this.changed(node);
  }

  // Returns the reply in progress that is shown, if there is one.
  open() {
    return this.path().findLast(node => readings.has(node.id)) ?? null;
  }

  // Removes a message and all that follow it.
  async remove(node) {
    const { choice } = this.conversation;
    const gone = [node];
    for (const one of gone) gone.push(...this.versions(one.id));
    for (const one of gone) {
      this.forget(one);
      delete choice[one.id];
    }
    if (choice[node.parent ?? 'root'] === node.id) delete choice[node.parent ?? 'root'];
    await put({ conversations: [this.conversation], gone: gone.map(one => one.id) });
  }

  save() {
    return put({ conversations: [this.conversation] });
  }
}

function titleOf(text) {
  const [line] = text.split('\n');
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1).replace(/[\ud800-\udbff]$/, '').trimEnd()}…` : line;
}

const isDropped = node => dropped.has(node.id) || dropped.has(node.conversation);

// Stops a reply that is no longer wanted, so that its end is not stored.
function drop(node) {
  dropped.add(node.id);
  readings.get(node.id)?.stop();
}

// Stops the replies of a conversation that is deleted, be it shown or not.
export function dropConversation(id) {
  dropped.add(id);
  for (const reading of readings.values()) if (reading.node.conversation === id) reading.stop();
}

// Stops the replies of conversations that another tab has deleted.
export async function dropOthers() {
  const ids = new Set((await listConversations()).map(({ id }) => id));
  for (const { node } of readings.values()) if (!ids.has(node.conversation)) dropConversation(node.conversation);
}

// Writes what is not written yet.
export function flush() {
  for (const reading of readings.values()) reading.flush();
}
