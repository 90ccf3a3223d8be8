// Plugin: key sequences. Mappings are data in the schema; what is mapped in Python comes as a layer of its own.
import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Token } from '@lumino/coreutils';

import { KernelLink } from './comm';
import { CATEGORY, ID, addCommands, commandsOf } from './commands';
import { contextOf } from './context';
import { Binding, Disposer, Keymap, Mapping, Overrides } from './keymap';
import { keysBody } from './keys-dialog';
import { ILinks } from './links';
import { KeyListener } from './listener';
import { KeymapMessage } from './protocol';
import { WhichKey } from './whichkey';

/** The keymap, for other extensions: add layers, ask what is active. */
export const IKeymap = new Token<Keymap>('kit-jupyter:IKeymap', 'Layers of key sequences, and what is active of them.');

export const keymapPlugin: JupyterFrontEndPlugin<Keymap> = {
  id: 'kit-jupyter:keymap',
  description: 'Key sequences behind a leader, with an overlay that shows what may come next.',
  autoStart: true,
  requires: [ISettingRegistry],
  optional: [ILinks, ICommandPalette],
  provides: IKeymap,
  activate: (app: JupyterFrontEnd, settings: ISettingRegistry, links: ILinks | null, palette: ICommandPalette | null): Keymap => {
    const keymap = new Keymap(commandsOf(app.commands));
    let options: Record<string, unknown> = {};
    const whichKey = new WhichKey({
      keymap,
      context: () => contextOf(document.activeElement),
      isOn: () => options.whichKey !== false,
      delayMs: () => Number(options.whichKeyDelay ?? 300)
    });
    const listen = (): KeyListener =>
      new KeyListener({
        keymap,
        contextOf,
        timeoutMs: () => Number(options.timeout ?? 2000),
        isShown: () => whichKey.isShown,
        run: (mapping, context, count) => {
          if (mapping.run) return void mapping.run(context, count);
          const args = { ...mapping.args, ...(count === undefined ? {} : { count }) };
          if (!mapping.command || !app.commands.hasCommand(mapping.command))
            return void Notification.warning(`${mapping.text}: there is no command ${mapping.command}`, { autoClose: 4000 });
          if (app.commands.isEnabled(mapping.command, args)) void app.commands.execute(mapping.command, args);
        }
      });
    let listener: KeyListener | null = listen();

    addCommands(app.commands, {
      [ID.showKeys]: {
        label: 'kit: Show the Keys',
        execute: () =>
          showDialog({
            title: 'Keys',
            body: keysBody(keymap, contextOf(document.activeElement), titleOf),
            buttons: [Dialog.okButton({ label: 'Close' })]
          })
      }
    });
    const titleOf = (mapping: Mapping): string => mapping.command ?? 'nothing';
    palette?.addItem({ command: ID.showKeys, category: CATEGORY });

    let shipped: Disposer | null = null;
    let mine: Overrides = {};
    let kernels: Overrides = {};
    // What a person set in Lab goes before what a kernel's configuration says.
    const override = (): void => void keymap.setOverrides({ ...kernels, ...mine });
    const said = new Set<string>();
    const apply = (composite: Record<string, unknown>): void => {
      options = composite;
      const leader = String(composite.leader ?? 'ctrl+;');
      attempt(() => (keymap.leader = leader), said);
      shipped?.dispose();
      attempt(() => (shipped = keymap.addLayer({ name: 'kit', bindings: composite.mappings as Binding[] })), said);
      mine = (composite.overrides ?? {}) as Overrides;
      override();
      if (composite.enabled === false) {
        listener?.dispose();
        listener = null;
      } else listener ??= listen();
    };
    void settings.load(keymapPlugin.id).then(
      loaded => {
        const read = (): void => apply(loaded.composite as Record<string, unknown>);
        loaded.changed.connect(read);
        read();
        // Other extensions add their commands until then.
        const warn = (): void => keymap.warnings().forEach(text => tell(text, said));
        void app.restored.then(() => {
          warn();
          loaded.changed.connect(warn);
        });
      },
      error => console.error('kit: the settings of the keys', error)
    );

    if (links)
      followPython(links, keymap, said, overrides => {
        kernels = overrides;
        override();
      });
    return keymap;
  }
};

/** The focused notebook's kernel may map keys: one layer, there as long as it is the current one. */
function followPython(links: ILinks, keymap: Keymap, said: Set<string>, override: (map: Overrides) => void): void {
  const maps = new Map<KernelLink, KeymapMessage>();
  let layers: Disposer[] = [];
  let shown: KeymapMessage | undefined;
  const show = (): void => {
    const link = links.linkOf(links.current);
    const map = link?.state === 'ready' ? maps.get(link) : undefined;
    if (map === shown) return;
    shown = map;
    layers.forEach(layer => layer.dispose());
    layers = [];
    override(map?.overrides ?? {});
    if (!map || !link) return;
    for (const binding of map.bindings)
      attempt(
        () =>
          layers.push(
            keymap.addLayer({
              name: 'python',
              priority: binding.priority,
              bindings: [
                {
                  keys: binding.keys,
                  description: binding.description,
                  category: binding.category || 'Python',
                  when: binding.when || undefined,
                  command: binding.python ? pythonCall(link, binding.id, binding.description) : binding.command
                }
              ]
            })
          ),
        said
      );
  };
  links.message.connect((_, { link, message }) => {
    if (message.kind !== 'keymap') return;
    maps.set(link, message);
    show();
  });
  links.changed.connect(() => {
    for (const [link] of maps) if (link.isDisposed || link.state !== 'ready') maps.delete(link);
    show();
  });
}

function pythonCall(link: KernelLink, id: string, description: string) {
  const call = (context: Readonly<Record<string, boolean>>, count?: number): void => {
    const held = Object.keys(context).filter(name => context[name]);
    link
      .request('key', { id, context: held, count: count ?? null })
      .then(reply => {
        if (reply.status !== 'ok') Notification.warning(`${description}: ${String(reply.message)}`, { autoClose: 5000 });
      })
      .catch(error => Notification.warning(`${description}: ${error instanceof Error ? error.message : error}`, { autoClose: 5000 }));
  };
  Object.defineProperty(call, 'name', { value: `python ${id}` });
  return call;
}

function attempt(act: () => unknown, said: Set<string>): void {
  try {
    act();
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error), said);
  }
}

function tell(text: string, said: Set<string>): void {
  if (said.has(text)) return;
  said.add(text);
  console.warn('kit keys:', text);
  Notification.warning(`Keys: ${text}`, { autoClose: 8000 });
}
