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

interface Ended {
  output: Output;
  at: number;
  count: number | null;
}

interface Place {
  cell: CodeCellModel;
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
      if (typeof view === 'string' && (only === undefined || only === view)) found.push({ cell, outputs: cell.outputs, index, view });
    }
  }
  return found;
}

/** `opened`: the page has found this notebook's kernel for the first time; `only`: one view, of which the kernel tells. */
async function settle(panel: NotebookPanel, link: KernelLink, opened: boolean, only?: string): Promise<void> {
  await panel.context.ready;
  if (panel.isDisposed) return;
  const views = [...new Set(placesOf(panel, only).map(place => place.view))];
  if (only !== undefined && !views.length) return;
  const empty = opened ? cellsWithout(panel).map(cell => cell.model.id) : []; // later ones were cleared by hand
  const reply = await link.request('settled', { views, empty }, 10000);
  if (reply.status !== 'ok' || panel.isDisposed) return;
  const outputs = reply.outputs as unknown as Record<string, Output>;
  const counts = (reply.counts ?? {}) as unknown as Record<string, number>; // none from an older kernel
  // Looked for again: outputs may have come and gone meanwhile.
  for (const place of placesOf(panel, only)) {
    if (!outputs[place.view]) continue;
    place.outputs.set(place.index, outputs[place.view]);
    number(place.cell, counts[place.view]);
  }
  if (only !== undefined) return;
  const running = reply.running as unknown as Record<string, Output>;
  const ended = unsaved(panel, reply.ended as unknown as Record<string, Ended>);
  const last = Object.fromEntries(Object.entries(ended).map(([id, { output }]) => [id, output]));
  for (const cell of restore(panel, { ...last, ...running })) number(cell, ended[cell.id]?.count);
}

/** The kernel's reply, with the number of the execution, went to a page that is gone. */
function number(cell: CodeCellModel, count?: number | null): void {
  if (cell.executionCount === null && typeof count === 'number') cell.executionCount = count;
}

/** Cells without outputs, and none on their way. */
function cellsWithout(panel: NotebookPanel): CodeCell[] {
  return panel.content.widgets.filter((cell): cell is CodeCell => {
    if (!(cell instanceof CodeCell) || cell.model.outputs.length) return false;
    const future = cell.outputArea.future as { isDisposed: boolean } | undefined;
    return !future || future.isDisposed;
  });
}

/** Of turns that have ended, those that the file cannot know: it was saved before. */
function unsaved(panel: NotebookPanel, ended: Record<string, Ended> = {}): Record<string, Ended> {
  const saved = Date.parse(panel.context.contentsModel?.last_modified ?? '') / 1000;
  return Object.fromEntries(Object.entries(ended).filter(([, { at }]) => saved < at));
}

/** Show in cells that lost them the live views of turns that run, and what stays of ended ones; gives these cells. */
function restore(panel: NotebookPanel, lost: Record<string, Output>): CodeCellModel[] {
  if (panel.context.model.collaborative) return []; // there the outputs outlive the page
  const cells = cellsWithout(panel).filter(cell => lost[cell.model.id]);
  for (const cell of cells) {
    cell.model.trusted = true; // as Lab does with a cell that runs; it holds no output from elsewhere
    cell.model.outputs.add(lost[cell.model.id]);
  }
  return cells.map(cell => cell.model as CodeCellModel);
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
  const found = new WeakSet<NotebookPanel>();
  const watch = (panel: NotebookPanel): void => {
    panel.sessionContext.statusChanged.connect((_, status) => {
      if (ENDED.has(status) && !panel.isDisposed) leave(panel);
    });
  };
  const run = (panel: NotebookPanel, link: KernelLink, opened: boolean, only?: string): void =>
    void settle(panel, link, opened, only).catch(error => console.warn('kit:', error));
  links.message.connect((_, { panel, link, message }) => {
    if (message.kind === 'settled') run(panel, link, false, message.view);
  });
  const look = (): void => {
    for (const [panel, link] of links.all) {
      if (!ready.has(link)) watch(panel);
      const kernel = link.state === 'ready' ? link.kernel?.id ?? '' : '';
      if (kernel && ready.get(link) !== kernel) {
        run(panel, link, !found.has(panel));
        found.add(panel);
      }
      ready.set(link, kernel);
    }
  };
  links.changed.connect(look);
  look();
}
