// The chat at the side: the kernel's own view (chat.js) over a comm, one per notebook, kept while its kernel lives.
import { NotebookPanel } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import type { ChatModel } from './chat';
import { KernelLink, NoKit } from './comm';
import { kitIcon } from './icons';
import { ILinks } from './links';
import { mount } from './view';

export class ChatPanel extends Widget {
  constructor(private readonly links: ILinks, private readonly load: (panel: NotebookPanel) => Promise<void>) {
    super();
    this.id = 'kit-panel';
    this.title.icon = kitIcon;
    this.title.caption = 'kit: chat about this notebook';
    this.addClass('kit-side');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'kit chat');
    this.head.className = 'kit-side-head';
    this.note.className = 'kit-side-note';
    this.body.className = 'kit-side-body';
    this.node.append(this.head, this.note, this.body);
    links.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Put the cursor into the composer, as soon as there is one. */
  async focusComposer(text?: string): Promise<void> {
    const chat = await this.whenReady();
    const box = chat?.node.querySelector('textarea') ?? null;
    if (!box) {
      this.note.querySelector('button')?.focus();
      return;
    }
    if (text !== undefined) {
      box.value = text;
      box.dispatchEvent(new Event('input', { bubbles: true }));
    }
    box.focus();
    box.selectionStart = box.selectionEnd = box.value.length;
  }

  /** Send a prompt to the notebook's session. */
  async submit(text: string): Promise<boolean> {
    const chat = await this.whenReady();
    chat?.model.send({ kind: 'submit', text, when_busy: 'steer' });
    return chat !== null;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.refresh();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    Signal.disconnectReceiver(this);
    this.chats.forEach(chat => chat.dispose());
    this.chats.clear();
    super.dispose();
  }

  private async whenReady(): Promise<Chat | null> {
    for (let waited = 0; waited < 60; waited++) {
      const panel = this.links.current;
      const chat = panel && this.chats.get(panel);
      if (chat?.isMounted && chat.node.querySelector('textarea')) return chat;
      if (this.links.linkOf(panel)?.state === 'absent') return null;
      await new Promise(resolve => setTimeout(resolve, 50));
    }
    return null;
  }

  private refresh(): void {
    if (this.isDisposed) return;
    for (const [panel, chat] of this.chats)
      if (panel.isDisposed || this.links.linkOf(panel)?.state !== 'ready') {
        chat.dispose();
        this.chats.delete(panel);
      }
    const panel = this.links.current;
    const link = this.links.linkOf(panel);
    // Nothing is asked of a kernel until somebody looks.
    if (this.isVisible && panel && link?.state === 'ready' && !this.chats.has(panel)) {
      const chat = new Chat(link);
      this.chats.set(panel, chat);
      this.body.append(chat.node);
    }
    for (const [of, chat] of this.chats) chat.node.hidden = of !== panel;
    this.head.textContent = panel ? panel.title.label : 'No notebook';
    this.say(panel, link);
  }

  private say(panel: NotebookPanel | null, link: KernelLink | null): void {
    const state = !panel || !link ? 'none' : link.kernel ? link.state : 'no kernel';
    if (state === this.said) return;
    this.said = state;
    this.note.replaceChildren();
    this.note.hidden = state === 'ready';
    if (state === 'none') this.note.append('Open a notebook to chat about it.');
    else if (state === 'no kernel') this.note.append('This notebook has no kernel running.');
    else if (state === 'connecting') this.note.append('Asking the kernel…');
    else if (state === 'absent') {
      const button = document.createElement('button');
      button.className = 'jp-mod-styled jp-mod-accept';
      button.textContent = 'Load kit';
      button.addEventListener('click', () => void (panel && this.load(panel)), { signal: this.gone.signal });
      this.note.append('Kit is not loaded in this kernel.', button, 'Or run %load_ext kit_jupyter in a cell.');
    }
  }

  protected override onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    if (this.isDisposed) this.gone.abort();
  }

  private head = document.createElement('div');
  private note = document.createElement('div');
  private body = document.createElement('div');
  private chats = new Map<NotebookPanel, Chat>();
  private said = '';
  private gone = new AbortController();
}

/** One notebook's chat. */
class Chat {
  constructor(private readonly link: KernelLink) {
    this.node.className = 'kit-side-chat';
    this.model = new CommModel(link);
    link.panelOpened.connect(this.opened, this);
    void this.open();
  }

  readonly node = document.createElement('div');
  readonly model: CommModel;

  get isMounted(): boolean {
    return this.unmount !== null;
  }

  dispose(): void {
    this.disposed = true;
    this.link.panelOpened.disconnect(this.opened, this);
    this.unmount?.();
    this.unmount = null;
    this.model.close();
    this.node.remove();
  }

  private async open(): Promise<void> {
    try {
      const reply = await this.link.request('panel');
      if (reply.status !== 'ok') this.fail(String(reply.message ?? 'the kernel has no panel'));
    } catch (error) {
      if (!this.disposed) this.fail(error instanceof NoKit ? error.message : String(error));
    }
  }

  private opened(_: KernelLink, comm: Kernel.IComm): void {
    this.unmount?.();
    this.node.replaceChildren();
    this.model.use(comm);
    this.unmount = mount({ model: this.model, el: this.node });
  }

  private fail(message: string): void {
    this.node.textContent = message;
  }

  private unmount: (() => void) | null = null;
  private disposed = false;
}

/** What chat.js wants of a kernel, over our comm down and the control channel up. */
class CommModel implements ChatModel {
  constructor(private readonly link: KernelLink) {}

  use(comm: Kernel.IComm): void {
    this.close();
    this.comm = comm;
    comm.onMsg = message => {
      const data = message.content.data as JSONObject;
      if (data.method === 'custom') this.listeners.forEach(listener => listener(data.content));
    };
  }
  get(_name: 'view'): unknown {
    // Nothing is known yet: a number that no frame bears makes the view ask for the whole.
    return { panel: true, n: -1 };
  }
  on(_event: 'msg:custom', listener: (content: unknown) => void): void {
    this.listeners.add(listener);
  }
  off(_event: 'msg:custom', listener: (content: unknown) => void): void {
    this.listeners.delete(listener);
  }
  send(content: unknown): void {
    if (!this.comm) return;
    const fields = { comm: this.comm.commId, content: content as JSONObject };
    this.link.request('panel-message', fields).catch(error => console.warn('kit:', error));
  }
  close(): void {
    const comm = this.comm;
    this.comm = null;
    if (!comm || comm.isDisposed) return;
    if (this.link.state === 'ready') void this.link.request('panel-close', { comm: comm.commId }).catch(() => undefined);
    comm.dispose();
  }

  private comm: Kernel.IComm | null = null;
  private listeners = new Set<(content: unknown) => void>();
}
