// The pure keymap: notation, layers, sequences, queries, overrides, and what must hold for all of them.
import { readFileSync } from 'node:fs';

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { Keymap, KeymapError, holds, nearest, type Binding, type Commands } from '../../labextension/src/keymap';
import { NotationError, formatKeys, isTyping, keyOf, labelOf, parseAlternatives, parseKeys } from '../../labextension/src/keys';
import { nextKeysText } from '../../labextension/src/whichkey-rows';

const notation = JSON.parse(readFileSync(new URL('./notation.json', import.meta.url), 'utf-8'));
const registry = (ids: string[], aliases: Record<string, string> = {}): Commands => ({
  resolve: id => (ids.includes(id) ? id : aliases[id] ?? null),
  ids: () => ids
});
const IDS = ['kit:focus-panel', 'kit:stop-turn', 'kit:steer-turn', 'kit:explain-cell', 'kit:fix-cell', 'a', 'b', 'c', 'd'];
const keymap = (leader = 'ctrl+;') => new Keymap(registry(IDS), { leader });
const b = (keys: string, command: Binding['command'], more: Partial<Binding> = {}): Binding => ({
  keys, command, description: `does ${String(command)}`, category: 'Test', ...more
});
const ran = (map: Keymap, keys: string[], context = {}) => {
  const out: (string | null)[] = [];
  for (const key of keys) {
    const step = map.feed(key, context);
    if (step.kind === 'run') out.push(step.mapping.command);
  }
  return out;
};

describe('notation', () => {
  test.each(notation.canonical as [string, string[]][])('S86: %j has one canonical form', (text, keys) => {
    expect(parseKeys(text)).toEqual(keys);
    expect(parseKeys(formatKeys(keys))).toEqual(keys);
  });
  test.each(notation.wrong as string[])('S86: %j is refused', text => {
    expect(() => parseKeys(text)).toThrow(NotationError);
  });
  test.each(notation.labels as [string, string][])('S86: %j is shown as %j', (key, label) => expect(labelOf(key)).toBe(label));
  test('S86: modifier order and aliases do not matter', () => {
    const aliases = { ctrl: ['ctrl', 'control', 'Ctrl'], alt: ['alt', 'option', 'opt'], shift: ['shift'], meta: ['meta', 'cmd', 'super'] };
    fc.assert(
      fc.property(fc.shuffledSubarray(Object.keys(aliases) as (keyof typeof aliases)[], { minLength: 1 }), fc.constantFrom('k', 'enter', 'f5', 'up'), fc.nat(2), (mods, key, pick) => {
        const written = [...mods.map(m => aliases[m][pick % aliases[m].length]), key].join('+');
        const sorted = ['ctrl', 'alt', 'shift', 'meta'].filter(m => mods.includes(m as never));
        expect(parseKeys(written)).toEqual([[...sorted, key].join('+')]);
      })
    );
  });
  test('S86: any sequence of keys survives being written and read', () => {
    const plain = fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 1 }).filter(c => /^[!-~]$/.test(c) && !/[A-Z]/.test(c));
    const key = fc.oneof(plain, fc.constantFrom('space', 'enter', 'shift+k', 'ctrl+,', 'ctrl+<', 'alt+up', '<leader>', 'ctrl+shift+f5'));
    fc.assert(fc.property(fc.oneof(fc.array(key, { minLength: 1, maxLength: 6 }), fc.constantFrom(['u', 'p'], ['t', 'a', 'b'], ['ctrl+k', 'e', 'n', 'd'])), keys => {
      const text = formatKeys(keys);
      expect(parseKeys(text)).toEqual(keys);
      expect(parseAlternatives(text)).toEqual([keys]);
    }));
  });
  test('S86: a key press has the form that its notation has', () => {
    const press = (key: string, held = '') => keyOf({ key, ctrlKey: held.includes('c'), altKey: held.includes('a'), shiftKey: held.includes('s'), metaKey: held.includes('m') });
    expect(press('K', 's')).toBe('shift+k');
    expect(press('K')).toBe('k'); // Caps Lock
    expect(press('?', 's')).toBe('?');
    expect(press('w', 'c')).toBe('ctrl+w');
    expect(press('W', 'cs')).toBe('ctrl+shift+w');
    expect(press(' ', 's')).toBe('shift+space');
    expect(press('ArrowUp', 'c')).toBe('ctrl+up');
    expect(press('Shift', 's')).toBeNull();
    expect(press('Dead')).toBeNull();
    expect(keyOf({ key: '@', ctrlKey: true, altKey: true, shiftKey: false, metaKey: false, altGraph: true })).toBe('@');
  });
});

describe('mappings', () => {
  test('S81, S82: commands know no key, and one without a key is valid', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('k', 'a')] });

    expect(map.bindingsOf('b')).toEqual([]);
    expect(map.isReachable('b')).toBe(false);
    expect(map.bindingsOf('a').map(m => m.text)).toEqual(['k']);
  });
  test.each([
    [{ keys: '', command: 'a', description: 'x' }], [{ keys: [], command: 'a', description: 'x' }],
    [{ keys: 'k', command: '', description: 'x' }], [{ keys: 'k', command: 'a', description: ' ' }],
    [{ keys: 'k', command: 'a' }], [{ keys: 'k<esc>', command: 'a', description: 'x' }],
    [{ keys: 'k', command: 'a', description: 'x', when: '1 +' }]
  ] as [Binding][])('S83, S93: a mapping validates keys, command and description: %j', binding => {
    expect(() => keymap().addLayer({ name: 'x', bindings: [binding] })).toThrow(/layer x|key|name|empty/);
  });
  test('S84: an unknown id warns with the nearest names and does not crash', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('k', 'kit:stop-trun')] });

    expect(map.warnings()).toEqual(['x: unknown command kit:stop-trun; did you mean kit:stop-turn?']);
    expect(nearest('kit:explain-cel', IDS)[0]).toBe('kit:explain-cell');
    expect(nearest('zzzzzz', IDS)).toEqual([]);
  });
  test('S85: a function is run with the context and has a readable name', () => {
    const map = keymap();
    const seen: unknown[] = [];
    map.addLayer({ name: 'x', bindings: [b('k', function sayHello(context) { seen.push(context); })] });

    const step = map.feed('k', { command: true });
    if (step.kind === 'run') void step.mapping.run!({ command: true }, step.count);

    expect(seen).toEqual([{ command: true }]);
    expect(map.active({})[0].command).toBe('function:sayHello');
  });
  test('S98: an old id is an alias of the new one', () => {
    const map = new Keymap(registry(['kit:stop-turn'], { 'kit:abort': 'kit:stop-turn' }));
    map.addLayer({ name: 'x', bindings: [b('k', 'kit:abort')] });

    expect(map.warnings()).toEqual([]);
    expect(ran(map, ['k'])).toEqual(['kit:stop-turn']);
    expect(map.bindingsOf('kit:abort')).toHaveLength(1);
    map.setOverrides({ 'kit:abort': 'z' });
    expect(map.bindingsOf('kit:stop-turn').map(m => m.text)).toEqual(['z']);
  });
});

describe('sequences', () => {
  test('S87: leader a b c runs after four keys, pends before, and a wrong key clears', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('<leader>abc', 'a')] });

    expect(map.feed('ctrl+;', {}).kind).toBe('pending');
    expect(map.feed('a', {}).kind).toBe('pending');
    expect(map.pending()).toEqual(['ctrl+;', 'a']);
    expect(map.feed('z', {})).toEqual({ kind: 'cleared', key: 'z' });
    expect(map.pending()).toEqual([]);
    expect(ran(map, ['ctrl+;', 'a', 'b', 'c'])).toEqual(['a']);
  });
  test('S87: escape clears, backspace takes one key back', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('<leader>ab', 'a'), b('<leader>c', 'c')] });

    expect(ran(map, ['ctrl+;', 'a', 'backspace', 'c'])).toEqual(['c']);
    expect(ran(map, ['ctrl+;', 'a', 'escape', 'b'])).toEqual([]);
    expect(map.feed('ctrl+;', {}).kind).toBe('pending');
    expect(map.feed('backspace', {}).kind).toBe('cleared');
    expect(map.feed('escape', {}).kind).toBe('pass');
  });
  test('S87: a complete sequence with longer ones waits, and the time-out runs it', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('g', 'a'), b('gg', 'b')] });

    const step = map.feed('g', {});
    expect(step.kind === 'pending' && step.complete?.command).toBe('a');
    const late = map.expire({});
    expect(late.kind === 'run' && late.mapping.command).toBe('a');
    expect(ran(map, ['g', 'g'])).toEqual(['b']);
    map.feed('g', {});
    map.reset();
    expect(map.expire({}).kind).toBe('cleared');
  });
  test('S88: one change of the leader moves all leader mappings', () => {
    const map = keymap('ctrl+x');
    map.addLayer({ name: 'x', bindings: [b('<leader>a', 'a'), b('<leader>b', 'b')] });
    map.leader = '<space>';

    expect(ran(map, ['ctrl+x', 'a', 'space', 'a', 'space', 'b'])).toEqual(['a', 'b']);
    map.leader = 'g m';
    expect(ran(map, ['g', 'm', 'a'])).toEqual(['a']);
    expect(() => { map.leader = '<leader>'; }).toThrow(KeymapError);
  });
  test('5.9: a count is captured', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('<leader><count>j', 'a'), b('<leader>j', 'b')] });
    const feed = (...keys: string[]) => keys.map(key => map.feed(key, {})).pop()!;

    expect(feed('ctrl+;', '1', '2', 'j')).toMatchObject({ kind: 'run', count: 12 });
    expect(feed('ctrl+;', '1', '2', 'backspace', 'j')).toMatchObject({ kind: 'run', count: 1 });
    expect(feed('ctrl+;', 'j')).toMatchObject({ kind: 'run', mapping: { command: 'b' } });
    expect(feed('ctrl+;', '4', 'x').kind).toBe('cleared');
  });
});

describe('layers', () => {
  test('S90: the higher layer wins, the rest falls through, disposing restores', () => {
    const map = keymap();
    map.addLayer({ name: 'base', bindings: [b('k', 'a'), b('j', 'b')] });
    const top = map.addLayer({ name: 'top', priority: 5, bindings: [b('k', 'c')] });

    expect(ran(map, ['k', 'j'])).toEqual(['c', 'b']);
    top.dispose();
    top.dispose();
    expect(ran(map, ['k', 'j'])).toEqual(['a', 'b']);
  });
  test('S90: the newest of two equals wins; a disabled layer falls through', () => {
    const map = keymap();
    map.addLayer({ name: 'old', bindings: [b('k', 'a')] });
    map.addLayer({ name: 'new', bindings: [b('k', 'b')], when: 'command' });

    expect(ran(map, ['k'], { command: true })).toEqual(['b']);
    expect(ran(map, ['k'], { edit: true })).toEqual(['a']);
  });
  test('S89: unmap in one layer, modes on a stack', () => {
    const map = keymap();
    map.addLayer({ name: 'base', bindings: [b('k', 'a'), b('j', 'b', { when: 'command' }), b('j', 'c', { when: 'edit' }), b('x', 'd', { when: 'review' })] });
    map.addLayer({ name: 'top', priority: 1, bindings: [{ keys: 'k', command: null }] });

    expect(map.feed('k', {}).kind).toBe('pass');
    expect(ran(map, ['j'], { command: true })).toEqual(['b']);
    expect(ran(map, ['j'], { edit: true })).toEqual(['c']);
    expect(ran(map, ['x'])).toEqual([]);
    const mode = map.pushMode('review');
    expect(ran(map, ['x'])).toEqual(['d']);
    mode.dispose();
    mode.dispose();
    expect(ran(map, ['x'])).toEqual([]);
  });
  test('a higher layer that completes hides longer sequences of lower ones', () => {
    const map = keymap();
    map.addLayer({ name: 'base', bindings: [b('gg', 'a')] });
    map.addLayer({ name: 'top', priority: 1, bindings: [b('g', 'b')] });

    expect(map.feed('g', {}).kind).toBe('run');
    expect(map.active({}).map(m => m.command)).toEqual(['b']);
  });
});

describe('overrides', () => {
  const shipped = [b('<leader>a', 'a'), b('<leader>b, ctrl+b', 'b'), b('<leader>c', 'c')];

  test('S91: change, add, remove by none, false and null; commas give alternatives', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: shipped });
    map.setOverrides({ a: 'ctrl+a, <leader>z', b: 'none', c: null, d: ['<leader>d'] });

    expect(map.bindingsOf('a').map(m => m.text)).toEqual(['<ctrl+a>', '<leader>z']);
    expect(map.bindingsOf('a')[0].description).toBe('does a');
    expect(map.bindingsOf('b')).toEqual([]);
    expect(map.bindingsOf('c')).toEqual([]);
    expect(ran(map, ['ctrl+;', 'd', 'ctrl+a', 'ctrl+b'])).toEqual(['d', 'a']);
    map.setOverrides({});
    expect(ran(map, ['ctrl+b'])).toEqual(['b']);
  });
  test('S84, S91: unknown ids and unreadable keys warn, the rest of the map holds', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: shipped });

    const notes = map.setOverrides({ 'kit:focus-pannel': 'k', a: '<nosuch>', b: 'z' });

    expect(notes[0]).toContain('did you mean kit:focus-panel?');
    expect(notes[1]).toContain('<nosuch>');
    expect(ran(map, ['z'])).toEqual(['b']);
    expect(map.bindingsOf('a').map(m => m.text)).toEqual(['<leader>a']);
  });
});

describe('queries', () => {
  test('S97: two mappings on one key in one scope are reported with both sources', () => {
    const map = keymap();
    map.addLayer({ name: 'shipped', bindings: [b('k', 'a'), b('j', 'c', { when: 'command' })] });
    map.addLayer({ name: 'plugin', priority: 1, bindings: [b('k', 'b'), b('kk', 'c'), b('j', 'd', { when: 'edit' })] });

    const found = map.conflicts().map(c => [c.kind, c.text, c.wins.layer, c.loses.layer]);

    expect(found).toContainEqual(['same', 'k', 'plugin', 'shipped']);
    expect(found).toContainEqual(['prefix', 'k', 'shipped', 'plugin']);
    expect(found.some(c => c[1] === 'j')).toBe(false); // never in one scope
  });
  test('S95: a which-key of five lines needs only public calls', () => {
    const map = keymap();
    map.addLayer({ name: 'x', bindings: [b('<leader>ks', 'a', { category: 'Turn' }), b('<leader>kt', 'b', { category: 'Turn' }), b('<leader>p', 'c')] });
    const overlay: string[][] = [];
    map.subscribe(() => { if (map.pending().length) overlay.push(map.next({}).map(n => `${n.key} ${n.label}${n.more ? '…' : ''}`)); });

    ran(map, ['ctrl+;', 'k', 'backspace', 'p']);

    expect(overlay).toEqual([['p does c', 'k Turn…'], ['s does a', 't does b'], ['p does c', 'k Turn…']]);
    expect(nextKeysText(map, {})).toBe('Ctrl+; leader');
  });
  test('S96: what an extension adds, its disposer removes', () => {
    const ids = ['a'];
    const map = new Keymap(registry(ids));
    ids.push('ext:do');
    const layer = map.addLayer({ name: 'ext', bindings: [b('k', 'ext:do')] });

    expect(map.isReachable('ext:do')).toBe(true);
    layer.dispose();
    expect(map.isReachable('ext:do')).toBe(false);
    expect(map.feed('k', {}).kind).toBe('pass');
  });
});

// -- properties

const KEYS = ['a', 'b', 'c', 'ctrl+k'];
const CONTEXTS = ['', 'command', 'edit', '!command', 'command && x', 'edit || x'];
const someBinding = fc.record({
  keys: fc.array(fc.constantFrom(...KEYS, '<leader>'), { minLength: 1, maxLength: 3 }).map(formatKeys),
  command: fc.constantFrom<string | null>('a', 'b', 'c', 'd', 'kit:stop-turn', null),
  description: fc.constant('x'),
  when: fc.constantFrom(...CONTEXTS).map(w => w || undefined)
});
const someLayer = fc.record({ name: fc.constantFrom('one', 'two', 'three'), bindings: fc.array(someBinding, { maxLength: 5 }), priority: fc.integer({ min: -1, max: 2 }), when: fc.constantFrom(undefined, 'command') });
const someContext = fc.record({ command: fc.boolean(), edit: fc.boolean(), x: fc.boolean(), textInput: fc.boolean() });

describe('laws', () => {
  test('S94: active lists exactly what fires: typing each of them fires it, and nothing else fires', () => {
    fc.assert(
      fc.property(fc.array(someLayer, { maxLength: 4 }), someContext, (layers, context) => {
        const map = keymap('ctrl+;');
        layers.forEach(layer => map.addLayer(layer));
        const active = map.active(context);
        for (const mapping of active) {
          map.reset();
          let last = mapping.keys.map(key => map.feed(key, context)).pop()!;
          if (last.kind === 'pending') last = map.expire(context);
          expect(last.kind === 'run' && last.mapping).toBe(mapping);
        }
        const keys = [...KEYS, 'ctrl+;'];
        const fired = new Set<unknown>();
        const walk = (path: string[]): void => {
          map.reset();
          let last = path.map(key => map.feed(key, context)).pop();
          if (last?.kind === 'pending') {
            if (path.length < 3) keys.forEach(key => walk([...path, key]));
            map.reset();
            path.forEach(key => map.feed(key, context));
            last = map.expire(context);
          }
          if (last?.kind === 'run') fired.add(last.mapping);
        };
        keys.forEach(key => walk([key]));
        expect(fired).toEqual(new Set(active));
      }),
      { numRuns: 300 }
    );
  });
  test('S90: adding a layer and disposing it, in any order of several, restores what was', () => {
    fc.assert(
      fc.property(fc.array(someLayer, { maxLength: 3 }), fc.array(someLayer, { minLength: 1, maxLength: 3 }), someContext, fc.infiniteStream(fc.nat()), (base, extra, context, order) => {
        const map = keymap();
        base.forEach(layer => map.addLayer(layer));
        const look = () => map.active(context).map(m => [m.text, m.command, m.layer]);
        const before = look();
        const disposers = extra.map(layer => map.addLayer(layer));
        look();
        while (disposers.length) disposers.splice(order.next().value % disposers.length, 1)[0].dispose();
        expect(look()).toEqual(before);
      })
    );
  });
  test('U96: in a text field no key that types something is ever taken', () => {
    const printable = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i));
    fc.assert(
      fc.property(fc.array(someLayer, { maxLength: 4 }), fc.constantFrom(...printable, 'Enter', 'Tab', 'Backspace'), (layers, char) => {
        const map = keymap();
        layers.forEach(layer => map.addLayer(layer));
        const key = keyOf({ key: char, ctrlKey: false, altKey: false, metaKey: false, shiftKey: char !== char.toLowerCase() })!;
        expect(isTyping(key)).toBe(true);
        expect(map.feed(key, { textInput: true }).kind).toBe('pass');
      })
    );
  });
  test('no key ever leaves a sequence that cannot go on', () => {
    fc.assert(
      fc.property(fc.array(someLayer, { maxLength: 4 }), someContext, fc.array(fc.constantFrom(...KEYS, 'ctrl+;', 'escape', 'backspace', 'z'), { maxLength: 30 }), (layers, context, keys) => {
        const map = keymap();
        layers.forEach(layer => map.addLayer(layer));
        for (const key of keys) {
          const step = map.feed(key, context);
          expect(step.kind === 'pending').toBe(map.pending().length > 0);
          if (step.kind === 'pending') expect(map.next(context).length).toBeGreaterThan(0);
        }
      })
    );
  });
  test('when: names, not, and, or', () => {
    expect(holds('a && !b || c', { a: true })).toBe(true);
    expect(holds('a && !b || c', { a: true, b: true })).toBe(false);
    expect(holds('a && !b || c', { b: true, c: true })).toBe(true);
    expect(holds('', {})).toBe(true);
  });
});
