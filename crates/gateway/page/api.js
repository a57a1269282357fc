// Requests to the gateway that served the page.

const KEY = 'nsbridge-key';

export function getKey() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? '';
}

export function setKey(key, keep) {
  forgetKey();
  if (key) (keep ? localStorage : sessionStorage).setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
}

export function isKeyKept() {
  return localStorage.getItem(KEY) !== null;
}

// Failure of a request: an answer with an error, or (status 0) none at all.
export class Failure extends Error {
  constructor(status, code, message, after) {
    super(message);
    this.status = status;
    this.code = code;
    this.after = after;
  }

  // Returns true if the request can succeed later without a change.
  get passes() {
    return this.status === 0 || this.status === 429 || this.status === 503 || this.status === 502;
  }
}

export async function call(path, { method = 'GET', body, headers = {}, signal, key = getKey() } = {}) {
  const all = { ...headers };
  if (key) all.authorization = `Bearer ${key}`;
  if (body !== undefined) all['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, { method, body, headers: all, signal, cache: 'no-store', credentials: 'omit' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failure(0, 'network', String(error.message ?? error));
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy answered, not the gateway.
  }
  const after = Number(response.headers.get('retry-after')) || 0;
  throw new Failure(response.status, error.code ?? '', error.message ?? `HTTP ${response.status}`, after);
}

export async function models(key = getKey()) {
  const response = await call('v1/models', { key, signal: AbortSignal.timeout(10_000) });
  return (await response.json()).data;
}

// Yields the objects of a stream of server-sent events. `heard` is called at each sign of life.
export async function* events(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      rest += value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter(line => line.startsWith('data:'));
        const data = lines.map(line => line.slice(5).trimStart()).join('\n');
        if (data && data !== '[DONE]') yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
