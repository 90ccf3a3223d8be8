import { fileURLToPath } from 'node:url';

import { defineConfig } from 'vitest/config';

// Sources under test resolve what they import from the extension's own packages.
const modules = fileURLToPath(new URL('../../labextension/node_modules/', import.meta.url));

export default defineConfig({
  resolve: { alias: { '@jupyter/ydoc': `${modules}@jupyter/ydoc` } },
  test: { include: ['*.test.ts'], testTimeout: 90_000 }
});
