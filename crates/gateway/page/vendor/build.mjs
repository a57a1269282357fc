// Bundles of the chat page: `cargo xtask page --bundle`.
//
// `node build.mjs MODULES` compares them with the committed ones, and `--write` replaces those. The bytes follow from
// the lock file alone: no time and no path of this machine is in them.

import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const here = import.meta.dirname;
const [modules, option] = process.argv.slice(2);
const { build } = createRequire(path.join(modules, 'package.json'))('esbuild');

const { outputFiles, metafile } = await build({
  absWorkingDir: here,
  entryPoints: ['markdown', 'math', 'highlight'].map(name => ({ in: `src/${name}.js`, out: `${name}.bundle` })),
  nodePaths: [path.join(modules, 'node_modules')],
  outdir: here,
  bundle: true,
  charset: 'utf8',
  format: 'esm',
  legalComments: 'none',
  metafile: true,
  minify: true,
  target: 'es2022',
  write: false,
});

const made = new Map(outputFiles.map(({ path: file, contents }) => [path.basename(file), Buffer.from(contents)]));
made.set('LICENSES.txt', Buffer.from(notices(metafile)));
let differ = 0;
for (const [name, bytes] of made) {
  const file = path.join(here, name);
  if (option === '--write') {
    writeFileSync(file, bytes);
  } else if (!existsSync(file) || !readFileSync(file).equals(bytes)) {
    console.error(`crates/gateway/page/vendor/${name} is not what its lock file makes: run \`cargo xtask page --bundle\``);
    differ += 1;
  }
}
process.exit(differ ? 1 : 0);

// Returns the licenses of the packages that are in the bundles.
function notices({ inputs }) {
  const names = Object.keys(inputs).map(file => /.*node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]);
  return Array.from(new Set(names.filter(Boolean))).sort().map(name => {
    const folder = path.join(modules, 'node_modules', name);
    const { version, license } = JSON.parse(readFileSync(path.join(folder, 'package.json'), 'utf8'));
    const file = readdirSync(folder).find(entry => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no license file`);
    const text = readFileSync(path.join(folder, file), 'utf8').replace(/\r\n/g, '\n').replace(/[ \t]+$/gm, '').trim();
    return `${name} ${version} (${license})\n\n${text}\n`;
  }).join(`\n${'-'.repeat(80)}\n\n`);
}
