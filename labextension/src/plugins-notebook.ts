// Plugins: the agent's hands on cells, the buttons on outputs, inline completion.
import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IEditorLanguageRegistry } from '@jupyterlab/codemirror';
import { ICompletionProviderManager } from '@jupyterlab/completer';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { CellError } from './cell-edits';
import { CellHands } from './cells';
import { CATEGORY, ID, addCommands } from './commands';
import { tellFocus } from './focus';
import { KitInlineProvider } from './inline';
import { ILinks } from './links';
import { decorate } from './outputs';
import { showPrompts } from './prompt-cells';
import { rerunOf } from './retry';
import { settleViews } from './settle';
import { page } from './view';

export const cellsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kit-jupyter:cells',
  description: "The agent's hands on cells, under review; the session knows where the person is.",
  autoStart: true,
  requires: [ILinks, INotebookTracker],
  optional: [ICommandPalette, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    links: ILinks,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    settings: ISettingRegistry | null
  ): Promise<void> => {
    const hands = new CellHands(async () => {
      if (!app.commands.hasCommand(ID.focusPanel)) throw new CellError('the chat is switched off here');
      await app.commands.execute(ID.focusPanel, { cursor: false });
    });
    let isTelling = true;
    settleViews(links);
    links.message.connect((_, { panel, link, message }) => {
      if (message.kind === 'call') hands.answer(panel, link, message).catch(error => console.warn('kit:', error));
      else if (message.kind === 'command') void app.commands.execute(message.command, message.args);
    });
    const watch = (panel: NotebookPanel): void => {
      const link = links.linkOf(panel);
      if (!link) return;
      const end = tellFocus(panel, link, () => isTelling);
      panel.disposed.connect(end);
    };
    tracker.forEach(watch);
    tracker.widgetAdded.connect((_, panel) => void Promise.resolve().then(() => watch(panel)));

    const hasReview = (): boolean => hands.hasReview;
    const notebook = () => tracker.currentWidget?.content ?? null;
    addCommands(app.commands, {
      [ID.acceptEdit]: { label: 'kit: Accept This Change', isEnabled: hasReview, execute: () => hands.settleHere(notebook(), 'accepted') },
      [ID.rejectEdit]: { label: 'kit: Reject This Change', isEnabled: hasReview, execute: () => hands.settleHere(notebook(), 'rejected') },
      [ID.acceptAllEdits]: { label: 'kit: Accept All Changes', isEnabled: hasReview, execute: () => hands.settleAll('accepted') },
      [ID.rejectAllEdits]: { label: 'kit: Reject All Changes', isEnabled: hasReview, execute: () => hands.settleAll('rejected') },
      [ID.undoEdit]: { label: "kit: Take kit's Last Change Back", execute: () => hands.undoLast() }
    });
    for (const command of [ID.acceptEdit, ID.rejectEdit, ID.acceptAllEdits, ID.rejectAllEdits, ID.undoEdit])
      palette?.addItem({ command, category: CATEGORY });

    if (!settings) return;
    const mine = await settings.load(cellsPlugin.id);
    const read = (): void => {
      hands.review = mine.composite.review !== false;
      isTelling = mine.composite.tellFocus !== false;
    };
    mine.changed.connect(read);
    read();
  }
};

export const outputsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kit-jupyter:outputs',
  description: 'Buttons on outputs: Explain, Fix, Ask; Retry on a finished turn.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker): void => {
    (page().host ??= {}).rerunOf = output => rerunOf(app, tracker, output);
    const add = (panel: NotebookPanel): void => void panel.context.ready.then(() => !panel.isDisposed && decorate(panel, app.commands));
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
  }
};

export const promptsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kit-jupyter:prompt-cells',
  description: 'Cells that begin with %%kit are edited as Markdown.',
  autoStart: true,
  requires: [INotebookTracker, IEditorLanguageRegistry],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker, languages: IEditorLanguageRegistry): void => {
    const show = (panel: NotebookPanel): void =>
      void panel.context.ready.then(() => !panel.isDisposed && showPrompts(panel, languages));
    tracker.forEach(show);
    tracker.widgetAdded.connect((_, panel) => show(panel));
  }
};

export const inlinePlugin: JupyterFrontEndPlugin<void> = {
  id: 'kit-jupyter:inline-completion',
  description: 'Inline completion by the session of the kernel; off until switched on.',
  autoStart: true,
  requires: [ILinks, ICompletionProviderManager],
  activate: (_: JupyterFrontEnd, links: ILinks, manager: ICompletionProviderManager): void =>
    manager.registerInlineProvider(new KitInlineProvider(links))
};
