// The tree, not the markup that KaTeX makes of it: the page builds its nodes itself.
export { __renderToDomTree as renderToTree } from 'katex';
