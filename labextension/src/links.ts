// One link per open notebook, and which of them is meant now.
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Token } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { KernelLink } from './comm';
import { LabMessage } from './protocol';

/** The kernels of the open notebooks. */
export interface ILinks {
  /** The notebook that had the focus last, and its link. */
  readonly current: NotebookPanel | null;
  linkOf(panel: NotebookPanel | null): KernelLink | null;
  readonly all: ReadonlyMap<NotebookPanel, KernelLink>;
  /** Another notebook, or the state of the current one's link changed. */
  readonly changed: ISignal<ILinks, void>;
  readonly message: ISignal<ILinks, { panel: NotebookPanel; link: KernelLink; message: LabMessage }>;
}

export const ILinks = new Token<ILinks>('kit-jupyter:ILinks', 'The kernels of the open notebooks, as kit sees them.');

export class Links implements ILinks {
  constructor(private readonly tracker: INotebookTracker) {
    tracker.forEach(panel => this.add(panel));
    tracker.widgetAdded.connect((_, panel) => this.add(panel));
    tracker.currentChanged.connect(() => this.changed.emit());
  }

  readonly changed: Signal<ILinks, void> = new Signal<ILinks, void>(this);
  readonly message: Signal<ILinks, { panel: NotebookPanel; link: KernelLink; message: LabMessage }> = new Signal<ILinks, { panel: NotebookPanel; link: KernelLink; message: LabMessage }>(this);

  get current(): NotebookPanel | null {
    return this.tracker.currentWidget;
  }
  get all(): ReadonlyMap<NotebookPanel, KernelLink> {
    return this.links;
  }
  linkOf(panel: NotebookPanel | null): KernelLink | null {
    return (panel && this.links.get(panel)) ?? null;
  }

  private add(panel: NotebookPanel): void {
    if (this.links.has(panel)) return;
    const link = new KernelLink(panel.sessionContext);
    this.links.set(panel, link);
    link.message.connect((_, message) => this.message.emit({ panel, link, message }));
    link.stateChanged.connect(() => this.changed.emit());
    panel.disposed.connect(() => {
      this.links.delete(panel);
      link.dispose();
      this.changed.emit();
    });
    this.changed.emit();
  }

  private links = new Map<NotebookPanel, KernelLink>();
}
