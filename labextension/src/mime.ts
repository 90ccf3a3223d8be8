// Draws a saved turn. A plugin of its own: when it is disabled, Lab falls back to the Markdown beside it.
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { TURN_MIME, mountSaved } from './view';

class TurnView extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly mimeType: string) {
    super();
    this.addClass('kit-turn');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.unmount();
    this.node.replaceChildren();
    this.unmount = mountSaved({ bundle: model.data[this.mimeType], el: this.node });
  }

  override dispose(): void {
    this.unmount();
    super.dispose();
  }

  private unmount: () => void = () => undefined;
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
