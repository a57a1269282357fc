// Conversations and their messages in IndexedDB; in memory where the browser has none.
//
// A message (node) names the one before it. Messages with the same parent are versions of each other.

const DATABASE = 'nsbridge', VERSION = 1;
let database = null;
const memory = { conversations: new Map(), nodes: new Map() };

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
}

// Tabs of the page tell each other that there is something new in the database.
const channel = new BroadcastChannel(DATABASE);
const tell = () => channel.postMessage(null);

// Calls `changed` when another tab has changed what conversations there are, or begun a reply in one.
export function onChange(changed) {
  channel.onmessage = changed;
}

// Opens the database. Returns false if conversations are kept in memory only.
export function open() {
  return new Promise(resolve => {
    let request;
    try {
      request = indexedDB.open(DATABASE, VERSION);
    } catch {
      resolve(false);
      return;
    }
    request.onupgradeneeded = () => {
      request.result.createObjectStore('conversations', { keyPath: 'id' });
      request.result.createObjectStore('nodes', { keyPath: 'id' }).createIndex('conversation', 'conversation');
    };
    request.onsuccess = () => {
      database = request.result;
      // Another tab with a newer page must be able to open the database.
      database.onversionchange = () => database.close();
      resolve(true);
    };
    request.onerror = request.onblocked = () => resolve(false);
  });
}

// Runs `work` in one transaction and returns the result of its request once everything is written.
function transact(mode, work) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(['conversations', 'nodes'], mode);
    const request = work(transaction.objectStore('conversations'), transaction.objectStore('nodes'));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

export async function listConversations() {
  const all = database
    ? await transact('readonly', conversations => conversations.getAll())
    : Array.from(memory.conversations.values());
  return all.sort((a, b) => b.updated - a.updated);
}

export async function nodesOf(conversation) {
  if (!database) return Array.from(memory.nodes.values()).filter(node => node.conversation === conversation);
  return transact('readonly', (_, nodes) => nodes.index('conversation').getAll(conversation));
}

// Returns the ids of the conversations that have this text in their titles or messages.
export async function search(text) {
  const plain = value => value.normalize('NFKC').toLowerCase();
  const wanted = plain(text);
  const nodes = database ? await transact('readonly', (_, all) => all.getAll()) : Array.from(memory.nodes.values());
  const inText = nodes.filter(node => plain(node.text).includes(wanted)).map(node => node.conversation);
  const inTitle = (await listConversations()).filter(({ title }) => plain(title).includes(wanted)).map(({ id }) => id);
  return new Set([...inText, ...inTitle]);
}

// Writes conversations and nodes together, and removes the nodes with the ids of `gone`: all of them or none.
export async function put({ conversations = [], nodes = [], gone = [] }) {
  if (!database) {
    for (const id of gone) memory.nodes.delete(id);
    for (const it of conversations) memory.conversations.set(it.id, structuredClone(it));
    for (const it of nodes) memory.nodes.set(it.id, structuredClone(it));
    return;
  }
  await transact('readwrite', (ofConversations, ofNodes) => {
    for (const it of conversations) ofConversations.put(it);
    for (const it of nodes) ofNodes.put(it);
    for (const id of gone) ofNodes.delete(id);
  });
  if (conversations.length) tell();
}

export async function removeConversation(id) {
  const nodes = await nodesOf(id);
  if (!database) {
    memory.conversations.delete(id);
    for (const node of nodes) memory.nodes.delete(node.id);
    return;
  }
  await transact('readwrite', (ofConversations, ofNodes) => {
    ofConversations.delete(id);
    for (const node of nodes) ofNodes.delete(node.id);
  });
  tell();
}

const FORMAT = 'nsbridge conversations 1';

// Returns all conversations as the text of a file.
export async function exported() {
  const conversations = [];
  for (const conversation of await listConversations()) {
    conversations.push({ ...conversation, nodes: await nodesOf(conversation.id) });
  }
  return JSON.stringify({ format: FORMAT, conversations }, null, 1);
}

// Adds the conversations of a file, and returns them. They get new ids, so nothing is replaced.
export async function importText(text) {
  const { format, conversations } = JSON.parse(text);
  if (format !== FORMAT || !Array.isArray(conversations)) throw new Error('not an export');
  const all = { conversations: [], nodes: [] };
  for (const { nodes, ...conversation } of conversations) {
    if (!Array.isArray(nodes) || typeof conversation.title !== 'string') throw new Error('not a conversation');
    const ids = new Map([[null, null]]);
    for (const node of nodes) ids.set(checked(node).id, newId());
    const id = newId();
    const renamed = Object.entries(conversation.choice ?? {})
      .map(([parent, child]) => [parent === 'root' ? 'root' : ids.get(parent), ids.get(child)])
      .filter(([parent, child]) => parent && child);
    all.conversations.push({
      id, title: conversation.title, updated: Number(conversation.updated) || Date.now(),
      model: String(conversation.model ?? ''), settings: Object(conversation.settings),
      choice: Object.fromEntries(renamed),
    });
    for (const node of nodes) {
      // Replies in progress go on where they began, not in a copy.
      const state = ['waiting', 'streaming'].includes(node.state) ? 'stopped' : node.state;
      all.nodes.push({ ...node, state, id: ids.get(node.id), parent: ids.get(node.parent) ?? null, conversation: id });
    }
  }
  await put(all);
  return all.conversations;
}

function checked(node) {
  const isNode = typeof node?.id === 'string' && typeof node.text === 'string' && ['user', 'assistant'].includes(node.role);
  const { files = [] } = node;
  const areFiles = Array.isArray(files) && files.every(file => typeof file?.name === 'string' && typeof file.text === 'string');
  if (!isNode || !areFiles) throw new Error('not a message');
  return node;
}
