// Puts what stays of a turn in the place of its live view, where the kernel's own update does not reach it.
//
// An update of a display goes by an id that no file keeps: a page that was opened while the turn ran has the live view
// from the file, and would show nothing once the view is gone.
import { CodeCell, CodeCellModel } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { JSONObject } from '@lumino/coreutils';

import { KernelLink } from './comm';
import { ILinks } from './links';
import { TURN_MIME } from './view';

const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';

type Outputs = CodeCellModel['outputs'];
type Output = Parameters<Outputs['set']>[1];

const ENDED: ReadonlySet<string> = new Set(['restarting', 'autorestarting', 'dead', 'terminating']);

/** The root of a live view (chat.js). */
interface LiveView extends Element {
  kitLeft?: (why: string) => { turn: JSONObject; text: string } | null;
}

interface Place {
  outputs: Outputs;
  index: number;
  view: string;
}

/** Where widgets are shown in a notebook; all, or the one with that model id. */
function placesOf(panel: NotebookPanel, only?: string): Place[] {
  const found: Place[] = [];
  for (const cell of panel.content.model?.cells ?? []) {
    if (!(cell instanceof CodeCellModel)) continue;
    for (let index = 0; index < cell.outputs.length; index++) {
      const shown = cell.outputs.get(index).data[WIDGET_MIME] as { model_id?: unknown } | undefined;
      const view = shown?.model_id;
      if (typeof view === 'string' && (only === undefined || only === view)) found.push({ outputs: cell.outputs, index, view });
    }
  }
  return found;
}

async function settle(panel: NotebookPanel, link: KernelLink, only?: string): Promise<void> {
  await panel.context.ready;
  if (panel.isDisposed) return;
  const views = [...new Set(placesOf(panel, only).map(place => place.view))];
  if (only !== undefined && !views.length) return;
  const reply = await link.request('settled', { views }, 10000);
  if (reply.status !== 'ok' || panel.isDisposed) return;
  const outputs = reply.outputs as unknown as Record<string, Output>;
  // Looked for again: outputs may have come and gone meanwhile.
  for (const place of placesOf(panel, only)) if (outputs[place.view]) place.outputs.set(place.index, outputs[place.view]);
  if (only === undefined) restore(panel, reply.running as unknown as Record<string, Output>);
}

/** Show the live views of turns that run in cells which lost them: the page was reloaded before the file was saved. */
function restore(panel: NotebookPanel, running: Record<string, Output>): void {
  if (panel.context.model.collaborative) return; // there the outputs outlive the page
  for (const cell of panel.content.widgets) {
    if (!(cell instanceof CodeCell) || !running[cell.model.id] || cell.model.outputs.length) continue;
    const future = cell.outputArea.future as { isDisposed: boolean } | undefined;
    if (future && !future.isDisposed) continue; // its outputs are on their way
    cell.model.trusted = true; // as Lab does with a cell that runs; it holds no output from elsewhere
    cell.model.outputs.add(running[cell.model.id]);
  }
}

/** The kernel has ended in mid-turn, and nobody will say what stays: what the view shows does. */
function leave(panel: NotebookPanel): void {
  for (const cell of panel.content.widgets) {
    if (!(cell instanceof CodeCell)) continue;
    const outputs = cell.model.outputs;
    for (const view of cell.outputArea.node.querySelectorAll('.kit-view')) {
      const index = cell.outputArea.widgets.findIndex(one => one.node.contains(view));
      const left = (view as LiveView).kitLeft?.('the kernel ended during this turn');
      if (!left || index < 0 || !(WIDGET_MIME in outputs.get(index).data)) continue;
      const data = { [TURN_MIME]: { version: 1, turn: left.turn }, 'text/plain': left.text };
      outputs.set(index, { output_type: 'display_data', data, metadata: {} } as Output);
    }
  }
}

/** Settle the views of all notebooks: when a kernel is found, and when it says that one is gone. */
export function settleViews(links: ILinks): void {
  const ready = new WeakMap<KernelLink, string>();
  const watch = (panel: NotebookPanel): void => {
    panel.sessionContext.statusChanged.connect((_, status) => {
      if (ENDED.has(status) && !panel.isDisposed) leave(panel);
    });
  };
  const run = (panel: NotebookPanel, link: KernelLink, only?: string): void =>
    void settle(panel, link, only).catch(error => console.warn('kit:', error));
  links.message.connect((_, { panel, link, message }) => {
    if (message.kind === 'settled') run(panel, link, message.view);
  });
  const look = (): void => {
    for (const [panel, link] of links.all) {
      if (!ready.has(link)) watch(panel);
      const kernel = link.state === 'ready' ? link.kernel?.id ?? '' : '';
      if (kernel && ready.get(link) !== kernel) run(panel, link);
      ready.set(link, kernel);
    }
  };
  links.changed.connect(look);
  look();
}
