// What holds where a key is pressed: the names that a mapping's `when` may use.
import { Context } from './keymap';

/** Names of the context, for the documentation and the settings editor. */
export const CONTEXT_NAMES = {
  notebook: 'the focus is in a notebook',
  command: 'a notebook is in command mode',
  edit: 'a cell is being edited',
  panel: 'the focus is in the chat panel',
  composer: "the focus is in the panel's text box",
  textInput: 'the focus is where text is entered',
  review: 'an edit of the agent waits for a word'
} as const;

/** True where typing enters text. */
export function isTextInput(element: Element | null): boolean {
  if (!element) return false;
  if (element.closest('.cm-content, textarea, select')) return true;
  const input = element.closest('input');
  if (input) return !['button', 'checkbox', 'radio', 'submit', 'reset', 'range', 'color', 'file'].includes(input.type);
  return (element as HTMLElement).isContentEditable === true;
}

export function contextOf(target: Element | null): Context {
  const element = target ?? document.activeElement;
  const textInput = isTextInput(element);
  const notebook = element?.closest('.jp-Notebook') ?? null;
  const panel = !!element?.closest('.kit-side');
  return {
    textInput,
    panel,
    composer: panel && textInput,
    notebook: !!notebook,
    command: !!notebook && !textInput && notebook.classList.contains('jp-mod-commandMode'),
    edit: !!notebook && textInput,
    review: !!document.querySelector('.kit-review')
  };
}
