// What this page and a kernel say to each other; jupyter/lab.py is the other side, and a test holds both to one list.
//
// Up (page to kernel) everything goes as a `kit_request` on the control channel: it is answered while user code holds
// the kernel's main thread, and by ipykernel 6 too. Down (kernel to page) it goes over a comm that the kernel opens for
// this page when it says hello: comm messages may be sent from any thread.
import { JSONObject } from '@lumino/coreutils';

/** Comm targets that the kernel opens. */
export const LAB_TARGET = 'kit.lab';
export const PANEL_TARGET = 'kit.panel';

/** Operations of a control request. */
export const OPS = [
  'hello', 'bye', 'stop', 'steer', 'approve',
  'panel', 'panel-message', 'panel-close',
  'focus', 'claim', 'done', 'key', 'complete', 'review', 'settled'
] as const;
export type Op = (typeof OPS)[number];

/** Kinds of messages on the lab comm. */
export const KINDS = ['call', 'keymap', 'completion', 'command', 'settled'] as const;

export interface Reply extends JSONObject {
  status: string;
}

/** A cell tool's call: the first page that claims it does it. */
export interface Call {
  kind: 'call';
  id: string;
  tool: string;
  arguments: Record<string, any>;
  /** The page that should try first; the others wait a moment. */
  first: string;
}

/** Mappings made in Python. */
export interface KeymapMessage {
  kind: 'keymap';
  /** The kernel's configuration: command id to keys, null to remove. */
  overrides: Record<string, string | string[] | null>;
  bindings: {
    id: string;
    keys: string[];
    command: string | null;
    /** A function of the kernel. */
    python: boolean;
    description: string;
    category: string;
    when: string;
    priority: number;
  }[];
}

export interface CompletionMessage {
  kind: 'completion';
  id: string;
  text: string;
  error?: string;
}

/** The kernel asks for a command of the page, by id. */
export interface CommandMessage {
  kind: 'command';
  command: string;
  args: JSONObject;
}

/** A live view, by its model id, has given place to what stays of its turn. */
export interface SettledMessage {
  kind: 'settled';
  view: string;
}

export type LabMessage = Call | KeymapMessage | CompletionMessage | CommandMessage | SettledMessage;
