// The view that the kernel serves (kit_jupyter/jupyter/static/chat.js), copied beside the compiled sources.
export interface ChatModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, callback: (...args: any[]) => void): void;
  off(event: string, callback: (...args: any[]) => void): void;
}
export function mount(options: { model: ChatModel; el: HTMLElement }): () => void;
