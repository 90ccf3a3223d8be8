// The code cells of a notebook, those that come later included.
import { Cell, CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';

/** Call `each` once for every code cell, as it comes. */
export function eachCodeCell(panel: NotebookPanel, each: (cell: CodeCell) => void): void {
  const notebook = panel.content;
  const seen = new WeakSet<Cell>();
  const look = (): void => {
    for (const cell of notebook.widgets) {
      if (!(cell instanceof CodeCell) || seen.has(cell)) continue;
      seen.add(cell);
      each(cell);
    }
  };
  look();
  notebook.modelContentChanged.connect(look);
  notebook.activeCellChanged.connect(look);
}
