// Dialogs for the API key and for the settings of a conversation.

import { Failure, forgetKey, getKey, isKeyKept, models, setKey } from './api.js';
import { t } from './text.js';
import { grow } from './view.js';

const $ = id => document.getElementById(id);

for (const dialog of document.querySelectorAll('dialog')) {
  for (const button of dialog.querySelectorAll('[data-close]')) button.addEventListener('click', () => dialog.close());
  // Escape closes a dialog, and must not stop a reply as well.
  dialog.addEventListener('keydown', event => event.stopPropagation());
}

function wrong(id, text) {
  $(id).hidden = !text;
  $(id).textContent = text ?? '';
}

// Asks for a key. `entered` is called with the models that the key may use.
export function askKey(entered, told) {
  const dialog = $('key-dialog'), field = $('key-value');
  field.value = getKey();
  $('key-keep').checked = isKeyKept();
  wrong('key-error', told);
  $('key-forget').hidden = !getKey();
  $('key-forget').onclick = () => {
    forgetKey();
    field.value = '';
    dialog.close();
    entered(null);
  };
  dialog.querySelector('form').onsubmit = async event => {
    event.preventDefault();
    const key = field.value.trim();
    if (!key) return wrong('key-error', t('keyEmpty'));
    // A header has no other characters.
    if (!/^[\x21-\x7e]+$/.test(key)) return wrong('key-error', t('keyWrong'));
    try {
      const found = await models(key);
      setKey(key, $('key-keep').checked);
      dialog.close();
      entered(found);
    } catch (error) {
      const refused = error instanceof Failure && (error.status === 401 || error.status === 403);
      wrong('key-error', t(refused ? 'keyWrong' : 'eNetworkNow'));
    }
  };
  if (!dialog.open) dialog.showModal();
  field.focus();
}

const DEFAULTS = 'nsbridge-settings';

const NUMBERS = [
  ['p-temperature', 'temperature', 0, 2, false],
  ['p-top-p', 'topP', 0.01, 1, false],
  ['p-top-k', 'topK', 1, 1_000_000, true],
  ['p-min-p', 'minP', 0, 1, false],
  ['p-frequency', 'frequencyPenalty', -2, 2, false],
  ['p-presence', 'presencePenalty', -2, 2, false],
  ['p-repetition', 'repetitionPenalty', 0.01, 100, false],
  ['p-max', 'maxTokens', 1, 1_000_000, true],
  ['p-seed', 'seed', 0, Number.MAX_SAFE_INTEGER, true],
];

// Returns the settings of a new conversation.
export function defaultSettings() {
  try {
    return JSON.parse(localStorage.getItem(DEFAULTS)) ?? {};
  } catch {
    return {};
  }
}

// Shows the settings of a conversation. `saved` is called with the new ones.
export function askSettings(settings, saved) {
  const dialog = $('settings-dialog');
  const show = values => {
    for (const [id, name] of NUMBERS) $(id).value = values[name] ?? '';
    $('p-instructions').value = values.instructions ?? '';
    $('p-stop').value = values.stop?.join('\n') ?? '';
    $('p-schema').value = values.schema ?? '';
  };
  show(settings);
  $('p-default').checked = false;
  wrong('settings-error', null);
  $('settings-reset').onclick = () => show({});
  const form = dialog.querySelector('form');
  form.noValidate = true;
  form.onsubmit = event => {
    event.preventDefault();
    try {
      const settings = read();
      if ($('p-default').checked) localStorage.setItem(DEFAULTS, JSON.stringify(settings));
      saved(settings);
      dialog.close();
    } catch (error) {
      wrong('settings-error', error.message);
    }
  };
  dialog.showModal();
  grow($('p-instructions'));
}

function read() {
  const settings = {};
  for (const [id, name, least, most, whole] of NUMBERS) {
    const field = $(id);
    if (field.value.trim() === '' && !field.validity.badInput) continue;
    const value = Number(field.value);
    const fits = !field.validity.badInput && value >= least && value <= most && (!whole || Number.isInteger(value));
    if (!fits) {
      field.focus();
      throw new Error(t('badNumber', { name: t(name), least, most }));
    }
    settings[name] = value;
  }
  const instructions = $('p-instructions').value.trim();
  if (instructions) settings.instructions = instructions;
  // Spaces belong to a stop sequence.
  const stop = $('p-stop').value.split('\n').filter(text => text !== '');
  if (stop.length) settings.stop = stop;
  const schema = $('p-schema').value.trim();
  if (schema) {
    let parsed;
    try {
      parsed = JSON.parse(schema);
    } catch (error) {
      throw new Error(t('badSchema', { why: error.message }));
    }
    if (parsed === null || typeof parsed !== 'object' || Array.isArray(parsed)) throw new Error(t('schemaKind'));
    settings.schema = schema;
  }
  return settings;
}
