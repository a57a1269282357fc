// Colors of code in a reply.

import { hljs } from './vendor/highlight.bundle.js';

const MAX_CODE_CHARS = 8000;
const MAX_DEPTH = 50;

// Builds nodes where the library's own emitter builds markup.
class Emitter {
  constructor() {
    this.root = document.createDocumentFragment();
    this.parents = [this.root];
  }

  addText(text) {
    this.parents.at(-1).append(text);
  }

  openNode(scope) {
    if (this.parents.length > MAX_DEPTH) throw new Error('words in words without end');
    const node = document.createElement('span');
    node.className = `code-${scope.split('.')[0]}`;
    this.parents.at(-1).append(node);
    this.parents.push(node);
  }

  closeNode() {
    if (this.parents.length > 1) this.parents.pop();
  }

  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage({ root }) {
    this.parents.at(-1).append(root);
  }

  finalize() {}

  toHTML() {
    return '';
  }
}

hljs.configure({ __emitter: Emitter });

// Marks the words of `source` in `node`. Code in a language that is not known, or with a fault, stays as it is.
export function decorate({ node, source, language }) {
  if (source.length > MAX_CODE_CHARS || !hljs.getLanguage(language)) return;
  const { errorRaised, illegal, _emitter } = hljs.highlight(source, { language, ignoreIllegals: true });
  if (!errorRaised && !illegal) node.replaceChildren(_emitter.root);
}
