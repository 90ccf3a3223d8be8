// The kernel's view (chat.js) inside Lab: the renderer comes from here, and code can become a cell.
import { mount, mountSaved } from './chat';

export { mount, mountSaved };

export const TURN_MIME = 'application/vnd.kit.turn+json';

/** What chat.js looks for on the page before it asks a kernel. */
interface Page {
  render?: unknown;
  loadRender?: () => Promise<unknown>;
  host?: {
    insertCell?: (code: string, near: Element) => void;
    /** The way to run the cell again whose output this is in; null where there is none. */
    rerunOf?: (output: Element) => (() => void) | null;
  };
}

/** The one object that all views of a page share. */
export function page(): Page {
  const global = globalThis as { __kit__?: Page };
  return (global.__kit__ ??= {});
}

// Fetched with the first answer that is drawn, not when Lab starts.
page().loadRender ??= () => import('./renderer');
