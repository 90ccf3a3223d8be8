// The view that the kernel serves (kit_jupyter/jupyter/static/chat.js), copied beside the compiled sources.

/** What a view needs of its kernel: an anywidget model, or anything with these. */
export interface ChatModel {
  get(name: 'view'): unknown;
  on(event: 'msg:custom', callback: (content: any) => void): void;
  off(event: 'msg:custom', callback: (content: any) => void): void;
  send(content: unknown): void;
}
export function mount(options: { model: ChatModel; el: HTMLElement }): () => void;
/** A saved turn on the page. */
export interface SavedView {
  close(): void;
  /** What its Retry does; null takes the button away. */
  offer(rerun: (() => void) | null): void;
}
export function mountSaved(options: { bundle: unknown; el: HTMLElement }): SavedView;
