// Prepares what is not TypeScript: bundles src/render for the kernel to serve, and takes chat.js, the view that
// the kernel serves too, into lib/ so that a saved turn is drawn without a kernel.
import { copyFileSync, existsSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = path => fileURLToPath(new URL(path, import.meta.url));
const size = path => `${Math.round(statSync(path).size / 1024)} kB`;

const entry = here('./src/render/index.ts');
const outfile = here('../kit_jupyter/jupyter/static/render.js');
if (existsSync(entry)) {
  const { build } = await import('esbuild');
  await build({
    entryPoints: [entry],
    outfile,
    bundle: true,
    format: 'esm',
    target: 'es2022',
    minify: true,
    legalComments: 'inline',
    loader: { '.css': 'text', '.woff2': 'dataurl' },
    logLevel: 'warning'
  });
}

const take = (from, name) => {
  copyFileSync(here(from), here(`./lib/${name}`));
  console.log(`${name}: ${size(here(from))}`);
};
mkdirSync(here('./lib'), { recursive: true });
take('../kit_jupyter/jupyter/static/chat.js', 'chat.js');
if (existsSync(outfile)) take('../kit_jupyter/jupyter/static/render.js', 'renderer.js');
else writeFileSync(here('./lib/renderer.js'), 'export default null;\n');
