// Inline completion by the kernel's session, with its model. Off until it is switched on in the settings.
import {
  CompletionHandler,
  IInlineCompletionContext,
  IInlineCompletionItem,
  IInlineCompletionList,
  IInlineCompletionProvider
} from '@jupyterlab/completer';
import { NotebookPanel } from '@jupyterlab/notebook';
import { UUID } from '@lumino/coreutils';

import { KernelLink } from './comm';
import { ILinks } from './links';
import { CompletionMessage } from './protocol';

const MAX_CONTEXT = 8000;

export class KitInlineProvider implements IInlineCompletionProvider<IInlineCompletionItem> {
  constructor(private readonly links: ILinks) {
    links.message.connect((_, { message }) => {
      if (message.kind === 'completion') this.waiting.get(message.id)?.(message);
    });
  }

  readonly identifier = 'kit-jupyter';
  readonly name = 'kit';
  readonly schema = {
    default: { enabled: false, debouncerDelay: 350, timeout: 20000 }
  } as unknown as IInlineCompletionProvider['schema'];

  async fetch(
    request: CompletionHandler.IRequest,
    context: IInlineCompletionContext
  ): Promise<IInlineCompletionList<IInlineCompletionItem>> {
    const nothing = { items: [] };
    const panel = context.widget instanceof NotebookPanel ? context.widget : null;
    const link = this.links.linkOf(panel);
    if (!panel || link?.state !== 'ready') return nothing;
    const before = request.text.slice(0, request.offset);
    if (!before.trim() || /^\s*%%kit/.test(before)) return nothing;
    const fields = {
      prefix: (earlierCells(panel) + before).slice(-MAX_CONTEXT),
      suffix: request.text.slice(request.offset).slice(0, MAX_CONTEXT)
    };
    const text = await this.ask(link, fields);
    return text ? { items: [{ insertText: text }] } : nothing;
  }

  /** One request at a time: a newer one cancels the older, here and in the kernel. */
  private async ask(link: KernelLink, fields: { prefix: string; suffix: string }): Promise<string> {
    this.cancel();
    const id = UUID.uuid4();
    const answer = new Promise<CompletionMessage | null>(resolve => {
      this.waiting.set(id, resolve);
      this.cancel = () => resolve(null);
      window.setTimeout(() => resolve(null), 30000);
    });
    try {
      const reply = await link.request('complete', { id, ...fields });
      if (reply.status !== 'ok') return '';
      return (await answer)?.text ?? '';
    } catch {
      return '';
    } finally {
      this.waiting.delete(id);
    }
  }

  private waiting = new Map<string, (message: CompletionMessage | null) => void>();
  private cancel: () => void = () => undefined;
}

/** Sources of the code cells above the active one, the nearest last. */
function earlierCells(panel: NotebookPanel): string {
  const { widgets, activeCellIndex } = panel.content;
  return widgets
    .slice(0, Math.max(0, activeCellIndex))
    .filter(cell => cell.model.type === 'code')
    .map(cell => `${cell.model.sharedModel.getSource()}\n\n`)
    .slice(-12)
    .join('');
}
