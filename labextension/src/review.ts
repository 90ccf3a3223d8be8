// A change of the agent shown where it was made: what went and what came, with Accept and Reject.
//
// The card ends with the cell that holds it; whoever made it makes another (a cell that is moved gets a new widget).
// What was deleted is shown in the cell that stands there now.
import { unifiedMergeView } from '@codemirror/merge';
import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { Cell } from '@jupyterlab/cells';
import { Notebook } from '@jupyterlab/notebook';
import { PanelLayout, Widget } from '@lumino/widgets';

import { CellError, Edit } from './cell-edits';

export type Word = 'accepted' | 'rejected' | 'took back';

const DONE = { edit: 'edited', insert: 'inserted', delete: 'deleted', move: 'moved', clear: 'cleared' } as const;

export class Review extends Widget {
  /** `settled` hears the person's word. */
  constructor(
    readonly notebook: Notebook,
    readonly edits: readonly Edit[],
    private readonly settled: (word: Word) => void
  ) {
    super();
    this.addClass('kit-review');
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', `Change by kit: ${this.words}`);
    const bar = document.createElement('div');
    bar.className = 'kit-review-bar';
    const title = document.createElement('span');
    title.textContent = this.words;
    bar.append(title, this.button('Accept', () => this.settle('accepted')), this.button('Reject', () => this.settle('rejected')));
    this.note.className = 'kit-review-note';
    this.note.setAttribute('role', 'alert');
    this.node.append(bar, this.note);
    const texts = edits.filter(edit => edit.kind === 'edit' || edit.kind === 'insert' || edit.kind === 'delete');
    // A cell that is wholly new is its own picture.
    if (texts.length && texts[0].kind !== 'insert') this.drawDiff(texts[0].before, texts[texts.length - 1].after, 'What was changed');
    const cleared = edits.find(edit => edit.kind === 'clear');
    if (cleared) this.drawDiff(cleared.before, '', 'Outputs that were cleared');
  }

  /** The cell in which it is shown. */
  get cell(): Cell | null {
    return this.parent as Cell | null;
  }

  /** Where changes are shown: their cell; of a deleted one the next cell, or else the one above. */
  static cellFor(notebook: Notebook, edits: readonly Edit[]): Cell | null {
    const { id, kind, beside } = edits[edits.length - 1];
    const cellOf = (wanted: string | null): Cell | null => notebook.widgets.find(cell => cell.model.id === wanted) ?? null;
    if (kind !== 'delete') return cellOf(id);
    return cellOf(beside.below) ?? cellOf(beside.above) ?? notebook.widgets[notebook.widgets.length - 1] ?? null;
  }

  /** Show it; false when there is no place for it. */
  place(): boolean {
    const cell = Review.cellFor(this.notebook, this.edits);
    if (!cell) return false;
    const layout = cell.layout as PanelLayout;
    const input = layout.widgets.findIndex(child => child.hasClass('jp-Cell-inputWrapper'));
    // Below the editor of its own cell; a deleted one above the next cell, or at the end of the last.
    const at = this.last.kind !== 'delete' ? input + 1 : cell.model.id === this.last.beside.below ? input : layout.widgets.length;
    layout.insertWidget(at, this);
    return true;
  }

  settle(word: Word): void {
    if (this.isDisposed) return;
    if (word === 'rejected')
      try {
        for (const edit of [...this.edits].reverse()) edit.undo();
      } catch (error) {
        if (!(error instanceof CellError)) throw error;
        this.note.textContent = `Cannot take it back: ${error.message}.`;
        return;
      }
    this.settled(word);
  }

  override dispose(): void {
    this.views.forEach(view => view.destroy());
    this.views = [];
    super.dispose();
  }

  private get last(): Edit {
    return this.edits[this.edits.length - 1];
  }

  private get words(): string {
    if (this.last.kind === 'delete') return 'kit deleted a cell';
    const done = [...new Set(this.edits.map(edit => DONE[edit.kind]))].join(' and ');
    const outputs = this.edits.every(edit => edit.kind === 'clear') ? "'s outputs" : '';
    const way = this.edits.find(edit => edit.kind === 'move')?.way ?? '';
    return `kit ${done} this cell${outputs}${way && ` ${way}`}`;
  }

  private button(label: string, act: () => void): HTMLButtonElement {
    const button = document.createElement('button');
    button.className = `jp-mod-styled kit-review-${label.toLowerCase()}`;
    button.type = 'button';
    button.textContent = label;
    button.setAttribute('aria-label', `${label}: ${this.words}`);
    button.addEventListener('click', event => {
      event.stopPropagation();
      act();
    });
    return button;
  }

  private drawDiff(before: string, after: string, label: string): void {
    if (before === after) return;
    const place = document.createElement('div');
    place.className = 'kit-review-diff';
    this.node.append(place);
    const view = new EditorView({
      parent: place,
      state: EditorState.create({
        doc: after,
        extensions: [
          EditorState.readOnly.of(true),
          EditorView.editable.of(false),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': label, tabindex: '0' }),
          unifiedMergeView({ original: before, mergeControls: false, gutter: true, highlightChanges: true })
        ]
      })
    });
    this.views.push(view);
  }

  private note = document.createElement('div');
  private views: EditorView[] = [];
}
