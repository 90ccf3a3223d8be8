// Retry on a finished turn: the cell that made an output runs again, as the notebook itself runs it.
import { JupyterFrontEnd } from '@jupyterlab/application';
import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker } from '@jupyterlab/notebook';

const RUN = 'notebook:run-cell';

/**
 * The way to run the cell again whose output holds `element`.
 *
 * Null where there is none: in a console, in a view of the output beside the notebook, in a cell that holds nothing or
 * is not trusted (an answer that came from elsewhere must not lead by one click to running what stands above it).
 */
export function rerunOf(app: JupyterFrontEnd, tracker: INotebookTracker, element: Element): (() => void) | null {
  const panel = tracker.find(one => one.content.node.contains(element));
  const node = element.closest('.jp-Cell');
  const cell = panel?.content.widgets.find(one => one.node === node);
  if (!panel || !(cell instanceof CodeCell) || !cell.outputArea.node.contains(element)) return null;
  if (!cell.model.trusted || !cell.model.sharedModel.getSource().trim() || !app.commands.hasCommand(RUN)) return null;
  return () => {
    const notebook = panel.content;
    const index = notebook.widgets.indexOf(cell);
    if (index < 0) return;
    app.shell.activateById(panel.id); // the command is about the notebook that is current, and the cells selected there
    notebook.deselectAll();
    notebook.activeCellIndex = index;
    notebook.mode = 'command';
    notebook.activate(); // the button that had the focus goes with the old output
    void app.commands.execute(RUN);
  };
}
