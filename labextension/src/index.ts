// The plugins, each of which can be disabled alone (the mime renderer stands in package.json, as mimeExtension).
import { cellsPlugin, inlinePlugin, outputsPlugin } from './plugins-notebook';
import { keymapPlugin } from './plugin-keymap';
import { linksPlugin, panelPlugin } from './plugins-chat';

export { IKeymap } from './plugin-keymap';
export { ILinks } from './links';

export default [linksPlugin, panelPlugin, keymapPlugin, cellsPlugin, outputsPlugin, inlinePlugin];
