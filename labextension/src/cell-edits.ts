// What the agent may do to a notebook's cells, on the shared model that the editors, undo and collaborators use.
//
// No widget here: a `Cells` works on any shared notebook, so that tests can drive it without a page. Cells are named by
// id, never by index. Each operation is one transaction and one undo step; metadata and ids stay.
import type { ISharedCell, ISharedCodeCell, ISharedNotebook } from '@jupyter/ydoc';

/** The agent asked for something that cannot be: told to it in words it can act on. */
export class CellError extends Error {}

export interface CellText {
  id: string;
  type: string;
  source: string;
  execution_count?: number | null;
  outputs?: unknown[];
  metadata?: Record<string, unknown>;
}

/** One change that can be taken back. */
export interface Edit {
  readonly id: string;
  readonly kind: 'edit' | 'insert' | 'delete' | 'move' | 'clear';
  /** Text that went and text that came: of the cell, or of its outputs when they were cleared. */
  readonly before: string;
  readonly after: string;
  /** Where a cell stands or stood: its neighbours' ids, and for a move the way in words. */
  readonly beside: Beside;
  readonly way: string;
  /** Take it back; says why when it cannot be. */
  undo(): void;
  /** Whether somebody took it back otherwise, by Ctrl+Z for example. */
  isUndone(): boolean;
}

export interface Beside {
  readonly above: string | null;
  readonly below: string | null;
}

type Spec = { cell_type: string; source: string; id?: string; metadata?: Record<string, unknown>; outputs?: unknown[] };

export class Cells {
  constructor(private readonly notebook: ISharedNotebook) {}

  find(id: string): { cell: ISharedCell; index: number } {
    const matches = this.notebook.cells.flatMap((cell, index) => (cell.id === id ? [{ cell, index }] : []));
    if (matches.length === 1) return matches[0];
    const ids = this.notebook.cells.map(cell => cell.id);
    throw new CellError(`no cell has the id ${id}; the cells are ${ids.slice(0, 60).join(', ')}`);
  }

  read(ids?: readonly string[], withOutputs = true): CellText[] {
    const wanted = ids?.length ? ids.map(id => this.find(id).cell) : this.notebook.cells;
    return wanted.map(cell => {
      const text: CellText = { id: cell.id, type: cell.cell_type, source: cell.source };
      const tags = cell.getMetadata('tags');
      if (Array.isArray(tags) && tags.length) text.metadata = { tags };
      if (cell.cell_type === 'code') {
        const code = cell as ISharedCodeCell;
        text.execution_count = code.execution_count;
        if (withOutputs) text.outputs = code.getOutputs();
      }
      return text;
    });
  }

  insert(type: string, source: string, where: { after?: string; before?: string }): Edit {
    if (!['code', 'markdown', 'raw'].includes(type)) throw new CellError(`${type} is no type of cell: code, markdown or raw`);
    const index = where.before
      ? this.find(where.before).index
      : where.after
        ? this.find(where.after).index + 1
        : this.notebook.cells.length;
    this.stop();
    const made = this.notebook.insertCell(index, { cell_type: type, source, metadata: {} } as never);
    this.stop();
    const { id } = made; // a move puts another object in the place of this one
    const undo = (): void => {
      this.expect(id, source);
      this.take(id);
    };
    return this.edit({ kind: 'insert', id, after: source, undo, isUndone: () => !this.has(id) });
  }

  /** Replace `old`, which must occur exactly once, by `text`; without `old` the whole source. */
  replace(id: string, text: string, old?: string): Edit {
    const { cell } = this.find(id);
    const before = cell.source;
    if (old === undefined) this.write(cell, before, text);
    else {
      if (old === '') throw new CellError('the text to replace is empty; leave it out to replace the whole cell');
      const at = before.indexOf(old);
      if (at < 0) throw new CellError(`cell ${id} does not contain ${JSON.stringify(old)}; read it and copy the text exactly`);
      if (before.indexOf(old, at + 1) >= 0)
        throw new CellError(`cell ${id} contains ${JSON.stringify(old)} more than once; give more of its surroundings`);
      this.write(cell, before, before.slice(0, at) + text + before.slice(at + old.length));
    }
    const after = cell.source;
    const undo = (): void => {
      this.expect(id, after);
      this.write(this.find(id).cell, after, before);
    };
    return this.edit({ kind: 'edit', id, before, after, undo, isUndone: () => this.has(id) && this.find(id).cell.source === before });
  }

  delete(id: string): Edit {
    const { cell, index } = this.find(id);
    const kept = cell.toJSON() as unknown as Spec;
    const before = cell.source;
    const beside = this.beside(id);
    const left = this.take(id);
    const undo = (): void => {
      if (this.has(id)) throw new CellError('the cell is there again');
      this.stop();
      this.notebook.insertCell(Math.min(index, this.notebook.cells.length), { ...kept, id } as never);
      const empty = this.notebook.cells.findIndex(other => other.id === left && !other.source);
      if (empty >= 0) this.notebook.deleteCell(empty);
      this.stop();
    };
    return this.edit({ kind: 'delete', id, before, beside, undo, isUndone: () => this.has(id) });
  }

  move(id: string, where: { after?: string; before?: string }): Edit {
    const { index } = this.find(id);
    const anchor = where.before ?? where.after;
    if (!anchor) throw new CellError('say after or before which cell');
    if (anchor === id) throw new CellError('a cell cannot be moved beside itself');
    const target = this.find(anchor).index;
    const from = this.beside(id);
    const way = `from ${this.place(from)}`;
    // `moveCell` takes the index that the cell has afterwards.
    const left = target < index ? target : target - 1;
    const to = where.before ? left : left + 1;
    this.shift(index, to);
    const is = (beside: Beside): boolean => beside.above === from.above && beside.below === from.below;
    return this.edit({
      kind: 'move',
      id,
      way: `${way} to ${this.place(this.beside(id))}`,
      undo: () => this.shift(this.find(id).index, this.indexBeside(id, from, index)),
      isUndone: () => this.has(id) && index !== to && is(this.beside(id))
    });
  }

  /** Clears outputs; one change for each cell that had any. */
  clear(ids?: readonly string[]): Edit[] {
    const cells = ids?.length ? ids.map(id => this.find(id).cell) : [...this.notebook.cells];
    return cells
      .filter(cell => cell.cell_type === 'code')
      .map(cell => cell as ISharedCodeCell)
      .filter(code => code.getOutputs().length > 0 || code.execution_count !== null)
      .map(code => {
        const [id, outputs, count] = [code.id, code.getOutputs(), code.execution_count];
        this.notebook.transact(() => {
          code.setOutputs([]);
          code.execution_count = null;
        });
        const undo = (): void => {
          const again = this.find(id).cell as ISharedCodeCell;
          if (again.getOutputs().length) throw new CellError('the cell was run since; its outputs now stay');
          this.notebook.transact(() => {
            again.setOutputs(outputs);
            again.execution_count = count;
          });
        };
        return this.edit({ kind: 'clear', id, before: outputs.map(wordsOf).join('\n'), undo, isUndone: () => false });
      });
  }

  has(id: string): boolean {
    return this.notebook.cells.some(cell => cell.id === id);
  }

  private beside(id: string): Beside {
    const { index } = this.find(id);
    return { above: this.notebook.cells[index - 1]?.id ?? null, below: this.notebook.cells[index + 1]?.id ?? null };
  }

  /** A place in words: below the first words of the cell above. */
  private place({ above }: Beside): string {
    if (above === null) return 'the top';
    const [first] = this.find(above).cell.source.trim().split('\n', 1);
    return `below ${first ? `“${first.length > 40 ? `${first.slice(0, 40)}…` : first}”` : 'an empty cell'}`;
  }

  /** Where a cell stood: beside its old neighbours while they are there, else at its old index. */
  private indexBeside(id: string, { above, below }: Beside, index: number): number {
    const others = this.notebook.cells.map(cell => cell.id).filter(other => other !== id);
    const [over, under] = [above === null ? -2 : others.indexOf(above), below === null ? -2 : others.indexOf(below)];
    return over >= 0 ? over + 1 : under >= 0 ? under : Math.min(index, others.length);
  }

  /** Take a cell out; a notebook without cells cannot be typed into, so the last one leaves an empty one. */
  private take(id: string): string | null {
    const isLast = this.notebook.cells.length === 1;
    let left: string | null = null;
    this.stop();
    this.notebook.transact(() => {
      this.notebook.deleteCell(this.find(id).index);
      if (isLast) left = this.notebook.insertCell(0, { cell_type: 'code', source: '', metadata: {} } as never).id;
    });
    this.stop();
    return left;
  }

  private shift(from: number, to: number): void {
    if (from === to) return;
    this.stop();
    this.notebook.moveCell(from, to);
    this.stop();
  }

  /** One step of undo, and only what differs: a cursor elsewhere in the cell stays where it is. */
  private write(cell: ISharedCell, before: string, after: string): void {
    if (before === after) return;
    let start = 0;
    while (start < before.length && start < after.length && before[start] === after[start]) start++;
    let end = 0;
    while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
    // Not between the halves of one character.
    if (start && /[\ud800-\udbff]/.test(before[start - 1])) start--;
    if (end && /[\udc00-\udfff]/.test(before[before.length - end])) end--;
    this.stop(cell);
    cell.transact(() => cell.updateSource(start, before.length - end, after.slice(start, after.length - end)));
    this.stop(cell);
  }

  private expect(id: string, source: string): void {
    if (this.find(id).cell.source !== source) throw new CellError('the cell was changed since; its text now stays');
  }

  /** Ends the present step of undo, so that ours stands alone. */
  private stop(cell?: ISharedCell): void {
    const managers = [this.notebook, cell].map(model => (model as { undoManager?: { stopCapturing(): void } } | undefined)?.undoManager);
    for (const manager of managers) manager?.stopCapturing();
  }

  private edit(of: Pick<Edit, 'kind' | 'id' | 'undo' | 'isUndone'> & Partial<Edit>): Edit {
    return { before: '', after: '', beside: { above: null, below: null }, way: '', ...of };
  }
}

/** An output as text, for a person who decides whether it may go. */
function wordsOf(output: unknown): string {
  const one = output as { output_type?: string; text?: unknown; ename?: string; evalue?: string; data?: Record<string, unknown> };
  const joined = (text: unknown): string => (Array.isArray(text) ? text.join('') : String(text ?? '')).replace(/\n$/, '');
  if (one.output_type === 'stream') return joined(one.text);
  if (one.output_type === 'error') return `${one.ename}: ${one.evalue}`;
  const kinds = Object.keys(one.data ?? {});
  const rich = kinds.find(kind => kind !== 'text/plain');
  const plain = joined(one.data?.['text/plain']);
  return rich ? `${plain}${plain ? ' ' : ''}(${rich})` : plain || '(nothing)';
}
