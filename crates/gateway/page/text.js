// Texts of the page in English and Japanese.

const en = {
  skip: 'Skip to the message', close: 'Close', newConversation: 'New conversation',
  exportAll: 'Export', importFile: 'Import', apiKey: 'API key', conversations: 'Conversations',
  model: 'Model', settings: 'Settings', log: 'Conversation', toEnd: 'To the end',
  message: 'Message', placeholder: 'Write a message', send: 'Send', stop: 'Stop',
  keys: 'Enter sends · Shift+Enter starts a line · Esc stops · / comes back here',
  themeAuto: 'Auto', themeLight: 'Light', themeDark: 'Dark',
  themeLabel: 'Colors: {name}', languageName: '日本語', languageLabel: '日本語に切り替える',
  keyTitle: 'API key', keyWhy: 'This gateway asks for a key. Its operator makes one with “nsbridge gateway keys add”. The page sends it to this gateway alone.',
  keyKeep: 'Keep it on this device (otherwise until this tab is closed)',
  keyForget: 'Forget', cancel: 'Cancel', useKey: 'Use key',
  keyWrong: 'The gateway does not accept this key. Check it, or ask the operator for another one.',
  keyEmpty: 'Enter a key. It begins with nsk_.',
  settingsTitle: 'Settings of this conversation', instructions: 'Instructions for the model',
  temperature: 'Temperature', topP: 'Top p', maxTokens: 'Max tokens', seed: 'Seed',
  schema: 'JSON schema of the reply', byModel: 'as the model says', random: 'random',
  reset: 'Reset', save: 'Save',
  badNumber: '{name} must be from {least} to {most}.',
  badSchema: 'The schema is not valid JSON: {why}',
  schemaKind: 'The schema must be a JSON object.',
  emptyTitle: 'Hello. What shall we talk about?',
  emptyText: 'Prompts and replies travel sealed from the gateway to the worker and back.',
  storyTitle: 'Hello. How does the story begin?',
  storyText: 'This small model tells stories of animals at the sea, in Japanese and English.',
  examples: 'Examples',
  example1: 'Once a bear', example2: 'The seal found a shell on the beach', example3: 'クマが海辺に行って',
  taskDone: 'Done', taskOpen: 'To do',
  you: 'You', reply: 'Reply', edit: 'Edit', copy: 'Copy', copied: 'Copied', again: 'Again',
  replay: 'Replay', replayLabel: 'Replay with the same seed', againLabel: 'Again with another seed',
  saveEdit: 'Send as a new branch', editLabel: 'Edit the message',
  earlier: 'Earlier version', later: 'Later version', version: 'Version {n} of {all}',
  remove: 'Delete', removeLabel: 'Delete “{title}”', removeSure: 'Delete “{title}” from this device?',
  untitled: 'New conversation', imported: '{n} conversations imported.',
  importBad: 'This file is not an export of this page: choose a JSON file that “Export” made.',
  noStorage: 'This browser keeps no data for this page: conversations are lost with the tab.',
  waiting: 'Sent. Waiting for a worker …', queued: 'No worker has begun the reply yet; it waits in the queue. Stop gives it up.',
  lost: 'The connection is lost. Your place is kept.', lostIn: 'The connection is lost. Your place is kept; next try in {s} s.',
  offline: 'This device is offline. The reply goes on when it is back.',
  stopping: 'Stopping …', done: 'The reply is complete.', stopped: 'Stopped.',
  contentFilter: 'The operator does not allow the rest of this reply, so it ends here.',
  cut: 'The reply ends here because it has the most tokens that the settings or the model allow.',
  recomputing: 'The gateway no longer has this reply. Computing it again with the same seed …',
  recomputed: 'The reply had to be computed again, with the same seed. All of the text that was here came again, equal.',
  restarted: 'A worker with another version took over, and its text differs from the text above. The reply ends here; “Again” makes a new one.',
  recomputeDiffers: 'The reply had to be computed again, and its text differs after {n} characters. The text above is the earlier one; “Again” makes a new one.',
  resume: 'Go on', tryAgain: 'Try again', enterKey: 'Enter key',
  reasoning: 'Reasoning',
  // Facts of a reply.
  facts: 'About this reply', speed: 'speed', first: 'first token', tokens: 'tokens', cached: '{n} cached', drafts: 'drafts kept',
  seedFact: 'seed', fingerprint: 'model', worker: 'worker', trace: 'trace', reconnections: 'reconnections', attempts: 'workers', continued: 'gateways before',
  perSecond: '{n} tokens/s', inOut: '{i} in, {o} out', of: '{n} of {all}',
  replayFact: 'replay', replaying: 'computing …',
  equal: 'equal', equalSome: 'equal as far as it goes',
  differs: 'differs at character {n}', differsHere: 'Here: {a}', differsThere: 'Replay: {b}',
  replayFailed: 'failed: {why}', nothing: 'nothing',
  speedHint: 'Measured in this page', fingerprintHint: 'system_fingerprint: revision of the model', workerHint: 'Fingerprint of weights, options and arithmetic. Equal fingerprint and seed give an equal reply',
  attemptsHint: 'Attempts of workers that made this reply: another one continued when one was lost', continuedHint: 'Gateways that ended in the middle of this reply; another one continued it',
  traceHint: 'Id of the OpenTelemetry trace of this request, if the operator collects traces',
  draftsHint: 'Tokens that the draft model proposed and the model accepted',
  // Errors: a sentence, and what to do.
  eKey: 'The gateway does not accept this API key. Enter another one.',
  eNeedKey: 'This gateway asks for an API key.',
  eModel: 'The gateway has no model “{model}” for this key. Choose another model.',
  eWorker: 'No worker has served the model “{model}” yet: start one, or choose another model. Next try in {s} s; Stop gives up.',
  eNoModels: 'The gateway offers no model to this key. Ask its operator for one.',
  eLong: 'The conversation is longer than the model can read{most}. Start a new one, or edit an earlier message.',
  eLongMost: ' ({n} tokens)',
  eRequest: 'The gateway refuses the request: {message} Change the settings or the message.',
  eLarge: 'The message is too large for this gateway. Send less text.',
  eLimit: 'This key has reached its limit. Next try in {s} s; Stop gives up.',
  eFull: 'The queue of this model is full. Next try in {s} s; Stop gives up.',
  eBroker: 'The gateway cannot reach its message broker. Next try in {s} s; Stop gives up.',
  eBusy: 'The gateway is not available ({message}). Next try in {s} s; Stop gives up.',
  eNetwork: 'The gateway does not answer. Next try in {s} s; Stop gives up.',
  eNetworkNow: 'The gateway does not answer. Check that it runs, and try again.',
  eDeadline: 'No worker finished the reply in time. Check that a worker of “{model}” runs, and try again.',
  eFailed: 'The reply failed: {message} “Again” makes a new one.',
};

const ja = {
  skip: 'メッセージ欄へ移動', close: '閉じる', newConversation: '新しい会話',
  exportAll: '書き出す', importFile: '読み込む', apiKey: 'APIキー', conversations: '会話の一覧',
  model: 'モデル', settings: '設定', log: '会話', toEnd: '最後へ',
  message: 'メッセージ', placeholder: 'メッセージを書く', send: '送信', stop: '停止',
  keys: 'Enterで送信 · Shift+Enterで改行 · Escで停止 · /で入力欄へ',
  themeAuto: '自動', themeLight: '明るい', themeDark: '暗い',
  themeLabel: '配色：{name}', languageName: 'English', languageLabel: 'Switch to English',
  keyTitle: 'APIキー', keyWhy: 'このゲートウェイにはAPIキーが必要です。管理者が「nsbridge gateway keys add」で発行します。キーはこのゲートウェイにだけ送られます。',
  keyKeep: 'この端末に保存する（しない場合はタブを閉じるまで）',
  keyForget: '削除', cancel: 'キャンセル', useKey: 'このキーを使う',
  keyWrong: 'ゲートウェイはこのキーを受け付けません。入力を確かめるか、管理者に別のキーを頼んでください。',
  keyEmpty: 'キーを入力してください。nsk_で始まります。',
  settingsTitle: 'この会話の設定', instructions: 'モデルへの指示',
  temperature: '温度', topP: 'Top p', maxTokens: '最大トークン数', seed: 'シード',
  schema: '返答のJSONスキーマ', byModel: 'モデルの既定値', random: 'ランダム',
  reset: '既定に戻す', save: '保存',
  badNumber: '{name}は{least}から{most}までの値にしてください。',
  badSchema: 'スキーマがJSONとして正しくありません：{why}',
  schemaKind: 'スキーマはJSONのオブジェクトにしてください。',
  emptyTitle: 'こんにちは。何を話しましょうか。',
  emptyText: '入力と返答は、ゲートウェイとワーカーの間を暗号化されたまま行き来します。',
  storyTitle: 'こんにちは。どんなお話にしましょうか。',
  storyText: 'この小さなモデルは、海辺の動物たちのお話を日本語と英語で書きます。',
  examples: '例',
  example1: 'クマが海辺に行って', example2: 'アザラシが貝を見つけました', example3: 'Once a bear',
  taskDone: '完了', taskOpen: '未完了',
  you: 'あなた', reply: '返答', edit: '編集', copy: 'コピー', copied: 'コピーしました', again: 'もう一度',
  replay: '再現', replayLabel: '同じシードで再現する', againLabel: '別のシードでもう一度',
  saveEdit: '新しい枝として送信', editLabel: 'メッセージを編集',
  earlier: '前の版', later: '次の版', version: '{all}件中{n}件目',
  remove: '削除', removeLabel: '「{title}」を削除', removeSure: '「{title}」をこの端末から削除しますか。',
  untitled: '新しい会話', imported: '{n}件の会話を読み込みました。',
  importBad: 'このページから書き出したファイルではありません。「書き出す」で作ったJSONファイルを選んでください。',
  noStorage: 'このブラウザはデータを保存できません。会話はタブを閉じると消えます。',
  waiting: '送信しました。ワーカーを待っています…', queued: 'まだどのワーカーも始めていません。キューで待っています。停止で取り消せます。',
  lost: '接続が切れました。続きの位置は覚えています。', lostIn: '接続が切れました。続きの位置は覚えています。{s}秒後に再接続します。',
  offline: 'この端末はオフラインです。接続が戻ると続きを受け取ります。',
  stopping: '停止しています…', done: '返答が完了しました。', stopped: '停止しました。',
  contentFilter: '運用者の設定により、この返答の続きは表示できません。',
  cut: '設定またはモデルの最大トークン数に達したため、ここで終わっています。',
  recomputing: 'ゲートウェイにこの返答が残っていません。同じシードで計算し直しています…',
  recomputed: '同じシードで計算し直しました。すでに表示されていた文は、すべて一致しました。',
  restarted: '別の版のワーカーに引き継がれ、上の文と異なる文になりました。返答はここで終わります。「もう一度」で新しく作れます。',
  recomputeDiffers: '計算し直しましたが、{n}文字目より後が異なります。上の文は元のものです。「もう一度」で新しく作れます。',
  resume: '続ける', tryAgain: '再試行', enterKey: 'キーを入力',
  reasoning: '推論',
  facts: 'この返答について', speed: '速度', first: '最初のトークン', tokens: 'トークン', cached: 'キャッシュ{n}', drafts: '下書きの採用',
  seedFact: 'シード', fingerprint: 'モデル', worker: 'ワーカー', trace: 'トレース', reconnections: '再接続', attempts: 'ワーカー数', continued: '前のゲートウェイ',
  perSecond: '毎秒{n}トークン', inOut: '入力{i}、出力{o}', of: '{all}中{n}',
  replayFact: '再現', replaying: '計算中…',
  equal: '一致', equalSome: 'ここまで一致',
  differs: '{n}文字目から相違', differsHere: 'ここ：{a}', differsThere: '再現：{b}',
  replayFailed: '失敗：{why}', nothing: 'なし',
  speedHint: 'このページでの測定値', fingerprintHint: 'system_fingerprint：モデルのリビジョン', workerHint: '重み・オプション・演算のフィンガープリント。これとシードが同じなら返答も同じです',
  attemptsHint: 'この返答を作ったワーカーの試行数。1つが失われると別のワーカーが続けます', continuedHint: '途中で終了したゲートウェイの数。別のゲートウェイが続けました',
  traceHint: '運用者がトレースを集めている場合の、このリクエストのOpenTelemetryトレースのID',
  draftsHint: '下書きモデルが提案し、モデルが採用したトークン',
  eKey: 'ゲートウェイはこのAPIキーを受け付けません。別のキーを入力してください。',
  eNeedKey: 'このゲートウェイにはAPIキーが必要です。',
  eModel: 'このキーで使えるモデル「{model}」がありません。別のモデルを選んでください。',
  eWorker: 'モデル「{model}」を動かすワーカーがまだありません。ワーカーを起動するか、別のモデルを選んでください。{s}秒後に再試行します。停止で取り消せます。',
  eNoModels: 'このキーで使えるモデルがありません。管理者に問い合わせてください。',
  eLong: '会話が、モデルの読める長さ{most}を超えています。新しい会話を始めるか、前のメッセージを編集してください。',
  eLongMost: '（{n}トークン）',
  eRequest: 'ゲートウェイが要求を受け付けませんでした：{message} 設定かメッセージを直してください。',
  eLarge: 'メッセージがこのゲートウェイの上限を超えています。短くしてください。',
  eLimit: 'このキーは上限に達しました。{s}秒後に再試行します。停止で取り消せます。',
  eFull: 'このモデルのキューがいっぱいです。{s}秒後に再試行します。停止で取り消せます。',
  eBroker: 'ゲートウェイがメッセージブローカーに接続できません。{s}秒後に再試行します。停止で取り消せます。',
  eBusy: 'ゲートウェイを利用できません（{message}）。{s}秒後に再試行します。停止で取り消せます。',
  eNetwork: 'ゲートウェイが応答しません。{s}秒後に再試行します。停止で取り消せます。',
  eNetworkNow: 'ゲートウェイが応答しません。動いていることを確かめて、再試行してください。',
  eDeadline: '時間内に返答を終えたワーカーがありません。「{model}」のワーカーが動いていることを確かめて、再試行してください。',
  eFailed: '返答に失敗しました：{message} 「もう一度」で新しく作れます。',
};

const texts = { en, ja };
let language = 'en';

export function setLanguage(name) {
  language = texts[name] ? name : 'en';
  document.documentElement.lang = language;
}

export function getLanguage() {
  return language;
}

// Returns a text with its variables filled in.
export function t(name, values = {}) {
  const text = texts[language][name] ?? en[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (all, key) => key in values ? String(values[key]) : all);
}

// Fills the texts of the elements that name one.
export function fill(root) {
  for (const element of root.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll('[data-l]')) {
    element.setAttribute('aria-label', t(element.dataset.l));
    if (element.tagName === 'BUTTON') element.title = t(element.dataset.l);
  }
  for (const element of root.querySelectorAll('[data-p]')) element.placeholder = t(element.dataset.p);
}
