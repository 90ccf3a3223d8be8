// Mounts the kernel's view (chat.js) where no kernel is needed: over a saved turn.
import { ChatModel, mount } from './chat';

export const TURN_MIME = 'application/vnd.kit.turn+json';

/** Mount a view of `bundle` in `el`; returns who takes it down. */
export function mountTurn(el: HTMLElement, bundle: unknown): () => void {
  el.replaceChildren();
  return mount({ model: savedTurn(bundle), el });
}

function savedTurn(bundle: unknown): ChatModel {
  return {
    get: name => (name === 'bundle' ? bundle : undefined),
    set: () => undefined,
    save_changes: () => undefined,
    send: () => undefined,
    on: () => undefined,
    off: () => undefined
  };
}
