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

const NUMBERS = [
  ['p-temperature', 'temperature', 0, 2, false],
  ['p-top-p', 'topP', 0.01, 1, false],
  ['p-max', 'maxTokens', 1, 1_000_000, true],
  ['p-seed', 'seed', 0, Number.MAX_SAFE_INTEGER, true],
];

// Shows the settings of a conversation. `saved` is called with the new ones.
export function askSettings(settings, saved) {
  const dialog = $('settings-dialog');
  const show = values => {
    for (const [id, name] of NUMBERS) $(id).value = values[name] ?? '';
    $('p-instructions').value = values.instructions ?? '';
    $('p-schema').value = values.schema ?? '';
  };
  show(settings);
  wrong('settings-error', null);
  $('settings-reset').onclick = () => show({});
  const form = dialog.querySelector('form');
  form.noValidate = true;
  form.onsubmit = event => {
    event.preventDefault();
    try {
      saved(read());
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
