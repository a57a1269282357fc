// Colors of code in a reply.

import { hljs } from './vendor/highlight.bundle.js';

const MAX_CODE_CHARS = 30_000;
const MAX_DEPTH = 16;

// Marks the words of `source` in `node`. Code in a language that is not known stays as it is.
export function decorate({ node, source, language }) {
  if (source.length > MAX_CODE_CHARS || !hljs.getLanguage(language)) return;
  const { rootNode } = hljs.highlight(source, { language, ignoreIllegals: true })._emitter;
  node.replaceChildren(...convert(rootNode, 0));
}

function convert({ children }, depth) {
  return children.flatMap(child => {
    if (typeof child === 'string') return [child];
    const inner = convert(child, depth + 1);
    const name = child.scope?.split('.')[0];
    if (!name || name.startsWith('language:') || depth >= MAX_DEPTH) return inner;
    const span = document.createElement('span');
    span.className = `code-${name}`;
    span.append(...inner);
    return [span];
  });
}
