// The way to one notebook's kernel: says hello, notices restarts and other kernels, asks on the control channel.
import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject, UUID } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { LAB_TARGET, LabMessage, Op, PANEL_TARGET, Reply } from './protocol';

/** This page; a reload is another page. */
export const CLIENT = UUID.uuid4();

/** absent: a kernel without kit, or none; ready: it answered. */
export type LinkState = 'connecting' | 'absent' | 'ready';

/** The other side does not speak kit, or is gone. */
export class NoKit extends Error {}

const SEEN = 'kit-jupyter:kernels';
/** How often, and in what distance, a kernel is asked again in which kit is still loading. */
const LOADING = { times: 40, ms: 500 };

export class KernelLink implements IDisposable {
  constructor(readonly session: ISessionContext) {
    session.kernelChanged.connect(this.onKernel, this);
    session.statusChanged.connect(this.onStatus, this);
    session.connectionStatusChanged.connect(this.onConnection, this);
    this.onKernel();
  }

  get state(): LinkState {
    return this._state;
  }
  get kernel(): Kernel.IKernelConnection | null {
    return this.session.session?.kernel ?? null;
  }
  get isDisposed(): boolean {
    return this._disposed;
  }
  /** The kernel's answer to hello: version, whether a turn runs. */
  get hello(): Reply | null {
    return this._hello;
  }
  readonly stateChanged: ISignal<this, LinkState> = new Signal<this, LinkState>(this);
  readonly message: ISignal<this, LabMessage> = new Signal<this, LabMessage>(this);
  readonly panelOpened: ISignal<this, Kernel.IComm> = new Signal<this, Kernel.IComm>(this);

  /**
   * Ask the kernel; works while user code runs there.
   * @throws NoKit when no answer comes in time: a kernel without kit leaves such requests unanswered.
   */
  async request(op: Op, fields: JSONObject = {}, timeoutMs = 3000): Promise<Reply> {
    const kernel = this.kernel;
    if (!kernel) throw new NoKit('no kernel is running');
    const message = {
      header: {
        msg_id: UUID.uuid4(),
        msg_type: 'kit_request',
        session: kernel.clientId,
        username: kernel.username,
        version: '5.3',
        date: new Date().toISOString()
      },
      parent_header: {},
      metadata: {},
      content: { op, client: CLIENT, ...fields },
      channel: 'control',
      buffers: []
    };
    // The message type is ours: the typed signature knows the standard ones only.
    const future = kernel.sendControlMessage(message as unknown as KernelMessage.IControlMessage<'debug_request'>, true);
    let timer = 0;
    const late = new Promise<never>((_, reject) => {
      timer = window.setTimeout(() => reject(new NoKit('the kernel did not answer: is kit loaded there?')), timeoutMs);
    });
    try {
      const answer = await Promise.race([future.done, late]);
      return answer.content as unknown as Reply;
    } finally {
      window.clearTimeout(timer);
      future.dispose();
    }
  }

  /** Say hello now, whatever was known before: for what a person asked for. */
  async sayHello(timeoutMs = 3000): Promise<boolean> {
    const kernel = this.kernel;
    if (!kernel) return false;
    this.comm = null; // another comes with the answer, and the kernel closes this one
    try {
      const ask = () => this.request('hello', { path: this.session.path, visible: !document.hidden }, timeoutMs);
      let hello = await ask();
      for (let times = 0; hello.loading === true && times < LOADING.times && kernel === this.kernel; times++) {
        await new Promise(resolve => setTimeout(resolve, LOADING.ms));
        hello = await ask();
      }
      if (kernel !== this.kernel) return false;
      if (hello.status !== 'ok') {
        this.become('absent');
        return false;
      }
      this._hello = hello;
      remember(kernel.id);
      this.become('ready');
      return true;
    } catch {
      if (kernel === this.kernel) this.become('absent');
      return false;
    }
  }

  dispose(): void {
    if (this._disposed) return;
    this._disposed = true;
    if (this._state === 'ready') void this.request('bye').catch(() => undefined);
    this.forget();
    Signal.clearData(this);
  }

  private onKernel(): void {
    this.forget();
    const kernel = this.kernel;
    this._kernel = kernel;
    if (!kernel) return this.become('absent');
    kernel.registerCommTarget(LAB_TARGET, this.onLabComm);
    kernel.registerCommTarget(PANEL_TARGET, this.onPanelComm);
    this.become('connecting');
    void this.find(kernel);
  }

  /** Is kit there? Asked without a message that a plain kernel would complain about in its log. */
  private async find(kernel: Kernel.IKernelConnection): Promise<void> {
    // While a cell runs, Lab holds back what is sent to a kernel it has just connected to for three seconds; and what
    // comes next here waits until the cell has ended. So a page that is reloaded in mid-turn is patient.
    if (known().includes(kernel.id) && (await this.sayHello(15000))) return;
    try {
      const info = await kernel.requestCommInfo({ target_name: LAB_TARGET });
      if (kernel !== this.kernel || this._state === 'ready') return;
      if (info.content.status === 'ok' && Object.keys(info.content.comms).length) await this.sayHello();
      else this.become('absent');
    } catch {
      if (kernel === this.kernel && this._state !== 'ready') this.become('absent');
    }
  }

  private onStatus(_: ISessionContext, status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting' || status === 'dead' || status === 'terminating') {
      this.closeComm();
      this.become('absent');
    }
  }

  private onConnection(_: ISessionContext, status: Kernel.ConnectionStatus): void {
    const kernel = this.kernel;
    if (status === 'connected' && kernel && kernel === this._kernel && this._state === 'ready') void this.sayHello();
  }

  // The kernel announces itself when kit is loaded (client ""), and opens one for each page that says hello.
  private onLabComm = (comm: Kernel.IComm, open: KernelMessage.ICommOpenMsg): void => {
    const client = (open.content.data as JSONObject).client;
    if (client === '') void this.sayHello();
    if (client !== CLIENT) return;
    this.closeComm();
    this.comm = comm;
    comm.onMsg = message => this.emit(message.content.data as unknown as LabMessage);
    // The kernel forgot this page, or kit was unloaded there: the answer tells which.
    comm.onClose = () => {
      if (this.comm !== comm) return;
      this.comm = null;
      void this.sayHello();
    };
  };

  private onPanelComm = (comm: Kernel.IComm, open: KernelMessage.ICommOpenMsg): void => {
    if ((open.content.data as JSONObject).client === CLIENT) (this.panelOpened as Signal<this, Kernel.IComm>).emit(comm);
  };

  private emit(message: LabMessage): void {
    (this.message as Signal<this, LabMessage>).emit(message);
  }

  private become(state: LinkState): void {
    if (state === 'absent') this._hello = null;
    if (state === this._state) return;
    this._state = state;
    (this.stateChanged as Signal<this, LinkState>).emit(state);
  }

  private closeComm(): void {
    if (this.comm && !this.comm.isDisposed) this.comm.dispose();
    this.comm = null;
  }

  private forget(): void {
    this.closeComm();
    const kernel = this._kernel;
    this._kernel = null;
    if (!kernel || kernel.isDisposed) return;
    kernel.removeCommTarget(LAB_TARGET, this.onLabComm);
    kernel.removeCommTarget(PANEL_TARGET, this.onPanelComm);
  }

  private comm: Kernel.IComm | null = null;
  private _kernel: Kernel.IKernelConnection | null = null;
  private _hello: Reply | null = null;
  private _state: LinkState = 'connecting';
  private _disposed = false;
}

function known(): string[] {
  try {
    return JSON.parse(localStorage.getItem(SEEN) ?? '[]') as string[];
  } catch {
    return [];
  }
}

function remember(id: string): void {
  const ids = known().filter(other => other !== id);
  try {
    localStorage.setItem(SEEN, JSON.stringify([...ids, id].slice(-20)));
  } catch {
    // storage is full or forbidden: the slower way finds the kernel too
  }
}
