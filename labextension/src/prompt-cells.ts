// The editor of a %%kit cell takes its text as Markdown: a prompt coloured as Python reads badly, and its quotes look unclosed.
import { IEditorLanguageRegistry } from '@jupyterlab/codemirror';
import { NotebookPanel } from '@jupyterlab/notebook';

import { eachCodeCell } from './code-cells';

const PROMPT = /^\s*%%kit(?:\s|$)/;
const MARKDOWN = 'text/x-ipythongfm'; // as Markdown cells have

/** Keep the language of a notebook's code cells in step with what they begin with. */
export function showPrompts(panel: NotebookPanel, languages: IEditorLanguageRegistry): void {
  const notebook = panel.content;
  eachCodeCell(panel, cell => {
    const { model } = cell;
    const shared = model.sharedModel;
    const wanted = (): string => {
      if (PROMPT.test(shared.getSource())) return MARKDOWN;
      return model.mimeType === MARKDOWN ? notebook.codeMimetype : model.mimeType;
    };
    const update = async (): Promise<void> => {
      if (cell.isDisposed || model.mimeType === wanted()) return;
      // An editor shows the language whose code comes last, not the one that was set last: both are there first.
      const both = [MARKDOWN, notebook.codeMimetype].map(mime => languages.getLanguage(mime));
      await Promise.allSettled(both);
      await new Promise(resolve => setTimeout(resolve));
      if (!cell.isDisposed && model.mimeType !== wanted()) model.mimeType = wanted();
    };
    const look = (): void => void update();
    shared.changed.connect(look);
    model.mimeTypeChanged.connect(look); // the notebook sets it when the kernel tells its language
    cell.disposed.connect(() => {
      shared.changed.disconnect(look);
      model.mimeTypeChanged.disconnect(look);
    });
    look();
  });
}
