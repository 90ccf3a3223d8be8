// The agent's operations on the shared model that the editors use: undo is one step, nothing is lost.
import { YNotebook } from '@jupyter/ydoc';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { CellError, Cells, type Edit } from '../../labextension/src/cell-edits';

function notebook(sources: string[]): YNotebook {
  const made = YNotebook.create({ disableDocumentWideUndoRedo: true, data: { cells: [], metadata: {}, nbformat: 4, nbformat_minor: 5 } });
  sources.forEach((source, n) => made.addCell({ cell_type: 'code', source, id: `id-${n}`, metadata: { n } } as never));
  return made;
}
const state = (nb: YNotebook) => nb.cells.map(cell => [cell.id, cell.source, JSON.stringify(cell.getMetadata())]);

describe('edits', () => {
  test('only what differs is written, whole characters stay whole', () => {
    const nb = notebook(['a😀b😁c']);
    const updates: string[] = [];
    nb.cells[0].changed.connect((_, change) => {
      for (const delta of change.sourceChange ?? []) if (typeof delta.insert === 'string') updates.push(delta.insert);
    });

    new Cells(nb).replace('id-0', 'a😀b😂c');

    expect(nb.cells[0].source).toBe('a😀b😂c');
    expect(updates).toEqual(['😂']);
  });
  test('point 5: an edit beside typing is one step of undo', () => {
    const nb = notebook(['x = 1']);
    const cell = nb.cells[0];
    cell.undoManager!.stopCapturing();
    cell.updateSource(5, 5, '0');
    new Cells(nb).replace('id-0', 'import math\nx = math.pi');
    cell.updateSource(0, 0, '# ');

    cell.undo();
    expect(cell.source).toBe('import math\nx = math.pi');
    cell.undo();
    expect(cell.source).toBe('x = 10');
  });
  test.each([
    ['nope', 'x', undefined, /no cell has the id nope; the cells are id-0/],
    ['id-0', 'x', 'zz', /does not contain "zz"/],
    ['id-0', 'x', 'a', /more than once/],
    ['id-0', 'x', '', /empty/]
  ])('what cannot be done says so: %s %s %s', (id, text, old, message) => {
    const nb = notebook(['a a']);
    expect(() => new Cells(nb).replace(id, text, old)).toThrow(message);
    expect(nb.cells[0].source).toBe('a a');
  });
  test('taking back what the person went on with is refused, and nothing is lost', () => {
    const nb = notebook(['a']);
    const cells = new Cells(nb);
    const edit = cells.replace('id-0', 'b');
    const insert = cells.insert('markdown', 'text', {});
    nb.cells[0].setSource('mine');
    nb.cells[1].setSource('mine too');

    expect(() => edit.undo()).toThrow(CellError);
    expect(() => insert.undo()).toThrow(CellError);
    expect(nb.cells.map(cell => cell.source)).toEqual(['mine', 'mine too']);
  });
  test('a pattern of replacement characters is plain text', () => {
    const nb = notebook(["s = 'x'"]);
    new Cells(nb).replace('id-0', "$& $1 $$ $'", "'x'");
    expect(nb.cells[0].source).toBe("s = $& $1 $$ $'");
  });
});

test('any edits, taken back in turn, give each state before them; ids and metadata stay; no cell is lost or blank', () => {
  const text = fc.string({ unit: 'grapheme', maxLength: 12 }).map(t => `v = ${t}`);
  const step = fc.record({ verb: fc.constantFrom('edit', 'insert', 'delete', 'move'), at: fc.nat(), to: fc.nat(), text, before: fc.boolean() });
  fc.assert(
    fc.property(fc.array(text, { minLength: 1, maxLength: 5 }), fc.array(step, { maxLength: 40 }), (sources, steps) => {
      const nb = notebook(sources);
      const cells = new Cells(nb);
      const done: { edit: Edit; before: unknown }[] = [];
      for (const { verb, at, to, text, before } of steps) {
        const ids = nb.cells.map(cell => cell.id);
        const id = ids[at % ids.length];
        const anchor = ids[to % ids.length];
        const where = before ? { before: anchor } : { after: anchor };
        const was = state(nb);
        if (verb === 'edit') done.push({ before: was, edit: cells.replace(id, text) });
        else if (verb === 'insert') done.push({ before: was, edit: cells.insert('code', text, where) });
        else if (verb === 'delete' && ids.length > 1) done.push({ before: was, edit: cells.delete(id) });
        else if (verb === 'move' && anchor !== id) {
          done.push({ before: was, edit: cells.move(id, where) });
          const now = nb.cells.map(cell => cell.id);
          expect(now.indexOf(id) - now.indexOf(anchor)).toBe(before ? -1 : 1);
          expect([...now].sort()).toEqual([...ids].sort());
        }
        expect(new Set(nb.cells.map(cell => cell.id)).size).toBe(nb.cells.length);
        expect(nb.cells.every(cell => cell.source.trim())).toBe(true);
      }
      for (const { edit, before } of done.reverse()) {
        edit.undo();
        expect(state(nb)).toEqual(before);
      }
    }),
    { numRuns: 100 }
  );
});

test('deleting the last cell leaves one to type into', () => {
  const nb = notebook(['a']);
  const edit = new Cells(nb).delete('id-0');
  expect(nb.cells.map(cell => cell.source)).toEqual(['']);
  edit.undo();
  expect(nb.cells[0].id).toBe('id-0');
});

test('a cell that was moved goes back beside its neighbours, whatever came between', () => {
  const nb = notebook(['a', 'b', 'c', 'd']);
  const cells = new Cells(nb);
  const edit = cells.move('id-1', { after: 'id-3' });
  expect(edit.way).toBe('from below “a” to below “d”');
  cells.insert('code', 'new', { before: 'id-0' });
  expect(edit.isUndone()).toBe(false);

  edit.undo();

  expect(nb.cells.map(cell => cell.source)).toEqual(['new', 'a', 'b', 'c', 'd']);
  expect(edit.isUndone()).toBe(true);
});

test('cleared outputs come back as they were, unless the cell was run since; cells without any are no change', () => {
  const nb = notebook(['1', '2']);
  const code = nb.cells[0] as unknown as { setOutputs(o: unknown[]): void; getOutputs(): unknown[]; execution_count: number | null };
  const outputs = [
    { output_type: 'stream', name: 'stdout', text: 'one\n' },
    { output_type: 'display_data', data: { 'image/png': 'aGk=', 'text/plain': '<Figure>' }, metadata: {} },
    { output_type: 'error', ename: 'E', evalue: 'v', traceback: [] }
  ];
  code.setOutputs(outputs);
  code.execution_count = 3;
  const [edit, ...more] = new Cells(nb).clear();
  expect(more).toEqual([]);
  expect(edit.before).toBe('one\n<Figure> (image/png)\nE: v');
  expect([code.getOutputs(), code.execution_count]).toEqual([[], null]);

  edit.undo();
  expect(code.getOutputs()).toEqual(outputs);
  expect(code.execution_count).toBe(3);
  expect(() => edit.undo()).toThrow(/run since/);
});

test('a change that was taken back by the undo of the editor is known to be', () => {
  const nb = notebook(['a', 'b']);
  const cells = new Cells(nb);
  const edit = cells.replace('id-0', 'a2');
  const gone = cells.delete('id-1');
  expect([edit.isUndone(), gone.isUndone()]).toEqual([false, false]);

  nb.undo();
  nb.cells[0].undo();

  expect(nb.cells.map(cell => cell.source)).toEqual(['a', 'b']);
  expect([edit.isUndone(), gone.isUndone()]).toEqual([true, true]);
});
