// Text files that are sent with a message.

export const MAX_KIB = 256;

// Reads a file that a person chose. Returns its name and its text, or the sentence that refuses it and the values of that.
export async function readFile(file) {
  const { name, size } = file;
  if (size > MAX_KIB * 1024) return { refused: 'fileLarge', values: { name, kib: Math.ceil(size / 1024), most: MAX_KIB } };
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
    // No text file has this character, and files of other kinds that are UTF-8 by chance do.
    if (!text.includes('\0')) return { name, text };
  } catch {
    // Its bytes are not UTF-8, or it is a folder.
  }
  return { refused: 'fileKind', values: { name } };
}

// Returns a message as the model reads it: its text, and each file in a fenced block behind its name.
export function withFiles({ text, files = [] }) {
  return [text, ...files.map(fenced)].filter(part => part !== '').join('\n\n');
}

function fenced({ name, text }) {
  const runs = text.match(/`+/g) ?? [];
  const fence = '`'.repeat(Math.max(3, ...runs.map(run => run.length + 1)));
  return `${name.replace(/[\r\n]/g, ' ')}:\n${fence}\n${text.replace(/\n$/, '')}\n${fence}`;
}
