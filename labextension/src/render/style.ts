// Colours of code, at least 4.5:1 in light and in dark.
const COLOURS: [string, string, string][] = [
  ['keyword,.hljs-selector-tag,.hljs-doctag', '#00707a', '#7fd7e0'],
  ['string,.hljs-regexp,.hljs-addition,.hljs-template-variable', '#a5232d', '#ffb1a8'],
  ['comment,.hljs-quote,.hljs-deletion', '#4a6468', '#9fbfc4'],
  ['number,.hljs-literal,.hljs-symbol', '#146c43', '#9be3b0'],
  ['title,.hljs-section,.hljs-name', '#0b4f9c', '#a8cdff'],
  ['built_in,.hljs-type,.hljs-attr,.hljs-attribute', '#6a2c91', '#dfb8ff'],
  ['meta,.hljs-variable.constant_', '#7a4a00', '#f0c987']
];

let done = false;

/** Put the colours into the page, once. Own values: a theme's editor colours are below 4.5:1 in places. */
export function style(): void {
  if (done) return;
  done = true;
  const sheet = document.createElement('style');
  sheet.dataset.kit = 'code';
  sheet.textContent =
    COLOURS.map(([names, light]) => `.kit-view .hljs-${names.replaceAll(',.', ',.kit-view .')}{color:${light}}`).join('') +
    COLOURS.map(([names, , dark]) => {
      const body = '[data-jp-theme-light=false] .kit-view ';
      return `${body}.hljs-${names.replaceAll(',.', `,${body}.`)}{color:${dark}}`;
    }).join('') +
    '.kit-view .hljs-comment{font-style:italic}.kit-view .hljs-emphasis{font-style:italic}.kit-view .hljs-strong{font-weight:bold}';
  document.head.append(sheet);
}
