// Commands: ids with titles, no keys. What a command needs of the page comes in as values, so each can be found here.
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { DisposableSet, IDisposable } from '@lumino/disposable';

import type { Commands } from './keymap';

export const CATEGORY = 'kit';

/** Ids are kept: documentation, key maps and macros of people name them. */
export const ID = {
  focusPanel: 'kit:focus-panel',
  togglePanel: 'kit:toggle-panel',
  insertPromptCell: 'kit:insert-prompt-cell',
  newConversation: 'kit:new-conversation',
  stopTurn: 'kit:stop-turn',
  steerTurn: 'kit:steer-turn',
  loadKit: 'kit:load-extension',
  explainCell: 'kit:explain-cell',
  fixCell: 'kit:fix-cell',
  askCell: 'kit:ask-cell',
  acceptEdit: 'kit:accept-edit',
  rejectEdit: 'kit:reject-edit',
  acceptAllEdits: 'kit:accept-all-edits',
  rejectAllEdits: 'kit:reject-all-edits',
  undoEdit: 'kit:undo-edit',
  showKeys: 'kit:show-keys'
} as const;

/** Old names, kept for one major version. */
export const ALIASES: Readonly<Record<string, string>> = {
  'kit:open-panel': ID.focusPanel,
  'kit:abort-turn': ID.stopTurn,
  'kit:show-keymap': ID.showKeys
};

export interface CommandSpec {
  label: string;
  caption?: string;
  icon?: CommandRegistry.ICommandOptions['icon'];
  isEnabled?: () => boolean;
  isVisible?: () => boolean;
  execute: (args: ReadonlyPartialJSONObject) => unknown;
}

/** Adds commands and their old names; dispose to take them away. */
export function addCommands(registry: CommandRegistry, specs: Readonly<Record<string, CommandSpec>>): IDisposable {
  const added = new DisposableSet();
  const add = (id: string, spec: CommandSpec) =>
    added.add(
      registry.addCommand(id, {
        label: spec.label,
        caption: spec.caption ?? spec.label,
        icon: spec.icon,
        isEnabled: spec.isEnabled,
        isVisible: spec.isVisible,
        execute: spec.execute as CommandRegistry.CommandFunc<unknown>,
        describedBy: { args: { type: 'object' } }
      })
    );
  for (const [id, spec] of Object.entries(specs)) {
    add(id, spec);
    for (const [old, current] of Object.entries(ALIASES)) if (current === id) add(old, { ...spec, isVisible: () => false });
  }
  return added;
}

/** Lab's registry as the keymap sees it. */
export function commandsOf(registry: CommandRegistry): Commands {
  return {
    resolve: id => (ALIASES[id] && registry.hasCommand(ALIASES[id]) ? ALIASES[id] : registry.hasCommand(id) ? id : null),
    ids: () => registry.listCommands().filter(id => !(id in ALIASES))
  };
}
