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
  /** `showChat`: bring the chat into view; throws where there is none. */
  constructor(private readonly showChat: () => Promise<void>) {}

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

  /** Whether a change waits for a word. */
  get hasReview(): boolean {
    return this.open.length > 0;
  }

  /** Settle the review in the active cell, or the only one there is. */
  settleHere(notebook: Notebook | null, word: Word): void {
    const active = notebook?.activeCell ?? null;
    const here =
      this.open.find(one => active !== null && idOf(one) === active.model.id) ??
      this.open.find(one => active !== null && one.card?.cell === active) ??
      (this.open.length === 1 ? this.open[0] : undefined);
    here?.card?.settle(word);
  }

  settleAll(word: Word): void {
    // Newest first: an earlier change may lie below a later one.
    [...this.open].reverse().forEach(one => one.card?.settle(word));
  }

  /** Take back the agent's last change that can be taken back; one call of a tool is one change. */
  undoLast(): void {
    const last = this.journal.pop();
    if (!last) return void Notification.info('There is no change of kit to take back.', { autoClose: 3000 });
    try {
      for (const edit of [...last].reverse()) edit.undo();
    } catch (error) {
      return void Notification.warning(`Cannot take it back: ${error instanceof Error ? error.message : error}.`, { autoClose: 6000 });
    }
    for (const one of this.open.filter(one => one.edits.some(edit => last.includes(edit))))
      this.reduce(one, one.edits.filter(edit => !last.includes(edit)));
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
        this.note(panel, link, ...edits);
        return { cleared: edits.length };
      }
      case 'select_cell': {
        notebook.activeCellIndex = cells.find(args.id).index;
        await notebook.scrollToItem(notebook.activeCellIndex, 'smart');
        return { id: args.id };
      }
      case 'show_chat':
        await this.showChat();
        return {};
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

  /** Remember what one call changed, and offer it for review. */
  private note(panel: NotebookPanel, link: KernelLink, ...edits: Edit[]): void {
    if (!edits.length) return;
    this.journal.push(edits);
    if (this.journal.length > 200) this.journal.shift();
    if (!this.review) return;
    const notebook = panel.content;
    for (const edit of edits) {
      // A second change of a cell under review joins the first: one word settles both.
      const open = this.open.find(one => one.notebook === notebook && idOf(one) === edit.id);
      if (open && edit.kind === 'delete' && open.edits[0].kind === 'insert') {
        this.close(open); // what came and went leaves nothing to decide
      } else if (open) {
        open.edits = [...open.edits, edit];
        this.show(open);
      } else if (edit.kind !== 'clear' || edit.before) {
        const made: Open = { notebook, edits: [edit], tell: (of, word) => this.tell(link, of, word), card: null };
        this.open.push(made);
        this.show(made);
      }
    }
    this.watch(notebook);
  }

  private show(one: Open): void {
    this.drop(one);
    const card = (one.card = new Review(one.notebook, one.edits, word => {
      this.close(one);
      new Map(one.edits.map(edit => [edit.kind, edit])).forEach(edit => one.tell(edit, word));
    }));
    // Its cell went: moved, which makes it anew at once, or for good.
    card.disposed.connect(() => {
      if (one.card !== card) return;
      one.card = null;
      this.showSoon(one);
    });
    if (!card.place()) this.drop(one);
    if (!one.card) this.showSoon(one);
  }

  private showSoon(one: Open): void {
    window.setTimeout(() => {
      if (!this.open.includes(one) || one.card) return;
      const card = one.notebook.isDisposed ? null : Review.cellFor(one.notebook, one.edits);
      if (card) this.show(one);
      else this.close(one);
    }, 0);
  }

  private drop(one: Open): void {
    const card = one.card;
    one.card = null;
    card?.dispose();
  }

  private close(one: Open): void {
    this.open = this.open.filter(other => other !== one);
    this.drop(one);
  }

  /** A part of what is under review was taken back. */
  private reduce(one: Open, rest: readonly Edit[]): void {
    one.edits.filter(edit => !rest.includes(edit)).forEach(edit => one.tell(edit, 'took back'));
    if (!rest.length) return this.close(one);
    one.edits = rest;
    this.show(one);
  }

  /** A change that the person takes back with the editor's undo needs no word any more. */
  private watch(notebook: Notebook): void {
    if (this.watched.has(notebook)) return;
    this.watched.add(notebook);
    const mine = (): Open[] => this.open.filter(one => one.notebook === notebook);
    const look = (): void => {
      for (const one of mine()) {
        const last = one.edits[one.edits.length - 1];
        if (last.isUndone()) this.reduce(one, one.edits.slice(0, -1));
      }
    };
    let timer = 0;
    notebook.model?.contentChanged.connect(() => {
      window.clearTimeout(timer);
      if (mine().length) timer = window.setTimeout(look, 0);
    });
    notebook.disposed.connect(() => {
      window.clearTimeout(timer);
      mine().forEach(one => this.close(one));
    });
  }

  /** The session learns what became of its change. */
  private tell(link: KernelLink, edit: Edit, word: Word): void {
    link.request('review', { cell: edit.id, change: edit.kind, word }).catch(() => undefined);
  }

  private journal: Edit[][] = [];
  private open: Open[] = [];
  private watched = new WeakSet<Notebook>();
}

/** Changes of one cell that wait for a word, and the card that shows them. */
interface Open {
  readonly notebook: Notebook;
  edits: readonly Edit[];
  readonly tell: (edit: Edit, word: Word) => void;
  card: Review | null;
}

function idOf(one: Open): string {
  return one.edits[one.edits.length - 1].id;
}
