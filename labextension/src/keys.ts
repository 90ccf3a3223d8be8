// Key notation: one text, one canonical form, the same in Lab, in Python and in a terminal (jupyter/keymap.py is its
// twin; tests/labextension/notation.json holds both to it).
//
//   k            the key k                      K, shift+k     the same key with Shift
//   ctrl+w       a chord                        <C-w> <ctrl+w> the same chord
//   <leader>ks   leader, then k, then s         g g            two keys
//   <space>      a named key; alone or in a chord it needs no brackets: ctrl+enter, escape
//   <count>      digits, handed to the command
//
// A comma parts alternatives; the key itself is <comma>.

export class NotationError extends Error {}

export const LEADER = '<leader>';
export const COUNT = '<count>';

const MODIFIERS: Record<string, string> = {
  c: 'ctrl', ctrl: 'ctrl', control: 'ctrl',
  a: 'alt', alt: 'alt', option: 'alt', opt: 'alt',
  s: 'shift', shift: 'shift',
  d: 'meta', meta: 'meta', cmd: 'meta', command: 'meta', super: 'meta', win: 'meta',
  m: 'alt'
};
const ORDER = ['ctrl', 'alt', 'shift', 'meta'];

const NAMED: Record<string, string> = {
  space: 'space', enter: 'enter', return: 'enter', cr: 'enter', tab: 'tab', escape: 'escape', esc: 'escape',
  backspace: 'backspace', bs: 'backspace', delete: 'delete', del: 'delete', insert: 'insert', ins: 'insert',
  up: 'up', down: 'down', left: 'left', right: 'right', home: 'home', end: 'end',
  pageup: 'pageup', pgup: 'pageup', pagedown: 'pagedown', pgdn: 'pagedown',
  arrowup: 'up', arrowdown: 'down', arrowleft: 'left', arrowright: 'right',
  comma: ',', lt: '<', gt: '>', plus: '+', minus: '-'
};
for (let n = 1; n <= 24; n++) NAMED[`f${n}`] = `f${n}`;

/** The canonical form of one key with its modifiers. */
function chord(modifiers: Iterable<string>, key: string): string {
  const held = new Set(modifiers);
  if (/^[a-z]$/i.test(key)) {
    if (key !== key.toLowerCase()) held.add('shift');
    key = key.toLowerCase();
  } else if ([...key].length === 1 && held.has('shift')) {
    throw new NotationError(`shift+${key}: write the character that Shift gives; it differs between keyboards`);
  }
  return [...ORDER.filter(name => held.has(name)), key].join('+');
}

/** One chord as written inside brackets or between spaces, or null when it is none. */
function readChord(text: string): string | null {
  const parts = text.split(/[+-](?!$)/);
  const last = parts.pop()!;
  const modifiers = parts.map(part => MODIFIERS[part.toLowerCase()]);
  if (modifiers.some(name => name === undefined)) return null;
  const key = NAMED[last.toLowerCase()] ?? ([...last].length === 1 ? last : null);
  // Ctrl+W is what people write for ctrl+w; only a letter alone means Shift by its case.
  if (key !== null && parts.length && /^[A-Z]$/.test(key)) return chord(modifiers, key.toLowerCase());
  if (key === null || (!parts.length && key === last && [...last].length === 1)) return null;
  return chord(modifiers, key);
}

/** Keys of one sequence, each in canonical form. */
export function parseKeys(text: string): string[] {
  const keys: string[] = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    let at = 0;
    while (at < word.length) {
      const bracket = /^<([^<>\s]+|[^<>\s]*[<>])>/.exec(word.slice(at));
      if (bracket) {
        const inner = bracket[1].toLowerCase();
        if (inner === 'leader') keys.push(LEADER);
        else if (inner === 'count') keys.push(COUNT);
        else {
          const one = readChord(bracket[1]) ?? ([...bracket[1]].length === 1 ? chord([], bracket[1]) : null);
          if (one === null) throw new NotationError(`unknown key ${bracket[0]} in ${JSON.stringify(text)}`);
          keys.push(one);
        }
        at += bracket[0].length;
        continue;
      }
      const end = word.indexOf('<', at + 1);
      const run = word.slice(at, end < 0 ? undefined : end);
      const whole = run.includes('+') || NAMED[run.toLowerCase()] ? readChord(run) : null;
      if (whole !== null) keys.push(whole);
      else if (/^[a-z]+\+./i.test(run)) throw new NotationError(`unknown key ${run} in ${JSON.stringify(text)}`);
      else for (const char of run) keys.push(chord([], char));
      at += run.length;
    }
  }
  if (!keys.length) throw new NotationError('a key sequence must not be empty');
  return keys;
}

/** Alternatives of a text: `ctrl+k, <leader>k` are two sequences. */
export function parseAlternatives(text: string): string[][] {
  return text.split(',').map(part => parseKeys(part));
}

/** A canonical sequence as text that reads back to itself. */
export function formatKeys(keys: readonly string[]): string {
  let text = '';
  let run: string[] = [];
  const flush = (): void => {
    // u and p in turn are not the key "up"
    text += run.join(NAMED[run.join('')] ? ' ' : '');
    run = [];
  };
  for (const key of keys) {
    if ([...key].length === 1 && !SPELT[key]) {
      run.push(key);
      continue;
    }
    flush();
    text += SPELT[key] ?? (key.endsWith('+,') ? `<${key.slice(0, -1)}comma>` : key === LEADER || key === COUNT ? key : `<${key}>`);
  }
  flush();
  return text;
}

const SPELT: Record<string, string> = { ',': '<comma>', '<': '<lt>', '>': '<gt>', '+': '<plus>' };

/** A key as people write it: `Ctrl+Shift+K`. */
export function labelOf(key: string): string {
  const shown = (part: string) => ([...part].length === 1 ? part.toUpperCase() : part[0].toUpperCase() + part.slice(1));
  if ([...key].length === 1) return key;
  if (/^shift\+[a-z]$/.test(key)) return key.slice(-1).toUpperCase();
  if (key.endsWith('++')) return [...key.slice(0, -2).split('+').map(shown), '+'].join('+');
  return key.split('+').map(shown).join('+');
}

/** What of a keyboard event matters here. */
export interface KeyPress {
  key: string;
  ctrlKey: boolean;
  altKey: boolean;
  shiftKey: boolean;
  metaKey: boolean;
  /** Set by a layout's third level: then Ctrl and Alt were needed to type the character. */
  altGraph?: boolean;
}

/** Canonical form of a key press; null for a modifier alone, dead keys and composition. */
export function keyOf(press: KeyPress): string | null {
  const { key } = press;
  if (['Shift', 'Control', 'Alt', 'Meta', 'AltGraph', 'CapsLock', 'Dead', 'Process', 'Unidentified'].includes(key)) return null;
  const one = [...key].length === 1;
  const name = key === ' ' ? 'space' : one ? key : NAMED[key.toLowerCase()] ?? null;
  if (name === null) return null;
  const held: string[] = [];
  if (press.ctrlKey && !press.altGraph) held.push('ctrl');
  if (press.altKey && !press.altGraph) held.push('alt');
  if (press.metaKey) held.push('meta');
  if (press.shiftKey && (!one || key === ' ' || /^[a-z]$/i.test(key))) held.push('shift');
  // With Caps Lock a letter comes in the other case: Shift decides, not the case.
  return chord(held, /^[a-z]$/i.test(name) ? name.toLowerCase() : name);
}

/** True for a key that types something where text is entered. */
export function isTyping(key: string): boolean {
  return !/^(ctrl|alt|meta)\+./.test(key) && (/^(shift\+)?(.|space|enter|tab|backspace|delete)$/u.test(key));
}
