// The overlay that shows what may come next. A plain consumer of the keymap's public queries: a plugin of somebody
// else could do the same.
import { IDisposable } from '@lumino/disposable';

import { Context, Keymap } from './keymap';
import { labelOf } from './keys';
import { groupsOf, nextKeysText } from './whichkey-rows';

export interface WhichKeyOptions {
  keymap: Keymap;
  context(): Context;
  isOn(): boolean;
  delayMs(): number;
}

export class WhichKey implements IDisposable {
  constructor(private readonly options: WhichKeyOptions) {
    this.node.className = 'kit-whichkey';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Next keys');
    this.node.hidden = true;
    this.spoken.className = 'kit-whichkey-spoken';
    this.spoken.setAttribute('role', 'status');
    this.spoken.setAttribute('aria-live', 'polite');
    document.body.append(this.node, this.spoken);
    const page = (by: number) => () => void this.node.scrollBy({ top: by * this.node.clientHeight * 0.8 });
    this.disposables = [
      options.keymap.subscribe(() => this.update()),
      options.keymap.addPendingKey('<pagedown>', page(1)),
      options.keymap.addPendingKey('<pageup>', page(-1))
    ];
  }

  get isShown(): boolean {
    return !this.node.hidden;
  }
  get isDisposed(): boolean {
    return !this.disposables.length;
  }
  dispose(): void {
    window.clearTimeout(this.timer);
    this.disposables.splice(0).forEach(one => one.dispose());
    this.node.remove();
    this.spoken.remove();
  }

  private update(): void {
    window.clearTimeout(this.timer);
    const { keymap, isOn, delayMs } = this.options;
    if (!keymap.pending().length || !isOn()) return this.hide();
    if (this.isShown) this.draw();
    else this.timer = window.setTimeout(() => this.draw(), delayMs());
  }

  private hide(): void {
    this.node.hidden = true;
    this.node.replaceChildren();
    this.spoken.textContent = '';
  }

  private draw(): void {
    const { keymap } = this.options;
    const context = this.options.context();
    const typed = keymap.pending().map(labelOf).join(' ');
    const title = element('div', 'kit-whichkey-title', typed);
    title.append(element('span', 'kit-whichkey-hint', 'Esc clears, Backspace takes back'));
    const body = element('div', 'kit-whichkey-groups');
    for (const group of groupsOf(keymap.next(context))) {
      const section = element('section', 'kit-whichkey-group');
      section.append(element('h2', '', group.title));
      const list = element('ul', '');
      for (const row of group.rows) {
        const item = element('li', row.isGroup ? 'kit-mod-group' : '');
        item.append(element('kbd', '', row.key), element('span', '', row.label));
        list.append(item);
      }
      section.append(list);
      body.append(section);
    }
    this.node.replaceChildren(title, body);
    this.node.hidden = false;
    this.spoken.textContent = `${typed}: ${nextKeysText(keymap, context)}`;
  }

  private node = document.createElement('div');
  private spoken = document.createElement('div');
  private timer = 0;
  private disposables: { dispose(): void }[] = [];
}

function element(tag: string, className: string, text = ''): HTMLElement {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
