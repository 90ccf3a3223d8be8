// Markdown from a model to safe DOM. Bundled to kit_jupyter/jupyter/static/render.js; loaded once per page, by
// Lab's extension or by asking the kernel. Everything here treats its input as hostile:
// raw HTML becomes text (but for a few tags without attributes), remote pictures wait for a click, links open
// elsewhere and carry no referrer, and DOMPurify has the last word on what comes out.
import DOMPurify from 'dompurify';
import katex from 'katex';
import { Marked, type Tokens } from 'marked';

import { highlight } from './highlight';
import { style } from './style';

/** A block that nests or marks up more than this is shown as plain text: no parser should meet it. */
const NOISE = 4000;
const PLAIN_TAGS = 'br|sub|sup|kbd|b|i|em|strong|u|s|mark|small|details|summary|p|hr';
const PLAIN_TAG = new RegExp(`^</?(?:${PLAIN_TAGS})\\s*/?>$`, 'i');
const DATA_IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,[a-z0-9+/=\s]*$/i;

const escape = (text: string) =>
  text.replace(/[&<>"']/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[c]!);

const math = (source: string, displayMode: boolean) =>
  katex.renderToString(source, {
    displayMode,
    output: 'mathml',
    throwOnError: false,
    trust: false,
    strict: 'ignore',
    maxExpand: 200,
    maxSize: 20
  });

interface MathToken extends Tokens.Generic {
  type: 'kitMath';
  text: string;
  display: boolean;
}

const INLINE = /^(?:\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?![\d$])|\\\(((?:(?!\\\))[^\n])+)\\\))/;
const DISPLAY = /^(?: {0,3})(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;
const DISPLAY_INLINE = /^(?:\$\$((?:\\.|[^$\\])+?)\$\$|\\\[((?:(?!\\\])[\s\S])+?)\\\])/;

const found = (raw: RegExpExecArray | null, display: boolean): MathToken | undefined =>
  raw ? { type: 'kitMath', raw: raw[0], text: (raw[1] ?? raw[2]).trim(), display } : undefined;

const marked = new Marked({
  gfm: true,
  extensions: [
    {
      name: 'kitMath',
      level: 'block',
      start: src => src.match(/\$\$|\\\[/)?.index,
      tokenizer: src => found(DISPLAY.exec(src), true),
      renderer: token => math((token as MathToken).text, (token as MathToken).display)
    },
    {
      name: 'kitMath',
      level: 'inline',
      start: src => src.match(/\$|\\\(|\\\[/)?.index,
      tokenizer: src => found(DISPLAY_INLINE.exec(src), true) ?? found(INLINE.exec(src), false),
      renderer: token => math((token as MathToken).text, (token as MathToken).display)
    }
  ],
  renderer: {
    html: token => token.text.replace(/<[^>]*>|[<>&]/g, part => (PLAIN_TAG.test(part) ? part : escape(part))),
    code: ({ text, lang }) => {
      const name = /^[\w+#-]{1,30}/.exec(lang ?? '')?.[0] ?? '';
      const label = name ? ` class="language-${escape(name)}" data-lang="${escape(name)}"` : '';
      return `<pre><code${label}>${highlight(text, name) ?? escape(text)}\n</code></pre>`;
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
    image: ({ href, text }) =>
      DATA_IMAGE.test(href)
        ? `<img src="${escape(href)}" alt="${escape(text)}">`
        : `<span data-kit-remote="${escape(href)}">${escape(text || 'picture')}</span>`
  }
});

// One of our own, so that no other code on the page adds hooks to it.
const purify = DOMPurify(window);
purify.addHook('afterSanitizeAttributes', node => {
  if (node.tagName === 'A') {
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noopener noreferrer nofollow');
  }
  if (node.tagName === 'IMG' && !DATA_IMAGE.test(node.getAttribute('src') ?? '')) node.remove();
});

const ALLOWED = {
  RETURN_DOM_FRAGMENT: true as const,
  USE_PROFILES: { html: true, mathMl: true },
  ADD_TAGS: ['semantics', 'annotation'],
  ADD_ATTR: ['encoding', 'data-kit-remote', 'data-lang'],
  FORBID_TAGS: ['style', 'form', 'input', 'button', 'select', 'textarea', 'video', 'audio', 'source', 'picture', 'track', 'map', 'area', 'dialog', 'template', 'slot'],
  FORBID_ATTR: ['style', 'id', 'name', 'srcset', 'background', 'poster', 'action', 'formaction', 'ping', 'usemap', 'autofocus', 'tabindex', 'accesskey', 'contenteditable', 'popover'],
  // All others must look like an address that is allowed. None of these is read as one.
  ADD_URI_SAFE_ATTR: [
    'align', 'start', 'encoding', 'display', 'displaystyle', 'scriptlevel', 'mathvariant', 'mathsize', 'mathcolor', 'mathbackground',
    'stretchy', 'symmetric', 'fence', 'separator', 'form', 'lspace', 'rspace', 'minsize', 'maxsize', 'largeop', 'movablelimits',
    'accent', 'accentunder', 'linethickness', 'notation', 'width', 'height', 'depth', 'voffset', 'rowspacing', 'columnspacing',
    'columnalign', 'rowlines', 'columnlines', 'side'
  ],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#|data:image\/(?:png|jpeg|gif|webp);base64,)/i
};

/** Safe nodes of a piece of Markdown. */
export function renderMarkdown(source: string): DocumentFragment {
  style();
  if ((source.match(/[[\]*_`~>|!(<$\\]/g)?.length ?? 0) > NOISE && !/^\s*(```|~~~|\|)/.test(source)) return plain(source);
  const fragment = purify.sanitize(marked.parse(source, { async: false }), ALLOWED);
  fragment.querySelectorAll<HTMLElement>('[data-kit-remote]').forEach(offer);
  return fragment;
}

function plain(source: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const box = document.createElement('div');
  box.style.whiteSpace = 'pre-wrap';
  box.textContent = source;
  fragment.append(box);
  return fragment;
}

/** A remote picture tells its server who reads, so it is fetched only when the reader asks. */
function offer(place: HTMLElement): void {
  let url: URL;
  try {
    url = new URL(place.dataset.kitRemote!);
  } catch {
    return;
  }
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return;
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'kit-b';
  button.textContent = `Load “${place.textContent}” from ${url.host}`;
  button.addEventListener(
    'click',
    () => {
      const image = document.createElement('img');
      image.alt = place.textContent ?? '';
      image.referrerPolicy = 'no-referrer';
      image.src = url.href;
      button.replaceWith(image);
    },
    { once: true }
  );
  place.replaceWith(button);
}
