// Buttons on a cell's output: Explain, Fix where it failed, Ask about it. Shown on hover and on focus.
import { Cell, CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { CommandRegistry } from '@lumino/commands';

import { eachCodeCell } from './code-cells';
import { ID } from './commands';
import { TURN_MIME } from './view';

const KIT_CELL = /^\s*%%?kit/;

/** What a person sees of a cell's output. */
export function outputState(cell: Cell | null): { has: boolean; failed: boolean } {
  if (!(cell instanceof CodeCell) || cell.isDisposed) return { has: false, failed: false };
  const outputs = cell.outputArea.model.toJSON() as { output_type: string; data?: Record<string, unknown> }[];
  const own = KIT_CELL.test(cell.model.sharedModel.getSource()) || outputs.some(one => one.data && TURN_MIME in one.data);
  const failed = outputs.some(one => one.output_type === 'error');
  return { has: outputs.length > 0 && (!own || failed), failed };
}

/** Keep the buttons of a notebook's cells up to date. */
export function decorate(panel: NotebookPanel, commands: CommandRegistry): void {
  const bars = new WeakMap<Cell, HTMLElement>();

  const update = (cell: Cell): void => {
    const { has, failed } = outputState(cell);
    const bar = bars.get(cell);
    if (!has) return void bar?.remove();
    const made = bar ?? makeBar(cell);
    bars.set(cell, made);
    (made.querySelector('.kit-output-fix') as HTMLElement).hidden = !failed;
    const place = (cell as CodeCell).outputArea.node.parentElement;
    if (place && made.parentElement !== place) place.append(made);
  };
  const makeBar = (cell: Cell): HTMLElement => {
    const bar = document.createElement('div');
    bar.className = 'kit-output-bar';
    bar.setAttribute('role', 'toolbar');
    bar.setAttribute('aria-label', 'Ask kit about this output');
    const add = (label: string, name: string, command: string, title: string): void => {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = `kit-output-button ${name}`;
      button.textContent = label;
      button.title = title;
      button.addEventListener('click', event => {
        event.stopPropagation();
        void commands.execute(command, { cell: cell.model.id });
      });
      bar.append(button);
    };
    add('Explain', 'kit-output-explain', ID.explainCell, 'Explain this output in the chat');
    add('Fix', 'kit-output-fix', ID.fixCell, 'Propose a fix for this error');
    add('Ask', 'kit-output-ask', ID.askCell, 'Ask about this output in the chat');
    return bar;
  };
  eachCodeCell(panel, cell => {
    const outputs = cell.model.outputs;
    const changed = (): void => {
      if (!cell.isDisposed) update(cell);
    };
    outputs.changed.connect(changed);
    cell.disposed.connect(() => outputs.changed.disconnect(changed));
    // A windowed notebook makes a cell's content when it comes into view.
    void cell.ready.then(changed);
    cell.inViewportChanged.connect(changed);
  });
}
