// Which keys do what, here and now: layers of mappings over commands, and the state of a sequence being typed.
//
// Theory of operation
// -------------------
// A command has an id and knows no key; a binding is data: keys, command (an id or a function), description, category,
// when. Bindings live in layers. All sequences of all layers stand in one trie, made anew when a layer, the leader or
// the person's overrides change; a binding counts where its layer and its own `when` hold in the context. Where several
// count at one place, the layer with the higher priority wins, the newer one on a tie; an unmapped one (command null)
// hides what lies below it. A sequence that is complete while longer ones wait for more keys runs after the time-out,
// unless it stands in a higher layer than all of those: then it runs at once. Nothing here knows a DOM or a clock.
import { COUNT, LEADER, NotationError, formatKeys, isTyping, parseAlternatives, parseKeys } from './keys';

export type Context = Readonly<Record<string, boolean>>;
export type Action = (context: Context, count?: number) => unknown;

/** A mapping as people write it. */
export interface Binding {
  keys: string | readonly string[];
  /** Id of a command, a function, or null to take away what lower layers map these keys to. */
  command: string | Action | null;
  description?: string;
  category?: string;
  when?: string;
  args?: Readonly<Record<string, unknown>>;
}

export interface Layer {
  name: string;
  bindings: readonly Binding[];
  /** Higher wins; the newer of two equals. */
  priority?: number;
  when?: string;
}

/** One sequence of a binding, resolved. */
export interface Mapping {
  readonly keys: readonly string[];
  readonly text: string;
  readonly command: string | null;
  readonly run?: Action;
  readonly description: string;
  readonly category: string;
  readonly when: string;
  readonly args?: Readonly<Record<string, unknown>>;
  readonly layer: string;
  readonly priority: number;
  readonly order: number;
  readonly fromUser: boolean;
}

/** A key that would take a pending sequence further. */
export interface NextKey {
  readonly key: string;
  /** What it completes, if anything. */
  readonly mapping?: Mapping;
  /** How many longer mappings begin with it. */
  readonly more: number;
  readonly label: string;
  readonly category: string;
}

export interface Conflict {
  readonly text: string;
  readonly kind: 'same' | 'prefix';
  readonly wins: Mapping;
  readonly loses: Mapping;
}

export interface Commands {
  /** The current id of a command, also for an old name of it; null when unknown. */
  resolve(id: string): string | null;
  ids(): Iterable<string>;
}

export type Step =
  | { kind: 'pass' }
  | { kind: 'run'; mapping: Mapping; count?: number }
  | { kind: 'pending'; complete?: Mapping }
  | { kind: 'cleared'; key: string };

export interface Disposer {
  dispose(): void;
}

export type Overrides = Readonly<Record<string, string | readonly string[] | false | null>>;

export class KeymapError extends Error {}

interface Node {
  kids: Map<string, Node>;
  here: Mapping[];
}

const node = (): Node => ({ kids: new Map(), here: [] });

export class Keymap {
  private layers: (Layer & { order: number })[] = [];
  private orders = 0;
  private root: Node | null = null;
  private mappings: Mapping[] = [];
  private at: Node | null = null;
  private path: string[] = [];
  private digits = '';
  private leaderKeys: string[] = ['ctrl+;'];
  private overrides: Overrides = {};
  private modes: string[] = [];
  private notes: string[] = [];
  private listeners = new Set<() => void>();
  private pendingKeys = new Map<string, 'clear' | 'pop' | (() => void)>([
    ['escape', 'clear'],
    ['backspace', 'pop']
  ]);

  constructor(private readonly commands: Commands, options: { leader?: string } = {}) {
    if (options.leader !== undefined) this.leader = options.leader;
  }

  // -- what is mapped

  /** Add a layer; dispose to take it away again and see what was below. */
  addLayer(layer: Layer): Disposer {
    for (const binding of layer.bindings) check(binding, layer.name);
    const kept = { ...layer, order: ++this.orders };
    this.layers.push(kept);
    this.changed();
    return {
      dispose: () => {
        const index = this.layers.indexOf(kept);
        if (index < 0) return;
        this.layers.splice(index, 1);
        this.changed();
      }
    };
  }

  get leader(): string {
    return formatKeys(this.leaderKeys);
  }

  /** One change moves all mappings that begin with the leader. */
  set leader(text: string) {
    const keys = parseKeys(text);
    if (keys.includes(LEADER) || keys.includes(COUNT)) throw new KeymapError(`${text} cannot be the leader`);
    this.leaderKeys = keys;
    this.changed();
  }

  /** The person's own map: command id to keys, `none` to remove; returns what is doubtful about it. */
  setOverrides(map: Overrides): readonly string[] {
    this.overrides = map;
    this.changed();
    return this.warnings();
  }

  /** A mode is a name in the context while it is pushed; modes stack. */
  pushMode(name: string): Disposer {
    this.modes.push(name);
    let pushed = true;
    return {
      dispose: () => {
        if (!pushed) return;
        pushed = false;
        this.modes.splice(this.modes.lastIndexOf(name), 1);
      }
    };
  }

  /** A key that acts on a pending sequence instead of going on with it: scrolling an overlay, for example. */
  addPendingKey(keys: string, action: () => void): Disposer {
    const [key] = parseKeys(keys);
    const before = this.pendingKeys.get(key);
    this.pendingKeys.set(key, action);
    return {
      dispose: () => {
        if (before) this.pendingKeys.set(key, before);
        else this.pendingKeys.delete(key);
      }
    };
  }

  // -- typing

  /** Take one key; says what came of it. The caller runs what is to be run. */
  feed(key: string, context: Context): Step {
    const trie = this.trie();
    const aside = this.at && this.pendingKeys.get(key);
    if (aside === 'clear') return this.clear(key);
    if (aside === 'pop') return this.pop();
    if (aside) {
      aside();
      return { kind: 'pending' };
    }
    context = this.inModes(context);
    // A key that types something belongs to whoever has the cursor.
    if (!this.at && context.textInput && isTyping(key)) return { kind: 'pass' };
    const here = this.at ?? trie;
    const counted = here.kids.get(COUNT);
    if (/^[0-9]$/.test(key) && counted && lives(counted, context)) return this.wait(key, here, this.digits + key);
    const next = (this.digits ? counted! : here).kids.get(key);
    if (!next || !lives(next, context)) return this.at ? this.clear(key) : { kind: 'pass' };
    const done = best(next.here, context);
    if (!done || collect(next, context).length > 1) return this.wait(key, next, this.digits, done);
    const count = this.count();
    this.reset();
    return { kind: 'run', mapping: done, count };
  }

  /** The time is up: what was complete runs, else the sequence is dropped. */
  expire(context: Context): Step {
    const done = this.at && best(this.at.here, this.inModes(context));
    const count = this.count();
    this.reset();
    return done ? { kind: 'run', mapping: done, count } : { kind: 'cleared', key: '' };
  }

  /** Drop a pending sequence. */
  reset(): void {
    if (!this.at && !this.path.length) return;
    this.at = null;
    this.path = [];
    this.digits = '';
    this.tell();
  }

  // -- queries

  /** Keys typed so far of a sequence that is not complete. */
  pending(): readonly string[] {
    return [...this.path];
  }

  /** What would go on from here, sorted by category and key. */
  next(context: Context): readonly NextKey[] {
    context = this.inModes(context);
    const from = this.at ?? this.trie();
    const leader = this.leaderKeys.length === 1 ? this.leaderKeys[0] : '';
    return [...from.kids]
      .filter(([, child]) => lives(child, context))
      .map(([key, child]) => {
        const mapping = best(child.here, context);
        const longer = collect(child, context).filter(m => m !== mapping);
        const categories = new Set(longer.map(m => m.category));
        const group = categories.size === 1 ? [...categories][0] : `${longer.length} more`;
        return {
          key,
          mapping,
          more: longer.length,
          label: mapping ? mapping.description : key === leader && !this.at ? 'leader' : group,
          category: mapping ? mapping.category : group
        };
      })
      .sort((a, b) => a.category.localeCompare(b.category) || a.key.localeCompare(b.key));
  }

  /** Exactly the mappings that would fire in this context. */
  active(context: Context): readonly Mapping[] {
    context = this.inModes(context);
    return collect(this.trie(), context).filter(m => !(context.textInput && isTyping(m.keys[0])));
  }

  /** Every mapping of a command, whether or not it is active. */
  bindingsOf(id: string): readonly Mapping[] {
    const known = this.commands.resolve(id) ?? id;
    this.trie();
    return this.mappings.filter(m => m.command === known);
  }

  /** Whether some key runs a command: in this context, or in any. */
  isReachable(id: string, context?: Context): boolean {
    const known = this.commands.resolve(id) ?? id;
    if (context) return this.active(context).some(m => m.command === known);
    return this.bindingsOf(known).some(m => !this.conflicts().some(c => c.loses === m && c.kind === 'same' && always(c.wins)));
  }

  /** Two mappings that want one place in one scope. */
  conflicts(): readonly Conflict[] {
    this.trie();
    const found: Conflict[] = [];
    const live = this.mappings.filter(m => m.command !== null || m.run);
    for (const a of live)
      for (const b of live) {
        if (a === b || !overlap(a, b)) continue;
        if (a.text === b.text) {
          if (above(a, b) < 0) found.push({ text: a.text, kind: 'same', wins: a, loses: b });
        } else if (a.keys.length < b.keys.length && a.keys.every((key, i) => key === b.keys[i]))
          found.push({ text: a.text, kind: 'prefix', wins: a, loses: b });
      }
    return found;
  }

  /** What is doubtful: unknown commands with the nearest names, keys that cannot be read. */
  warnings(): readonly string[] {
    this.trie();
    return [...this.notes];
  }

  /** Called when mappings or the pending sequence change. */
  subscribe(listener: () => void): Disposer {
    this.listeners.add(listener);
    return { dispose: () => void this.listeners.delete(listener) };
  }

  // -- inside

  private inModes(context: Context): Context {
    return this.modes.length ? { ...context, ...Object.fromEntries(this.modes.map(name => [name, true])) } : context;
  }

  private count(): number | undefined {
    return this.digits ? Number(this.digits) : undefined;
  }

  private wait(key: string, at: Node, digits: string, complete?: Mapping): Step {
    this.path.push(key);
    this.at = at;
    this.digits = digits;
    this.tell();
    return { kind: 'pending', complete };
  }

  private clear(key: string): Step {
    this.reset();
    return { kind: 'cleared', key };
  }

  private pop(): Step {
    const keys = this.path.slice(0, -1);
    if (!keys.length) return this.clear('backspace');
    this.path = keys;
    this.at = this.trie();
    this.digits = '';
    for (const key of keys) {
      const counted = this.at.kids.get(COUNT);
      if (/^[0-9]$/.test(key) && counted) this.digits += key;
      else this.at = (this.digits ? counted! : this.at).kids.get(key)!;
    }
    this.tell();
    return { kind: 'pending' };
  }

  private changed(): void {
    this.root = null;
    this.at = null;
    this.path = [];
    this.digits = '';
    this.tell();
  }

  private tell(): void {
    for (const listener of [...this.listeners]) listener();
  }

  private trie(): Node {
    if (this.root) return this.root;
    this.notes = [];
    this.mappings = [];
    const asked = this.readOverrides();
    const seen = new Set<string>();
    for (const layer of this.layers)
      for (const binding of layer.bindings) {
        const command = this.commandOf(binding.command, layer.name);
        if (command && asked.has(command)) {
          // The person's keys stand for all that were shipped; the first binding lends its words.
          if (seen.has(command)) continue;
          seen.add(command);
          for (const keys of asked.get(command)!) this.map(keys, binding, command, layer, true);
          continue;
        }
        for (const text of typeof binding.keys === 'string' ? [binding.keys] : binding.keys)
          for (const keys of parseAlternatives(text)) this.map(keys, binding, command, layer, false);
      }
    for (const [command, sequences] of asked)
      if (!seen.has(command))
        for (const keys of sequences)
          this.map(keys, { keys: '', command, description: command, category: 'Yours' }, command, USER_LAYER, true);
    const root = node();
    for (const mapping of this.mappings) {
      let at = root;
      for (const key of mapping.keys) {
        if (!at.kids.has(key)) at.kids.set(key, node());
        at = at.kids.get(key)!;
      }
      at.here.push(mapping);
    }
    const sort = (at: Node): void => {
      at.here.sort(above);
      at.kids.forEach(sort);
    };
    sort(root);
    return (this.root = root);
  }

  private map(keys: string[], binding: Binding, command: string | null, layer: Layer & { order: number }, fromUser: boolean): void {
    const full = keys.flatMap(key => (key === LEADER ? this.leaderKeys : [key]));
    this.mappings.push({
      keys: full,
      text: formatKeys(keys),
      command,
      run: typeof binding.command === 'function' ? binding.command : undefined,
      description: binding.description ?? '',
      category: binding.category ?? '',
      when: [layer.when, binding.when].filter(Boolean).join(' && '),
      args: binding.args,
      layer: layer.name,
      priority: layer.priority ?? 0,
      order: layer.order,
      fromUser
    });
  }

  private commandOf(command: Binding['command'], source: string): string | null {
    if (typeof command !== 'string') return command === null ? null : `function:${nameOf(command)}`;
    const known = this.commands.resolve(command);
    if (known === null) this.notes.push(`${source}: unknown command ${command}${this.hint(command)}`);
    return known ?? command;
  }

  private readOverrides(): Map<string, string[][]> {
    const asked = new Map<string, string[][]>();
    for (const [id, wish] of Object.entries(this.overrides)) {
      const command = this.commands.resolve(id);
      if (command === null) {
        this.notes.push(`your key map: unknown command ${id}${this.hint(id)}`);
        continue;
      }
      if (wish === false || wish === null || wish === 'none' || wish === '') asked.set(command, []);
      else
        try {
          asked.set(command, (typeof wish === 'string' ? [wish] : wish).flatMap(parseAlternatives));
        } catch (error) {
          if (!(error instanceof NotationError)) throw error;
          this.notes.push(`your key map: ${id}: ${error.message}`);
        }
    }
    return asked;
  }

  private hint(id: string): string {
    const near = nearest(id, this.commands.ids());
    return near.length ? `; did you mean ${near.join(' or ')}?` : '';
  }
}

const USER_LAYER: Layer & { order: number } = { name: 'your key map', bindings: [], priority: 1000, order: 0 };

function check(binding: Binding, layer: string): void {
  const where = `layer ${layer}, keys ${JSON.stringify(binding.keys)}`;
  const texts = typeof binding.keys === 'string' ? [binding.keys] : binding.keys;
  if (!texts.length) throw new KeymapError(`${where}: a mapping needs keys`);
  for (const text of texts)
    for (const keys of parseAlternatives(text))
      if (keys.slice(1).some(key => key === 'escape' || key === 'backspace'))
        throw new KeymapError(`${where}: escape clears and backspace takes back; they cannot stand within a sequence`);
  if (binding.command === null) return;
  if (typeof binding.command !== 'function' && !binding.command) throw new KeymapError(`${where}: a mapping needs a command`);
  if (!binding.description?.trim()) throw new KeymapError(`${where}: a mapping says what it is for (description)`);
  if (binding.when) terms(binding.when);
}

const nameOf = (fn: Action): string => fn.name || 'anonymous';

/** Order of two mappings at one place: negative when `a` wins. */
const above = (a: Mapping, b: Mapping): number =>
  b.priority - a.priority || b.order - a.order || Number(b.fromUser) - Number(a.fromUser);

/** The mapping that counts at one place, or none when it is hidden. */
function best(here: readonly Mapping[], context: Context): Mapping | undefined {
  const first = here.find(m => holds(m.when, context));
  return first && (first.command !== null || first.run) ? first : undefined;
}

/** What can fire from here on; a mapping above all that are longer runs at once, and so hides them. */
function collect(at: Node, context: Context): Mapping[] {
  const here = best(at.here, context);
  const longer = [...at.kids.values()].flatMap(child => collect(child, context));
  if (!here) return longer;
  return longer.every(m => m.priority < here.priority) ? [here] : [here, ...longer];
}

const lives = (at: Node, context: Context): boolean => collect(at, context).length > 0;

// -- when: `command && !running || composer`, names of the context only

function terms(text: string): { name: string; not: boolean }[][] {
  return text.split('||').map(any =>
    any.split('&&').map(one => {
      const match = /^\s*(!?)\s*([A-Za-z][\w-]*)\s*$/.exec(one);
      if (!match) throw new KeymapError(`when ${JSON.stringify(text)}: ${JSON.stringify(one.trim())} is not a name or !name`);
      return { name: match[2], not: match[1] === '!' };
    })
  );
}

const parsed = new Map<string, { name: string; not: boolean }[][]>();

/** Whether a `when` holds; an empty one always does. */
export function holds(when: string, context: Context): boolean {
  if (!when) return true;
  let any = parsed.get(when);
  if (!any) parsed.set(when, (any = terms(when)));
  return any.some(all => all.every(({ name, not }) => !!context[name] !== not));
}

const always = (mapping: Mapping): boolean => !mapping.when;

/** Whether two mappings can count in one context. */
function overlap(a: Mapping, b: Mapping): boolean {
  if (!a.when || !b.when || a.when === b.when) return true;
  return terms(a.when).some(x =>
    terms(b.when).some(y => {
      const all = [...x, ...y];
      if (all.some(p => all.some(q => p.name === q.name && p.not !== q.not))) return false;
      return !EXCLUSIVE.some(set => new Set(all.filter(p => !p.not && set.includes(p.name)).map(p => p.name)).size > 1);
    })
  );
}

/** Of each set, one at most is true at a time. */
const EXCLUSIVE = [['command', 'edit', 'composer']];

/** Up to three ids that are close to `id`. */
export function nearest(id: string, ids: Iterable<string>): string[] {
  const scored = [...ids].map(other => ({ other, far: distance(id.toLowerCase(), other.toLowerCase()) }));
  const limit = Math.max(2, Math.floor(id.length / 3));
  return scored
    .filter(({ far }) => far <= limit)
    .sort((a, b) => a.far - b.far || a.other.localeCompare(b.other))
    .slice(0, 3)
    .map(({ other }) => other);
}

function distance(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > 12) return Infinity;
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
    row = next;
  }
  return row[b.length];
}
