// Formulas as MathML, which browsers show without fonts of the page.

import { renderToTree } from './vendor/math.bundle.js';

// Elements and attributes of the library's tree that are taken over. One with inline style or an address is left out.
const NAMES = new Set(['math', 'menclose', 'mfrac', 'mi', 'mn', 'mo', 'mover', 'mpadded', 'mphantom', 'mroot', 'mrow', 'mspace', 'msqrt', 'mstyle', 'msub', 'msubsup', 'msup', 'mtable', 'mtd', 'mtext', 'mtr', 'munder', 'munderover']);
const ATTRIBUTES = new Set(['accent', 'accentunder', 'columnalign', 'columnlines', 'columnspacing', 'depth', 'display', 'displaystyle', 'fence', 'height', 'largeop', 'linethickness', 'lspace', 'mathbackground', 'mathcolor', 'mathsize', 'mathvariant', 'maxsize', 'minsize', 'movablelimits', 'notation', 'rowlines', 'rowspacing', 'rspace', 'scriptlevel', 'separator', 'stretchy', 'symmetric', 'voffset', 'width']);
const MATHML = 'http://www.w3.org/1998/Math/MathML';
const MAX_SOURCE_CHARS = 3000;
// A formula may define macros, of which each use may be as long as the formula.
const DEFINITION = /\\(?:[egx]?def|(?:re)?newcommand|providecommand|(?:future)?let|global|long)(?![A-Za-z])/;
const MAX_DEFINING_CHARS = 500;
const MAX_DEFINED_USES = 20;
const MAX_USES = 500;
const MAX_SIZE_EM = 20;
const MAX_CACHED_FORMULAS = 500;

// Formulas of a growing text are shown again and again.
const cache = new Map();

// Shows a formula in `node`. One that the library does not understand stays as it is written.
export function decorate({ node, source, isDisplay }) {
  const key = `${isDisplay}${source}`;
  if (!cache.has(key)) {
    if (cache.size >= MAX_CACHED_FORMULAS) cache.clear();
    cache.set(key, typeset(source, isDisplay));
  }
  const made = cache.get(key);
  if (made) node.replaceChildren(made.cloneNode(true));
}

function typeset(source, isDisplay) {
  const defines = DEFINITION.test(source);
  if (source.length > (defines ? MAX_DEFINING_CHARS : MAX_SOURCE_CHARS)) return null;
  try {
    const tree = renderToTree(source, {
      displayMode: isDisplay, maxExpand: defines ? MAX_DEFINED_USES : MAX_USES, maxSize: MAX_SIZE_EM,
      output: 'mathml', strict: 'ignore', throwOnError: true, trust: false,
    });
    return convert(tree.children[0]);
  } catch {
    return null;
  }
}

// Returns the node of a branch of the library's tree: an element, a text, or a space.
function convert(branch) {
  if (branch.text !== undefined) return document.createTextNode(branch.text);
  if (branch.character) return document.createTextNode(branch.character);
  const name = branch.type ?? (branch.width === undefined ? null : 'mspace');
  // The source of the formula is a part of the tree.
  if (name === 'annotation') return document.createDocumentFragment();
  const node = NAMES.has(name) ? document.createElementNS(MATHML, name) : document.createDocumentFragment();
  const attributes = branch.type ? branch.attributes : { width: `${branch.width}em` };
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (ATTRIBUTES.has(key)) node.setAttribute?.(key, value);
  }
  node.append(...(branch.children ?? []).map(convert));
  return node;
}
