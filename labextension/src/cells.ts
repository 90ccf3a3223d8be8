// The agent's hands: does what the kernel's cell tools ask for, exactly once, and lets a person take it back.
import { Notification } from '@jupyterlab/apputils';
import { Cell, CodeCell } from '@jupyterlab/cells';
import { Notebook, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import type { ISharedNotebook } from '@jupyter/ydoc';
import { JSONObject } from '@lumino/coreutils';

import { CellError, Cells, Edit } from './cell-edits';
import { CLIENT, KernelLink } from './comm';
import { Call } from './protocol';
import { Review, Word } from './review';

export class CellHands {
  /** Whether changes wait for Accept or Reject. */
  review = true;

  /** Answer a call of the kernel; the first page that claims it does it, so that two browsers do it once. */
  async answer(panel: NotebookPanel, link: KernelLink, call: Call): Promise<void> {
    if (call.first !== CLIENT) await new Promise(resolve => setTimeout(resolve, 1500));
    if (panel.isDisposed) return;
    const claim = await link.request('claim', { id: call.id });
    if (claim.status !== 'ok' || claim.granted !== true) return;
    let result: JSONObject;
    try {
      result = { ok: true, value: (await this.perform(panel, link, call.tool, call.arguments)) as JSONObject };
    } catch (error) {
      const known = error instanceof CellError;
      result = { ok: false, error: known ? error.message : `the front end failed: ${error instanceof Error ? error.message : error}` };
      if (!known) console.error('kit: cell tool', call.tool, error);
    }
    await link.request('done', { id: call.id, ...result }, 10000);
  }

  get reviews(): readonly Review[] {
    return this._reviews.filter(review => !review.isDisposed);
  }

  /** Settle the review in the active cell, or the only one there is. */
  settleHere(notebook: Notebook | null, word: Word): void {
    const open = this.reviews;
    const here = open.find(review => review.cell === notebook?.activeCell) ?? (open.length === 1 ? open[0] : undefined);
    here?.settle(word);
  }

  settleAll(word: Word): void {
    // Newest first: an earlier change may lie below a later one.
    [...this.reviews].reverse().forEach(review => review.settle(word));
  }

  /** Take back the agent's last change that can be taken back. */
  undoLast(): void {
    const last = this.journal.pop();
    if (!last) return void Notification.info('There is no change of kit to take back.', { autoClose: 3000 });
    try {
      last.undo();
      this.reviews.filter(review => review.edits.includes(last)).forEach(review => review.dispose());
    } catch (error) {
      Notification.warning(`Cannot take it back: ${error instanceof Error ? error.message : error}.`, { autoClose: 6000 });
    }
  }

  private async perform(panel: NotebookPanel, link: KernelLink, tool: string, args: Record<string, any>): Promise<unknown> {
    const notebook = panel.content;
    const shared = notebook.model?.sharedModel as ISharedNotebook | undefined;
    if (!shared) throw new CellError('the notebook is still loading; try again');
    const cells = new Cells(shared);
    const where = { after: args.after as string | undefined, before: args.before as string | undefined };
    const cellOf = (id: string): Cell => notebook.widgets[cells.find(id).index];
    const writable = (id: string): void => {
      if (cells.find(id).cell.getMetadata('editable') === false) throw new CellError(`cell ${id} is marked as not editable`);
    };
    switch (tool) {
      case 'read_cells': {
        const active = notebook.activeCell?.model.id ?? null;
        return { path: panel.context.path, active, cells: cells.read(args.ids, args.outputs !== false) };
      }
      case 'insert_cell': {
        const edit = cells.insert(args.type ?? 'code', args.source ?? '', where);
        this.note(panel, link, edit);
        return { id: edit.id };
      }
      case 'edit_cell': {
        writable(args.id);
        const edit = cells.replace(args.id, args.new, args.old);
        if (edit.before !== edit.after) this.note(panel, link, edit);
        return { id: args.id, source: edit.after };
      }
      case 'delete_cell': {
        if (cells.find(args.id).cell.getMetadata('deletable') === false) throw new CellError(`cell ${args.id} is marked as not deletable`);
        const edit = cells.delete(args.id);
        this.note(panel, link, edit);
        return { id: args.id };
      }
      case 'move_cell':
        this.note(panel, link, cells.move(args.id, where));
        return { id: args.id, index: cells.find(args.id).index };
      case 'clear_cells': {
        const edits = cells.clear(args.ids);
        edits.forEach(edit => this.note(panel, link, edit));
        return { cleared: edits.length };
      }
      case 'select_cell': {
        notebook.activeCellIndex = cells.find(args.id).index;
        await notebook.scrollToItem(notebook.activeCellIndex, 'smart');
        return { id: args.id };
      }
      case 'run_cell':
        return this.run(panel, cells, cellOf(args.id), args.wait !== false);
    }
    throw new CellError(`this front end has no tool ${tool}; the extension and the package differ in version`);
  }

  private async run(panel: NotebookPanel, cells: Cells, cell: Cell, wait: boolean): Promise<unknown> {
    if (!(cell instanceof CodeCell)) throw new CellError('only code cells can be run');
    const id = cell.model.id;
    const running = NotebookActions.runCells(panel.content, [cell], panel.sessionContext);
    if (!wait) {
      running.catch(() => undefined);
      return { id, state: 'queued' };
    }
    const success = await running;
    return { ...cells.read([id])[0], state: success ? 'done' : 'error' };
  }

  /** Remember a change and offer it for review. */
  private note(panel: NotebookPanel, link: KernelLink, edit: Edit): void {
    this.journal.push(edit);
    if (this.journal.length > 200) this.journal.shift();
    if (!this.review) return;
    if (edit.kind === 'delete') return this.offerBack(link, edit);
    if (edit.kind === 'move' || edit.kind === 'clear') return;
    const notebook = panel.content;
    const index = notebook.widgets.findIndex(cell => cell.model.id === edit.id);
    if (index < 0) return;
    const cell = notebook.widgets[index];
    // A second edit of a cell under review joins the first: one word settles both.
    const open = this.reviews.find(review => review.cell === cell);
    const edits = open ? [...open.edits, edit] : [edit];
    open?.dispose();
    const review = new Review(cell, edits, word => this.tell(link, edit, word));
    this._reviews = [...this.reviews, review];
    review.attach();
    cell.disposed.connect(() => review.dispose());
  }

  private offerBack(link: KernelLink, edit: Edit): void {
    const first = edit.before.split('\n', 1)[0].slice(0, 60);
    Notification.info(`kit deleted a cell${first ? `: ${first}` : ''}`, {
      autoClose: 15000,
      actions: [
        {
          label: 'Bring it back',
          callback: () => {
            try {
              edit.undo();
              this.tell(link, edit, 'rejected');
            } catch (error) {
              Notification.warning(`Cannot bring it back: ${error instanceof Error ? error.message : error}.`, { autoClose: 6000 });
            }
          }
        }
      ]
    });
  }

  /** The session learns what became of its change. */
  private tell(link: KernelLink, edit: Edit, word: Word): void {
    link.request('review', { cell: edit.id, change: edit.kind, word }).catch(() => undefined);
  }

  private journal: Edit[] = [];
  private _reviews: Review[] = [];
}
