// What is mapped here and why: the answer of kit:show-keys.
import { Widget } from '@lumino/widgets';

import { Context, Keymap, Mapping } from './keymap';
import { labelOf } from './keys';

export function keysBody(keymap: Keymap, context: Context, titleOf: (mapping: Mapping) => string): Widget {
  const body = new Widget();
  body.addClass('kit-keys');
  const active = keymap.active(context);
  const held = Object.keys(context).filter(name => context[name]);
  body.node.append(text('p', held.length ? `Here: ${held.join(', ')}.` : 'No notebook or panel has the focus.'));
  body.node.append(table('Active here', active, titleOf));
  for (const [title, lines] of [
    ['Doubtful', keymap.warnings()],
    ['Two on one key', keymap.conflicts().map(c => `${c.text}: ${c.wins.layer} (${c.wins.description}) before ${c.loses.layer} (${c.loses.description})`)]
  ] as const)
    if (lines.length) {
      const list = document.createElement('ul');
      list.append(...lines.map(line => text('li', line)));
      body.node.append(text('h3', title), list);
    }
  return body;
}

function table(title: string, mappings: readonly Mapping[], titleOf: (mapping: Mapping) => string): HTMLElement {
  const made = document.createElement('table');
  made.append(text('caption', title));
  const head = made.createTHead().insertRow();
  for (const name of ['Keys', 'Does', 'Command', 'From', 'When']) {
    const cell = text('th', name);
    cell.setAttribute('scope', 'col');
    head.append(cell);
  }
  const rows = made.createTBody();
  const sorted = [...mappings].sort((a, b) => a.category.localeCompare(b.category) || a.text.localeCompare(b.text));
  for (const mapping of sorted) {
    const row = rows.insertRow();
    const keys = row.insertCell();
    keys.append(text('kbd', mapping.keys.map(labelOf).join(' ')));
    for (const value of [mapping.description, titleOf(mapping), mapping.fromUser ? 'your key map' : mapping.layer, mapping.when || 'always'])
      row.insertCell().textContent = value;
  }
  return made;
}

function text(tag: string, content: string): HTMLElement {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}
