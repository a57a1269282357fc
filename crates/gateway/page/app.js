// The page: its parts, its keys, and what is shown.

import { Failure, getKey, models } from './api.js';
import { Chat, flush, readingOf } from './chat.js';
import { askKey, askSettings } from './dialogs.js';
import { isOpen, replay } from './reply.js';
import { exported, importText, listConversations, open, put, removeConversation } from './store.js';
import { fill, getLanguage, setLanguage, t } from './text.js';
import { fillEmpty, grow, h, isComposing, MessageView, sentence } from './view.js';

const $ = id => document.getElementById(id);
const state = { chat: null, models: [], views: new Map(), busy: false, pinned: true, isStored: true };
const composer = $('composer');
const dirty = new Set();

// --- What is shown ---

function model() {
  return $('model').value;
}

function say(text) {
  $('said').textContent = '';
  // A text that is equal to the last one is announced too.
  requestAnimationFrame(() => {
    $('said').textContent = text;
  });
}

function notice(text, ...actions) {
  $('notice').hidden = !text;
  $('notice').replaceChildren(...(text ? [h('span', {}, text), ...actions] : []));
}

function showPath() {
  const path = state.chat.path();
  const views = new Map();
  for (const node of path) views.set(node.id, state.views.get(node.id) ?? new MessageView(node, actions));
  state.views = views;
  const wanted = path.map(node => views.get(node.id).root);
  const log = $('log');
  // Messages that stay are not moved, so that they keep focus and selection.
  Array.from(log.children).forEach(child => wanted.includes(child) || child.remove());
  wanted.forEach((root, index) => log.children[index] === root || log.insertBefore(root, log.children[index] ?? null));
  for (const view of views.values()) view.update();
  $('empty').hidden = path.length > 0;
  if (path.length === 0) fillEmpty($('empty'), /^tale|^demo/.test(model()), start);
  log.hidden = path.length === 0;
  showSettings();
  document.title = state.chat.conversation.title ? `${state.chat.conversation.title} · nsbridge` : 'nsbridge';
  showButtons();
}

function showButtons() {
  const open = state.chat?.open() ?? null;
  const focused = [$('send'), $('stop')].includes(document.activeElement);
  $('send').hidden = open !== null;
  $('stop').hidden = open === null;
  $('stop').disabled = open !== null && (readingOf(open)?.isStopping ?? false);
  $('send').disabled = composer.value.trim() === '' || state.models.length === 0;
  if (focused) composer.focus();
}

// Updates the views that changed, once a frame.
function changed(node) {
  if (dirty.size === 0) requestAnimationFrame(updateDirty);
  dirty.add(node);
}

function updateDirty() {
  const nodes = Array.from(dirty);
  dirty.clear();
  for (const node of nodes) {
    const view = state.views.get(node.id);
    if (!view || view.node !== node) continue;
    const wasOpen = view.root.classList.contains('open');
    view.update();
    if (wasOpen && !isOpen(node)) {
      const ends = { done: 'done', cut: 'cut', stopped: 'stopped' };
      say(ends[node.state] ? t(ends[node.state]) : node.error ? sentence(node.error, node) : '');
      if (node.error?.code === 'invalid_api_key') enterKey(node);
    }
  }
  showButtons();
  if (state.pinned) toEnd();
}

function toEnd() {
  const scroll = $('scroll');
  scroll.scrollTop = scroll.scrollHeight;
}

$('scroll').addEventListener('scroll', () => {
  const scroll = $('scroll');
  state.pinned = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  $('down').hidden = state.pinned;
}, { passive: true });
$('down').addEventListener('click', () => {
  state.pinned = true;
  toEnd();
});
// Lines about waiting and the next try have times in them.
setInterval(() => {
  for (const view of state.views.values()) if (view.node.role === 'assistant' && isOpen(view.node)) view.update();
}, 500);

async function showList() {
  const all = await listConversations();
  const row = conversation => {
    const title = conversation.title || t('untitled');
    const current = conversation.id === state.chat?.conversation.id;
    return h('li', {},
      h('a', { href: `#${conversation.id}`, 'aria-current': current ? 'page' : null, onclick: closeSide }, title),
      h('button', { type: 'button', class: 'icon', 'aria-label': t('removeLabel', { title }), title: t('remove'), onclick: () => remove(conversation, title) },
        h('span', { 'aria-hidden': true }, '×')));
  };
  $('list').replaceChildren(...all.map(row));
}

async function remove(conversation, title) {
  if (!confirm(t('removeSure', { title }))) return;
  if (conversation.id === state.chat.conversation.id) {
    for (const node of state.chat.nodes.values()) readingOf(node)?.stop();
    await removeConversation(conversation.id);
    await show('');
  } else {
    await removeConversation(conversation.id);
    await showList();
  }
}

// Shows a conversation; a new one if there is none of this id.
async function show(id) {
  const found = (await listConversations()).find(conversation => conversation.id === id);
  state.chat = found ? await Chat.load(found, changed) : Chat.create(model(), changed);
  state.views.clear();
  $('log').replaceChildren();
  if (found && state.models.some(it => it.id === found.model)) $('model').value = found.model;
  const hash = found ? `#${id}` : '';
  if (location.hash !== hash) history.replaceState(null, '', hash || location.pathname + location.search);
  state.pinned = true;
  showPath();
  toEnd();
  await showList();
}

// --- What a person does ---

const actions = {
  versions: node => state.chat.versions(node.parent),
  // Formulas have another height than their sources.
  rendered: () => state.pinned && toEnd(),
  async choose(node, name) {
    await state.chat.choose(node);
    showPath();
    state.views.get(node.id)?.tools.querySelector(`[data-name="${name}"]:not(:disabled), .versions button:not(:disabled)`)?.focus();
  },
  edit: (node, text) => submit(text, node.parent),
  async again(node) {
    const user = state.chat.nodes.get(node.parent);
    await replied(state.chat.reply(user, model() || node.model));
  },
  tryAgain(node) {
    state.chat.again(node);
    showPath();
  },
  enterKey,
  copy(node, button) {
    const done = () => {
      say(t('copied'));
      button.textContent = t('copied');
      setTimeout(() => { button.textContent = t('copy'); }, 1500);
    };
    // The clipboard needs a secure connection or this machine.
    navigator.clipboard?.writeText(node.text).then(done, () => {});
  },
  async replay(node) {
    const abort = new AbortController();
    node.replay = { running: true };
    changed(node);
    const result = await replay(node, () => {}, abort.signal);
    node.replay = result;
    await put({ nodes: [node] });
    changed(node);
    const rows = state.views.get(node.id)?.replayed(result);
    if (rows) say(`${t('replayFact')}: ${rows[0]}`);
  },
};

function enterKey(node) {
  askKey(found => {
    takeModels(found ?? []);
    if (found && node) actions.tryAgain(node);
  }, node ? t('keyWrong') : null);
}

async function submit(text, parent) {
  if (state.busy) return;
  if (state.models.length === 0) return loadModels();
  await replied(state.chat.send(text, parent, model()));
}

// Shows a reply that has just begun.
async function replied(begun) {
  state.busy = true;
  try {
    await begun;
  } finally {
    state.busy = false;
  }
  notice(null);
  state.pinned = true;
  history.replaceState(null, '', `#${state.chat.conversation.id}`);
  showPath();
  toEnd();
  await showList();
}

async function start(text) {
  composer.value = text;
  grow(composer);
  showButtons();
  composer.focus();
}

async function sendComposed() {
  const text = composer.value.trim();
  if (!text || state.busy || state.chat.open()) return;
  if (state.models.length === 0) return loadModels();
  const path = state.chat.path();
  composer.value = '';
  grow(composer);
  await submit(text, path.length ? path[path.length - 1].id : null);
}

function stop() {
  const node = state.chat?.open();
  if (node) readingOf(node)?.stop();
}

$('compose').addEventListener('submit', event => {
  event.preventDefault();
  sendComposed();
});
$('stop').addEventListener('click', stop);
composer.addEventListener('input', () => {
  grow(composer);
  showButtons();
});
composer.addEventListener('keydown', event => {
  if (isComposing(event)) return;
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    sendComposed();
  }
});
document.addEventListener('keydown', event => {
  if (isComposing(event)) return;
  const inField = event.target.closest?.('input, textarea, select');
  if (event.key === 'Escape') {
    if (document.body.classList.contains('side')) closeSide();
    else stop();
  } else if (event.key === '/' && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    composer.focus();
  }
});

$('new').addEventListener('click', async () => {
  closeSide();
  await show('');
  composer.focus();
});
$('settings').addEventListener('click', () => {
  const { chat } = state;
  askSettings(chat.conversation.settings, async settings => {
    chat.conversation.settings = settings;
    showSettings();
    if (chat.nodes.size > 0) await chat.save();
  });
});
$('key').addEventListener('click', () => enterKey(null));
$('model').addEventListener('change', () => {
  localStorage.setItem('nsbridge-model', model());
  state.chat.conversation.model = model();
  if (state.chat.nodes.size === 0) showPath();
});

$('export').addEventListener('click', async () => {
  const url = URL.createObjectURL(new Blob([await exported()], { type: 'application/json' }));
  const link = h('a', { href: url, download: `nsbridge-${new Date().toISOString().slice(0, 10)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
});
$('import').addEventListener('click', () => $('import-file').click());
$('import-file').addEventListener('change', async event => {
  const [file] = event.target.files;
  if (!file) return;
  try {
    notice(t('imported', { n: await importText(await file.text()) }));
  } catch {
    notice(t('importBad'));
  }
  event.target.value = '';
  closeSide();
  await showList();
});

// --- The side on a narrow page ---

function closeSide() {
  if (!document.body.classList.contains('side')) return;
  document.body.classList.remove('side');
  $('veil').hidden = true;
  $('menu').setAttribute('aria-expanded', 'false');
  $('menu').focus();
}

$('menu').addEventListener('click', () => {
  document.body.classList.add('side');
  $('veil').hidden = false;
  $('menu').setAttribute('aria-expanded', 'true');
  $('side-close').focus();
});
$('side-close').addEventListener('click', closeSide);
$('veil').addEventListener('click', closeSide);

// --- Language and colors ---

const THEMES = ['auto', 'light', 'dark'];

function theme() {
  const kept = localStorage.getItem('nsbridge-theme');
  return THEMES.includes(kept) ? kept : 'auto';
}

function showTheme() {
  const name = theme();
  document.documentElement.dataset.theme = name;
  const text = t({ auto: 'themeAuto', light: 'themeLight', dark: 'themeDark' }[name]);
  $('theme').textContent = text;
  $('theme').setAttribute('aria-label', t('themeLabel', { name: text }));
}

$('theme').addEventListener('click', () => {
  localStorage.setItem('nsbridge-theme', THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  showTheme();
});

function showLanguage() {
  fill(document);
  $('language').textContent = t('languageName');
  $('language').lang = getLanguage() === 'ja' ? 'en' : 'ja';
  $('language').setAttribute('aria-label', t('languageLabel'));
  showTheme();
  showSettings();
}

$('language').addEventListener('click', async () => {
  setLanguage(getLanguage() === 'ja' ? 'en' : 'ja');
  localStorage.setItem('nsbridge-language', getLanguage());
  showLanguage();
  state.views.clear();
  $('log').replaceChildren();
  showPath();
  await showList();
});

// Marks the button if a conversation has settings of its own.
function showSettings() {
  const count = Object.keys(state.chat?.conversation.settings ?? {}).length;
  $('settings').textContent = count ? `${t('settings')} · ${count}` : t('settings');
}

// --- Models ---

function takeModels(found) {
  state.models = found;
  const before = state.chat?.conversation.model || localStorage.getItem('nsbridge-model') || '';
  $('model').replaceChildren(...found.map(it => h('option', { value: it.id }, it.id)));
  if (found.some(it => it.id === before)) $('model').value = before;
  $('model').hidden = found.length === 0;
  notice(null);
  if (state.chat) showPath();
}

async function loadModels() {
  try {
    const found = await models();
    takeModels(found);
    if (found.length === 0) notice(t('eNoModels'));
  } catch (error) {
    takeModels([]);
    const retry = h('button', { type: 'button', onclick: loadModels }, t('tryAgain'));
    if (error instanceof Failure && (error.status === 401 || error.status === 403)) {
      const asked = getKey() ? t('keyWrong') : null;
      notice(asked ?? t('eNeedKey'), h('button', { type: 'button', onclick: () => enterKey(null) }, t('enterKey')));
      askKey(models => (models ? takeModels(models) : loadModels()), asked);
    } else {
      notice(error instanceof Failure ? sentence(error) : t('eNetworkNow'), retry);
    }
  }
}

addEventListener('online', () => state.models.length === 0 && loadModels());
addEventListener('hashchange', () => show(location.hash.slice(1)));
addEventListener('pagehide', flush);
addEventListener('visibilitychange', () => document.visibilityState === 'hidden' && flush());

const kept = localStorage.getItem('nsbridge-language');
setLanguage(kept ?? (navigator.languages?.find(name => /^(ja|en)\b/i.test(name)) ?? 'en').slice(0, 2).toLowerCase());
showLanguage();
state.isStored = await open();
await show(location.hash.slice(1));
showSettings();
await loadModels();
if (!state.isStored) notice(t('noStorage'));
if (!document.querySelector('dialog[open]')) composer.focus({ preventScroll: true });
