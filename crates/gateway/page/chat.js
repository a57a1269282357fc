// One conversation: a tree of messages, of which one path is shown, and its replies in progress.

import { newId, nodesOf, put } from './store.js';
import { begin, computeAgain, isOpen, Reading } from './reply.js';

const SAVE_EVERY = 250;

// Replies in progress by the id of their message. They go on while another conversation is shown.
const readings = new Map();

export const readingOf = node => readings.get(node.id);

export class Chat {
  constructor(conversation, changed) {
    this.conversation = conversation;
    this.changed = changed;
    this.nodes = new Map();
  }

  static create(model, changed) {
    const conversation = { id: newId(), title: '', updated: Date.now(), model, settings: {}, choice: {} };
    return new Chat(conversation, changed);
  }

  static async load(conversation, changed) {
    const chat = new Chat(conversation, changed);
    for (const node of await nodesOf(conversation.id)) {
      // A reply in progress has a newer state here than in the database.
      const live = readings.get(node.id)?.node ?? node;
      chat.nodes.set(node.id, live);
    }
    for (const node of chat.nodes.values()) if (node.role === 'assistant' && isOpen(node)) chat.follow(node);
    return chat;
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
  async send(text, parent, model) {
    const user = this.add({ role: 'user', parent, text });
    this.conversation.title ||= text.trim().split('\n')[0].slice(0, 60);
    return this.reply(user, model, [user]);
  }

  // Adds a reply to a message of the user. Another version of a reply has another seed.
  async reply(user, model, more = []) {
    const isAnother = this.versions(user.id).length > 0;
    const node = this.add({ role: 'assistant', parent: user.id, model });
    const { seed, body } = this.request(user, model, isAnother);
    begin(node, body);
    node.facts.seed = seed;
    this.conversation.updated = Date.now();
    this.conversation.model = model;
    // The request is stored before it is sent: a page that is closed now sends it again.
    await put({ conversations: [this.conversation], nodes: [...more, node] });
    this.follow(node);
    return node;
  }

  add(fields) {
    // Versions are in the order of their times, so no two have the same.
    const created = Math.max(Date.now(), ...this.versions(fields.parent).map(node => node.created + 1));
    const node = { id: newId(), conversation: this.conversation.id, created, ...fields };
    this.nodes.set(node.id, node);
    this.conversation.choice[node.parent ?? 'root'] = node.id;
    return node;
  }

  request(user, model, isAnother) {
    const input = [];
    for (let node = user; node; node = this.nodes.get(node.parent)) {
      if (node.text) input.unshift({ role: node.role, content: node.text });
    }
    const { instructions, temperature, topP, maxTokens, schema, seed: fixed } = this.conversation.settings;
    const random = crypto.getRandomValues(new Uint32Array(1))[0];
    const seed = fixed === undefined || isAnother ? random : fixed;
    const text = schema ? { format: { type: 'json_schema', name: 'reply', schema: JSON.parse(schema), strict: true } } : undefined;
    const body = {
      model, input, instructions, temperature, top_p: topP, max_output_tokens: maxTokens, seed, text,
      stream: true, background: true, store: true,
    };
    return { seed, body: JSON.stringify(body) };
  }

  // Reads a reply to its end, and stores it on the way.
  follow(node) {
    if (readings.has(node.id)) return;
    let timer = null;
    const write = () => {
      clearTimeout(timer);
      timer = null;
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

  save() {
    return put({ conversations: [this.conversation] });
  }
}

// Writes what is not written yet.
export function flush() {
  for (const reading of readings.values()) reading.flush();
}
