// The page: its parts, its keys, and what is shown.

import { Failure, getKey, models } from './api.js';
import { Chat, dropConversation, dropOthers, flush, readingOf } from './chat.js';
import { askKey, askSettings, defaultSettings } from './dialogs.js';
import { readFile } from './files.js';
import { isOpen, replay } from './reply.js';
import { exported, importText, listConversations, open, onChange, put, removeConversation, search } from './store.js';
import { fill, getLanguage, setLanguage, t } from './text.js';
import { chip, fillEmpty, grow, h, isComposing, MessageView, sentence } from './view.js';

const $ = id => document.getElementById(id);
const state = { chat: null, models: [], views: new Map(), rows: new Map(), files: [], notice: null, turn: 0, busy: false, isStale: false, pinned: true, isStored: true };
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

// Shows a sentence and its buttons, as `make` returns them in the language that is chosen then.
function notice(make) {
  state.notice = make;
  const [text, ...buttons] = make?.() ?? [];
  $('notice').hidden = !text;
  $('notice').replaceChildren(...(text ? [h('span', {}, text), ...buttons] : []));
}

function showPath() {
  const path = state.chat.path();
  const views = new Map();
  for (const node of path) views.set(node.id, state.views.get(node.id) ?? new MessageView(node, actions));
  state.views = views;
  const wanted = path.map(node => views.get(node.id).root);
  const log = $('log');
  arrange(log, wanted);
  for (const view of views.values()) view.update();
  $('empty').hidden = path.length > 0;
  if (path.length === 0) fillEmpty($('empty'), /^tale/.test(model()), start);
  log.hidden = path.length === 0;
  showSettings();
  showTitle();
  showButtons();
}

// Gives an element these children. The ones that stay are not moved, so that they keep focus and selection.
function arrange(parent, wanted) {
  Array.from(parent.children).forEach(child => wanted.includes(child) || child.remove());
  wanted.forEach((child, index) => parent.children[index] === child || parent.insertBefore(child, parent.children[index] ?? null));
}

function showButtons() {
  const open = state.chat?.open() ?? null;
  const focused = [$('send'), $('stop')].includes(document.activeElement);
  $('send').hidden = open !== null;
  $('stop').hidden = open === null;
  $('stop').disabled = open !== null && (readingOf(open)?.isStopping ?? false);
  $('send').disabled = (composer.value.trim() === '' && state.files.length === 0) || state.models.length === 0;
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
  const wanted = $('search').value.trim();
  const [all, ids] = await Promise.all([listConversations(), wanted ? search(wanted) : null]);
  // A later text of the field has a list of its own, and a title that is being written stays.
  if (wanted !== $('search').value.trim() || $('list').querySelector('input')) return;
  const shown = ids ? all.filter(({ id }) => ids.has(id)) : all;
  const rows = new Map();
  for (const { id, title } of shown) {
    const isCurrent = id === state.chat?.conversation.id;
    const key = JSON.stringify([id, title, isCurrent, getLanguage()]);
    rows.set(key, state.rows.get(key) ?? row(id, title, isCurrent));
  }
  state.rows = rows;
  const none = wanted && shown.length === 0 ? [h('li', { class: 'none' }, t('searchNone'))] : [];
  arrange($('list'), [...rows.values(), ...none]);
}

// Returns the line of a conversation in the list.
function row(id, given, isCurrent) {
  const title = given || t('untitled');
  const line = h('li', {},
    h('a', { href: `#${id}`, 'aria-current': isCurrent ? 'page' : null, onclick: closeSide }, title),
    icon('✎', t('renameLabel', { title }), t('rename'), () => rename(id, given, line)),
    icon('×', t('removeLabel', { title }), t('remove'), () => remove(id, title)));
  return line;
}

const icon = (sign, label, title, onclick) =>
  h('button', { type: 'button', class: 'icon', 'aria-label': label, title, onclick }, h('span', { 'aria-hidden': true }, sign));

// Turns a line of the list into a field for its title.
function rename(id, before, line) {
  const parts = Array.from(line.children);
  const field = h('input', { 'aria-label': t('renameLabel', { title: before || t('untitled') }), maxlength: 200, autocomplete: 'off' });
  field.value = before;
  let isOver = false;
  const close = async (isKept, hasFocus) => {
    // The field loses the focus when it goes, too.
    if (isOver) return;
    isOver = true;
    const title = field.value.trim();
    if (isKept && title && title !== before) await setTitle(id, title);
    line.replaceChildren(...parts);
    await showList();
    if (hasFocus) $('list').querySelector(`a[href="#${id}"]`)?.focus();
  };
  // The focus stays where the person put it.
  field.addEventListener('blur', () => close(true, false));
  field.addEventListener('keydown', event => {
    if (isComposing(event)) return;
    if (event.key === 'Escape') event.stopPropagation();
    if (event.key === 'Enter' || event.key === 'Escape') close(event.key === 'Enter', true);
  });
  line.replaceChildren(field);
  field.select();
}

async function setTitle(id, title) {
  const isShown = id === state.chat.conversation.id;
  const conversation = isShown ? state.chat.conversation : (await listConversations()).find(other => other.id === id);
  // Another tab may have deleted it.
  if (!conversation) return;
  conversation.title = title;
  await put({ conversations: [conversation] });
  if (isShown) showTitle();
}

function showTitle() {
  const { title } = state.chat.conversation;
  document.title = title ? `${title} · nsbridge` : 'nsbridge';
}

async function remove(id, title) {
  if (!confirm(t('removeSure', { title }))) return;
  dropConversation(id);
  await removeConversation(id);
  await (id === state.chat.conversation.id ? show('') : showList());
}

// Shows a conversation; a new one if there is none of this id.
async function show(id) {
  const turn = state.turn += 1;
  const found = id ? (await listConversations()).find(conversation => conversation.id === id) : null;
  const chat = found ? await Chat.load(found, changed) : Chat.create(model(), defaultSettings(), changed);
  // Another conversation may have been chosen meanwhile.
  if (turn !== state.turn) return;
  state.chat = chat;
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

// Shows what another tab has changed.
async function refresh() {
  const { chat } = state;
  // A page that has shown nothing yet reads what is there.
  if (!chat) return;
  await dropOthers();
  // A tab without a key cannot read the replies that another one begins.
  state.isStale = state.models.length === 0;
  if (!state.isStale) {
    const isThere = chat.nodes.size === 0 || await chat.refresh();
    if (chat !== state.chat) return;
    if (!isThere) return show('');
    showPath();
  }
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
  edit: (node, text) => submit(text, node.files ?? [], node.parent),
  async again(node) {
    const user = state.chat.nodes.get(node.parent);
    await replied(() => state.chat.reply(user, model() || node.model));
  },
  continue: node => replied(() => state.chat.continue(node, model() || node.model)),
  tryAgain(node) {
    state.chat.again(node);
    showPath();
  },
  async remove(node) {
    if (!confirm(t('removeMessageSure'))) return;
    await state.chat.remove(node);
    if (state.chat.nodes.size === 0) {
      await removeConversation(state.chat.conversation.id);
      await show('');
    } else {
      showPath();
    }
    composer.focus();
  },
  enterKey,
  copy: (node, button) => copy(node.text, text => { button.textContent = text; }),
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

// Copies a text; `show` changes the text of the button.
function copy(text, show) {
  const done = () => {
    say(t('copied'));
    show(t('copied'));
    setTimeout(() => show(t('copy')), 1500);
  };
  // The clipboard needs a secure connection or this machine.
  navigator.clipboard?.writeText(text).then(done, () => {});
}

$('log').addEventListener('click', event => {
  const button = event.target.closest('.listing > button');
  if (button) copy(button.parentElement.querySelector('code').textContent, text => { button.dataset.label = text; });
});

function enterKey(node) {
  askKey(found => {
    takeModels(found ?? []);
    if (found && node) actions.tryAgain(node);
  }, node ? t('keyWrong') : null);
}

async function submit(text, files, parent) {
  if (state.models.length === 0) return loadModels();
  await replied(() => state.chat.send(text, files, parent, model()));
}

// Begins a reply and shows it. A second click on a button begins no other one.
async function replied(begin) {
  if (state.busy) return;
  state.busy = true;
  try {
    await begin();
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
  const { files } = state;
  if ((!text && files.length === 0) || state.busy || state.chat.open()) return;
  if (state.models.length === 0) return loadModels();
  const path = state.chat.path();
  composer.value = '';
  state.files = [];
  showFiles();
  grow(composer);
  await submit(text, files, path.length ? path[path.length - 1].id : null);
}

// Adds files to the message that is being written.
async function attach(list) {
  const read = await Promise.all(Array.from(list, readFile));
  state.files = [...state.files, ...read.filter(({ refused }) => !refused)];
  showFiles();
  showButtons();
  const refused = read.filter(({ refused }) => refused);
  notice(refused.length ? () => [refused.map(({ refused, values }) => t(refused, values)).join(' ')] : null);
  say(refused.length ? $('notice').textContent : t('attached', { names: state.files.map(({ name }) => name).join(', ') }));
  composer.focus();
}

function showFiles() {
  $('files').hidden = state.files.length === 0;
  $('files').replaceChildren(...state.files.map(file => chip(file, () => {
    state.files = state.files.filter(other => other !== file);
    showFiles();
    showButtons();
    composer.focus();
  })));
}

function stop() {
  const node = state.chat?.open();
  if (node) readingOf(node)?.stop();
}

$('attach').addEventListener('click', () => $('attach-file').click());
$('attach-file').addEventListener('change', async event => {
  await attach(event.target.files);
  event.target.value = '';
});
const hasFiles = event => event.dataTransfer?.types.includes('Files');
addEventListener('dragover', event => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add('dropping');
});
addEventListener('dragleave', event => event.relatedTarget === null && document.body.classList.remove('dropping'));
addEventListener('drop', event => {
  document.body.classList.remove('dropping');
  if (!hasFiles(event)) return;
  // A browser would open the file in place of the page.
  event.preventDefault();
  attach(event.dataTransfer.files);
});
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
  } else if (event.code === 'KeyO' && event.shiftKey && (event.ctrlKey || event.metaKey) && !document.querySelector('dialog[open]')) {
    event.preventDefault();
    startAnew();
  } else if (event.key === '/' && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    composer.focus();
  }
});

$('search').addEventListener('input', showList);
$('search').addEventListener('keydown', event => {
  if (event.key !== 'Escape' || $('search').value === '') return;
  // Escape empties the field first.
  event.preventDefault();
  event.stopPropagation();
  $('search').value = '';
  showList();
});

async function startAnew() {
  closeSide();
  await show('');
  composer.focus();
}

$('new').addEventListener('click', startAnew);
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
    const imported = await importText(await file.text());
    const n = imported.length;
    notice(() => [t(n === 1 ? 'importedOne' : 'imported', { n })]);
    if (n > 0) await show(imported[0].id);
  } catch {
    notice(() => [t('importBad')]);
  }
  event.target.value = '';
  closeSide();
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
  showFiles();
  notice(state.notice);
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
  if (state.isStale && found.length > 0) refresh();
}

async function loadModels() {
  try {
    const found = await models();
    takeModels(found);
    if (found.length === 0) notice(() => [t('eNoModels')]);
  } catch (error) {
    takeModels([]);
    const button = (name, onclick) => h('button', { type: 'button', onclick }, t(name));
    if (error instanceof Failure && (error.status === 401 || error.status === 403)) {
      const isWrong = getKey() !== '';
      notice(() => [t(isWrong ? 'keyWrong' : 'eNeedKey'), button('enterKey', () => enterKey(null))]);
      askKey(models => (models ? takeModels(models) : loadModels()), isWrong ? t('keyWrong') : null);
    } else {
      notice(() => [error instanceof Failure ? sentence(error) : t('eNetworkNow'), button('tryAgain', loadModels)]);
    }
  }
}

addEventListener('online', () => state.models.length === 0 && loadModels());
addEventListener('hashchange', () => show(location.hash.slice(1)));
onChange(refresh);
addEventListener('pagehide', flush);
addEventListener('visibilitychange', () => document.visibilityState === 'hidden' && flush());

const kept = localStorage.getItem('nsbridge-language');
setLanguage(kept ?? (navigator.languages?.find(name => /^(ja|en)\b/i.test(name)) ?? 'en').slice(0, 2).toLowerCase());
showLanguage();
state.isStored = await open();
await show(location.hash.slice(1));
showSettings();
await loadModels();
if (!state.isStored) notice(() => [t('noStorage')]);
if (!document.querySelector('dialog[open]')) composer.focus({ preventScroll: true });
