// The Markdown renderer, bundled from src/render and copied beside the compiled sources.
export function renderMarkdown(source: string): Node;
