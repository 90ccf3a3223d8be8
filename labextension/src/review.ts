// A change of the agent shown where it was made: what went and what came, with Accept and Reject.
import { unifiedMergeView } from '@codemirror/merge';
import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { Cell } from '@jupyterlab/cells';
import { PanelLayout, Widget } from '@lumino/widgets';

import { CellError, Edit } from './cell-edits';

export type Word = 'accepted' | 'rejected';

export class Review extends Widget {
  constructor(readonly cell: Cell, readonly edits: Edit[], private readonly settled: (word: Word, review: Review) => void) {
    super();
    this.addClass('kit-review');
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', `Change of this cell by kit: ${this.title_}`);
    const bar = document.createElement('div');
    bar.className = 'kit-review-bar';
    const title = document.createElement('span');
    title.textContent = this.title_;
    bar.append(title, this.button('Accept', () => this.settle('accepted')), this.button('Reject', () => this.settle('rejected')));
    this.note.className = 'kit-review-note';
    this.note.setAttribute('role', 'alert');
    this.node.append(bar, this.note);
    if (this.before !== this.after && this.kind === 'edit') this.drawDiff();
    if (this.kind === 'move' || this.kind === 'clear') this.note.textContent = '';
  }

  /** Show it in its cell, below the editor. */
  attach(): void {
    const layout = this.cell.layout as PanelLayout;
    const at = layout.widgets.findIndex(child => child.hasClass('jp-Cell-inputWrapper'));
    layout.insertWidget(at + 1, this);
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
    this.settled(word, this);
    this.dispose();
  }

  override dispose(): void {
    this.view?.destroy();
    this.view = null;
    super.dispose();
  }

  private get kind(): Edit['kind'] {
    return this.edits[0].kind;
  }
  private get before(): string {
    return this.edits[0].before;
  }
  private get after(): string {
    return this.edits[this.edits.length - 1].after;
  }
  private get title_(): string {
    const what = { edit: 'edited', insert: 'inserted', delete: 'deleted', move: 'moved', clear: 'cleared' }[this.kind];
    return `kit ${what} this cell`;
  }

  private button(label: string, act: () => void): HTMLButtonElement {
    const button = document.createElement('button');
    button.className = `jp-mod-styled kit-review-${label.toLowerCase()}`;
    button.type = 'button';
    button.textContent = label;
    button.setAttribute('aria-label', `${label} the change of this cell`);
    button.addEventListener('click', event => {
      event.stopPropagation();
      act();
    });
    return button;
  }

  private drawDiff(): void {
    const place = document.createElement('div');
    place.className = 'kit-review-diff';
    this.node.append(place);
    this.view = new EditorView({
      parent: place,
      state: EditorState.create({
        doc: this.after,
        extensions: [
          EditorState.readOnly.of(true),
          EditorView.editable.of(false),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': 'What was changed', tabindex: '0' }),
          unifiedMergeView({ original: this.before, mergeControls: false, gutter: true, highlightChanges: true })
        ]
      })
    });
  }

  private note = document.createElement('div');
  private view: EditorView | null = null;
}
