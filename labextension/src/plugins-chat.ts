// Plugins: the links to the kernels, and the chat at the side with the commands of turns.
import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, InputDialog, Notification } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { NoKit } from './comm';
import { CATEGORY, ID, addCommands } from './commands';
import { kitIcon } from './icons';
import { ILinks, Links } from './links';
import { ChatPanel } from './panel';
import { page } from './view';

export const linksPlugin: JupyterFrontEndPlugin<ILinks> = {
  id: 'kit-jupyter:links',
  description: 'Finds kit in the kernels of the open notebooks.',
  autoStart: true,
  requires: [INotebookTracker],
  provides: ILinks,
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker): ILinks => new Links(tracker)
};

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kit-jupyter:panel',
  description: 'The chat at the side, and the commands of turns.',
  autoStart: true,
  requires: [ILinks, INotebookTracker],
  optional: [ICommandPalette, ILayoutRestorer, ILauncher, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    links: ILinks,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null,
    settings: ISettingRegistry | null
  ): void => {
    const load = async (notebook: NotebookPanel): Promise<void> => {
      const kernel = notebook.sessionContext.session?.kernel;
      if (!kernel) return;
      const future = kernel.requestExecute({ code: '%load_ext kit_jupyter', store_history: false, silent: false });
      let trouble = '';
      future.onIOPub = message => {
        if (message.header.msg_type === 'error') trouble = String((message.content as { evalue?: string }).evalue ?? '');
        // An unknown extension is only printed by IPython.
        if (message.header.msg_type === 'stream') trouble ||= String((message.content as { text?: string }).text ?? '').trim();
      };
      await future.done;
      const found = await links.linkOf(notebook)?.sayHello();
      if (!found)
        Notification.error(
          `kit could not be loaded in this kernel: ${trouble || 'it does not answer'}. Is kit-jupyter installed in its environment (pip install kit-jupyter)?`,
          { autoClose: 10000 }
        );
    };
    const panel = new ChatPanel(links, load);
    app.shell.add(panel, 'right', { rank: 600 });
    restorer?.add(panel, panel.id);
    void app.restored.then(() => {
      if (!panel.isAttached) app.shell.add(panel, 'right', { rank: 600 });
    });

    // Code in an answer can become a cell below the active one.
    (page().host ??= {}).insertCell = code => {
      const notebook = tracker.currentWidget?.content;
      if (!notebook) return;
      NotebookActions.insertBelow(notebook);
      notebook.activeCell?.model.sharedModel.setSource(code);
    };

    const isOpen = (): boolean => panel.isVisible;
    const show = (): void => {
      app.shell.activateById(panel.id);
    };
    const hide = (): void => {
      const lab = app.shell as { collapseRight?: () => void };
      lab.collapseRight?.();
    };
    const ask = async (what: string, fields: Record<string, string | boolean> = {}): Promise<void> => {
      const link = links.linkOf(links.current);
      try {
        if (!link) throw new NoKit('no notebook is open');
        const reply = await link.request(what === 'stop' ? 'stop' : 'steer', fields);
        if (reply.status !== 'ok') Notification.warning(`kit: ${String(reply.message ?? 'the kernel refused')}`, { autoClose: 4000 });
      } catch (error) {
        if (!(error instanceof NoKit)) throw error;
        Notification.warning(`kit: ${error.message}`, { autoClose: 4000 });
      }
    };
    const insertCell = (source: string): void => {
      const notebook = tracker.currentWidget?.content;
      if (!notebook) return;
      NotebookActions.insertBelow(notebook);
      notebook.activeCell?.model.sharedModel.setSource(source);
      notebook.mode = 'edit';
      const editor = notebook.activeCell?.editor;
      editor?.setCursorPosition({ line: editor.lineCount - 1, column: 0 });
    };
    const cellOf = (args: { cell?: unknown }): string | null =>
      typeof args.cell === 'string' ? args.cell : tracker.activeCell?.model.id ?? null;
    const hasNotebook = (): boolean => tracker.currentWidget !== null;

    addCommands(app.commands, {
      [ID.focusPanel]: {
        label: 'kit: Go to the Chat',
        icon: kitIcon,
        execute: args => {
          if (!isOpen()) show();
          return args.cursor === false ? undefined : panel.focusComposer();
        }
      },
      [ID.togglePanel]: { label: 'kit: Show or Hide the Chat', execute: () => (isOpen() ? hide() : show()) },
      [ID.insertPromptCell]: { label: 'kit: Insert a Prompt Cell Below', isEnabled: hasNotebook, execute: () => insertCell('%%kit\n') },
      [ID.newConversation]: {
        label: 'kit: New Conversation',
        isEnabled: hasNotebook,
        execute: async () => {
          const link = links.linkOf(links.current);
          const reply = await link?.request('panel', { do: 'new' }).catch(() => null);
          if (!reply || reply.status !== 'ok') Notification.warning(`kit: ${String(reply?.message ?? 'no kernel with kit')}`, { autoClose: 4000 });
        }
      },
      [ID.stopTurn]: { label: 'kit: Stop the Turn', isEnabled: hasNotebook, execute: () => ask('stop') },
      [ID.steerTurn]: {
        label: 'kit: Steer the Turn',
        isEnabled: hasNotebook,
        execute: async args => {
          const given = typeof args.text === 'string' ? args.text : null;
          const asked = given ?? (await InputDialog.getText({ title: 'Steer the turn', label: 'What should change', okLabel: 'Steer' })).value;
          if (asked?.trim()) await ask('steer', { text: asked });
        }
      },
      [ID.loadKit]: {
        label: 'kit: Load in This Kernel',
        isEnabled: hasNotebook,
        execute: () => (tracker.currentWidget ? load(tracker.currentWidget) : undefined)
      },
      [ID.explainCell]: {
        label: 'kit: Explain This Output',
        isEnabled: hasNotebook,
        execute: async args => {
          const cell = cellOf(args);
          show();
          if (cell) await panel.submit(`Explain what @cell:${cell} does and what its output shows.`);
        }
      },
      [ID.askCell]: {
        label: 'kit: Ask About This Output',
        isEnabled: hasNotebook,
        execute: async args => {
          const cell = cellOf(args);
          show();
          await panel.focusComposer(cell ? `About @cell:${cell}: ` : '');
        }
      },
      [ID.fixCell]: {
        label: 'kit: Fix This Error',
        isEnabled: hasNotebook,
        execute: async args => {
          const cell = cellOf(args);
          const notebook = tracker.currentWidget;
          if (!cell || !notebook) return;
          const index = notebook.content.widgets.findIndex(one => one.model.id === cell);
          if (index >= 0) notebook.content.activeCellIndex = index;
          NotebookActions.insertBelow(notebook.content);
          notebook.content.activeCell?.model.sharedModel.setSource(`%kit_fix --cell ${cell}`);
          await NotebookActions.run(notebook.content, notebook.sessionContext);
        }
      }
    });

    for (const command of [ID.focusPanel, ID.togglePanel, ID.insertPromptCell, ID.newConversation, ID.stopTurn, ID.steerTurn, ID.loadKit, ID.explainCell, ID.fixCell, ID.askCell])
      palette?.addItem({ command, category: CATEGORY });
    launcher?.add({ command: ID.focusPanel, category: 'Other', rank: 20 });
    settings?.load(panelPlugin.id).catch(error => console.warn('kit:', error));
  }
};
