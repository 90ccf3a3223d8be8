// Hands key presses to the keymap before anything else sees them, and runs what they are mapped to.
//
// A capturing listener on the window comes before Lab's own, which listens in the bubbling phase. What the keymap does
// not want goes on untouched.
import { IDisposable } from '@lumino/disposable';

import { Context, Keymap, Mapping, Step } from './keymap';
import { keyOf } from './keys';

export interface ListenerOptions {
  keymap: Keymap;
  /** What holds where the key was pressed. */
  contextOf(target: Element | null): Context;
  run(mapping: Mapping, context: Context, count: number | undefined): void;
  /** Milliseconds until a pending sequence is dropped, or what it completes is run; 0 for never. */
  timeoutMs(): number;
  /** Whether a pending sequence is shown, and so need not be dropped by the clock. */
  isShown(): boolean;
}

export class KeyListener implements IDisposable {
  constructor(private readonly options: ListenerOptions) {
    const signal = this.gone.signal;
    window.addEventListener('keydown', event => this.onKeydown(event), { capture: true, signal });
    // Whoever looks elsewhere has given the sequence up.
    window.addEventListener('blur', () => this.drop(), { signal });
    window.addEventListener('pointerdown', event => this.onPointer(event), { capture: true, signal });
  }

  get isDisposed(): boolean {
    return this.gone.signal.aborted;
  }
  dispose(): void {
    this.gone.abort();
    this.drop();
  }

  private onKeydown(event: KeyboardEvent): void {
    if (event.isComposing || event.defaultPrevented) return;
    const key = keyOf({
      key: event.key,
      ctrlKey: event.ctrlKey,
      altKey: event.altKey,
      shiftKey: event.shiftKey,
      metaKey: event.metaKey,
      altGraph: event.getModifierState('AltGraph')
    });
    if (key === null) return;
    const { keymap } = this.options;
    if (!keymap.pending().length) this.context = this.options.contextOf(event.target as Element | null);
    const step = keymap.feed(key, this.context);
    if (step.kind === 'pass') return;
    event.preventDefault();
    event.stopImmediatePropagation();
    this.take(step);
  }

  private onPointer(event: PointerEvent): void {
    if (!(event.target as Element | null)?.closest('.kit-whichkey')) this.drop();
  }

  private take(step: Step): void {
    window.clearTimeout(this.timer);
    if (step.kind === 'run') this.options.run(step.mapping, this.context, step.count);
    else if (step.kind === 'pending') this.wait(!!step.complete);
  }

  private wait(isComplete: boolean): void {
    const ms = this.options.timeoutMs();
    if (!ms) return;
    this.timer = window.setTimeout(() => {
      if (!isComplete && this.options.isShown()) return;
      this.take(this.options.keymap.expire(this.context));
    }, ms);
  }

  private drop(): void {
    window.clearTimeout(this.timer);
    this.options.keymap.reset();
  }

  private gone = new AbortController();
  private context: Context = {};
  private timer = 0;
}
