// Tells the session where the person is: the active cell, the selected text, whether its output failed.
import { CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { JSONObject } from '@lumino/coreutils';

import { KernelLink } from './comm';
import { outputState } from './outputs';

const MAX_SELECTION = 4000;

/** Where the person is in a notebook. */
export function focusOf(panel: NotebookPanel): JSONObject {
  const notebook = panel.content;
  const cell = notebook.activeCell;
  if (!cell) return { path: panel.context.path, cell: null };
  const editor = cell.editor;
  let selection = '';
  if (editor) {
    const { start, end } = editor.getSelection();
    const [from, to] = [editor.getOffsetAt(start), editor.getOffsetAt(end)].sort((a, b) => a - b);
    selection = editor.model.sharedModel.getSource().slice(from, Math.min(to, from + MAX_SELECTION));
  }
  return {
    path: panel.context.path,
    cell: cell.model.id,
    type: cell.model.type,
    index: notebook.activeCellIndex,
    source: cell.model.sharedModel.getSource().slice(0, MAX_SELECTION),
    selection,
    selected: notebook.widgets.filter(one => notebook.isSelectedOrActive(one)).map(one => one.model.id).slice(0, 50),
    failed: outputState(cell).failed,
    executed: cell instanceof CodeCell ? cell.model.executionCount : null
  };
}

/** Say it again whenever it changed, a moment after the last change; returns who ends it. */
export function tellFocus(panel: NotebookPanel, link: KernelLink, isOn: () => boolean): () => void {
  let timer = 0;
  let last = '';
  const say = (): void => {
    if (panel.isDisposed || link.state !== 'ready' || !isOn()) return;
    const focus = focusOf(panel);
    const text = JSON.stringify(focus);
    if (text === last) return;
    last = text;
    link.request('focus', { focus }).catch(() => undefined);
  };
  const soon = (): void => {
    window.clearTimeout(timer);
    timer = window.setTimeout(say, 250);
  };
  const again = (): void => {
    last = '';
    soon();
  };
  const notebook = panel.content;
  let selections: { disconnect(slot: () => void): boolean } | null = null;
  const watchCell = (): void => {
    selections?.disconnect(soon);
    const signal = notebook.activeCell?.model.selections.changed ?? null;
    signal?.connect(soon);
    selections = signal;
    soon();
  };
  notebook.activeCellChanged.connect(watchCell);
  notebook.selectionChanged.connect(soon);
  link.stateChanged.connect(again);
  watchCell();
  return () => {
    window.clearTimeout(timer);
    selections?.disconnect(soon);
    notebook.activeCellChanged.disconnect(watchCell);
    notebook.selectionChanged.disconnect(soon);
    link.stateChanged.disconnect(again);
  };
}
