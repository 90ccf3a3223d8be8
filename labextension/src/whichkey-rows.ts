// What which-key shows, as values: a plain consumer of the keymap's public queries.
import { Context, Keymap, NextKey } from './keymap';
import { labelOf } from './keys';

export interface Group {
  readonly title: string;
  readonly rows: readonly { key: string; label: string; isGroup: boolean }[];
}

/** The next keys, grouped by category; keys that open a group come last within theirs. */
export function groupsOf(next: readonly NextKey[]): Group[] {
  const groups = new Map<string, NextKey[]>();
  for (const one of next) groups.set(one.category, [...(groups.get(one.category) ?? []), one]);
  return [...groups].map(([title, keys]) => ({
    title,
    rows: keys.map(one => ({
      key: labelOf(one.key),
      label: one.more && one.mapping ? `${one.label}, +${one.more}` : one.label,
      isGroup: one.more > 0
    }))
  }));
}

/** The same as one line, for a screen reader. */
export function nextKeysText(keymap: Keymap, context: Context): string {
  return keymap
    .next(context)
    .map(one => `${labelOf(one.key)} ${one.label}`)
    .join(', ');
}
