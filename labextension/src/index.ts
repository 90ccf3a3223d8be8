// The plugins, each of which can be disabled alone (the mime renderer stands in package.json, as mimeExtension).
import { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { cellsPlugin, inlinePlugin, outputsPlugin, promptsPlugin } from './plugins-notebook';
import { keymapPlugin } from './plugin-keymap';
import { linksPlugin, panelPlugin } from './plugins-chat';

export { IKeymap } from './plugin-keymap';
export { ILinks } from './links';

/** Each activation is measured, for a person who asks what the extension costs (Performance, "kit-jupyter:"). */
function timed<T>(plugin: JupyterFrontEndPlugin<T>): JupyterFrontEndPlugin<T> {
  return {
    ...plugin,
    activate: (...args) => {
      const start = performance.now();
      try {
        return plugin.activate(...args);
      } finally {
        performance.measure(plugin.id, { start, end: performance.now() });
      }
    }
  };
}

export default [
  timed(linksPlugin),
  timed(panelPlugin),
  timed(keymapPlugin),
  timed(cellsPlugin),
  timed(outputsPlugin),
  timed(promptsPlugin),
  timed(inlinePlugin)
];
