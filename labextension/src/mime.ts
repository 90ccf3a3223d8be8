// Draws a saved turn. A plugin of its own: when it is disabled, Lab falls back to the Markdown beside it.
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import type { SavedView } from './chat';
import { TURN_MIME, mountSaved, page } from './view';

class TurnView extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly mimeType: string) {
    super();
    this.addClass('kit-turn');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.shown?.close();
    this.node.replaceChildren();
    this.shown = mountSaved({ bundle: model.data[this.mimeType], el: this.node });
    this.offerRetry();
  }

  override dispose(): void {
    this.shown?.close();
    this.shown = null;
    super.dispose();
  }

  /** Only now is it known in which cell this is, and if it is in one. */
  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.offerRetry();
  }

  private offerRetry(): void {
    this.shown?.offer((this.isAttached && page().host?.rerunOf?.(this.node)) || null);
  }

  private shown: SavedView | null = null;
}

const extension: IRenderMime.IExtension = {
  id: 'kit-jupyter:mime',
  description: 'Draws saved turns of kit-jupyter.',
  rendererFactory: {
    safe: true,
    mimeTypes: [TURN_MIME],
    createRenderer: options => new TurnView(options.mimeType)
  },
  rank: 0,
  dataType: 'json'
};

export default extension;
